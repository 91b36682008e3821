"""Module names without hooks: whose forward is running, and whose backward.

Global module hooks recompile or break compiled graphs, so an eager launch is named by the frames on
its thread's stack, and a backward launch by the autograd node that runs: its sequence number was
noted at the forward launch. Relied on (torch 2.11 to 2.14): `torch._C._current_autograd_node()`,
`torch.autograd._get_sequence_nr()` (the node of a Function or custom op is numbered before its
forward runs; torch/fx/proxy.py uses the same "- 1").
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from flagprism_torch.provenance import tensors
from flagprism_torch.records.model import Origin, Phase

_NOTED_THREADS = 256  # threads whose notes are kept
_NOTED_PER_THREAD = 1 << 16  # forward launches whose backward may still come
_TORCH = str(Path(torch.__file__).parent) + "/"
_PACKAGE = str(Path(__file__).parents[1]) + "/"
# Python frames between a differentiable op and the code inside it.
_NODE_FRAMES = (_TORCH + "autograd/function.py", _TORCH + "_library/", _TORCH + "_ops.py")
_ENGINE = (_TORCH + "autograd/graph.py", "_engine_run_backward")


def label(root: str) -> str:
    """Name of the own ops of a root module, given its class."""
    return f"<{root}>"


@dataclass
class _Root:
    """Names of one root's modules. Weak: a session must not keep a model alive, and an id that was
    freed can come back as another object."""

    ref: weakref.ref[torch.nn.Module]
    cls: str
    names: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = field(default_factory=dict)
    all_names: set[str] = field(default_factory=set)  # a shared module has several
    places: dict[str, tensors.Place] = field(default_factory=dict)  # of parameters and buffers

    def scan(self) -> None:
        root = self.ref()
        if root is None:
            return
        self.names, self.all_names = {}, set()
        self.places = tensors.places(root)
        for name, module in root.named_modules(remove_duplicate=False):
            plain = ".".join(part for part in name.split(".") if part != "_orig_mod")
            self.all_names.add(plain)
            self.names.setdefault(id(_unwrapped(module)), (weakref.ref(_unwrapped(module)), plain))

    def name(self, module: torch.nn.Module) -> str | None:
        known = self.names.get(id(module))
        return known[1] if known is not None and known[0]() is module else None


@dataclass
class _Stack:
    """What a walk up the frames found, innermost first."""

    modules: list[torch.nn.Module] = field(default_factory=list)
    optimizer: bool = False
    in_node: bool = False  # inside a differentiable op
    recomputing: bool = False  # forward code (if any) that runs during a backward
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Running:
    """The module that runs (or whose backward runs) at a launch, and the model line.

    `name`: "" for the root itself. `module_id` is valid while the module lives.
    """

    name: str
    cls: str
    root_cls: str
    module_id: int
    file: str | None
    line: int | None


class ModuleNames:
    """Names of modules as in `named_modules()`, for one session.

    Args:
        model: the root whose names are wanted. Without it, or for a launch outside of it, the
            outermost module on the stack is the root. A root's own ops are `<RootClass>`. Wrappers
            of torch.compile (`_orig_mod`) do not appear in names.

    Thread-safe. Holds modules weakly.
    """

    def __init__(self, model: torch.nn.Module | None = None) -> None:
        self._lock = threading.Lock()
        self._roots: OrderedDict[int, _Root] = OrderedDict()
        self._given: int | None = None
        self._strangers: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._noted: dict[int, OrderedDict[int, Running]] = {}
        self.resolved: dict[Any, Any] = {}  # a cache of callsites.locate
        self.version = 0  # changes whenever a name may have changed
        if model is not None:
            model = _unwrapped(model)
            self._given = id(model)
            self._add(model)

    # ---- names ----

    def root_label(self) -> str | None:
        """`<RootClass>` of the given root, None without one."""
        root = self._roots.get(self._given) if self._given is not None else None
        return None if root is None else label(root.cls)

    def by_id(self, module_id: int, cls: str) -> tuple[str, str] | None:
        """(name relative to its root, class of the root) of a live module of class `cls`.

        The given root answers first, then discovered ones. None if the id is of no known module.
        """
        with self._lock:
            for root in self._ordered():
                known = root.names.get(module_id)
                module = known[0]() if known is not None else None
                if known is not None and module is not None and type(module).__name__ == cls:
                    return known[1], root.cls
        return None

    def knows(self, root_cls: str, name: str) -> bool | None:
        """Whether a known root of that class has a module of that name; None without one."""
        with self._lock:
            roots = [r for r in self._ordered() if r.cls == root_cls and r.ref() is not None]
        if not roots:
            return None
        return not name or any(name in root.all_names for root in roots)

    def tensor_places(self) -> list[tuple[torch.nn.Module, dict[str, tensors.Place]]]:
        """The live roots, the given one first, and where their tensors were at the last scan."""
        with self._lock:
            found = [(root.ref(), root.places) for root in self._ordered()]
        return [(module, places) for module, places in found if module is not None]

    def discover(self, frame: FrameType | None) -> None:
        """Make the outermost module on the stack of `frame` a known root, if none was given."""
        if self._given is None:
            found = _walk(frame)
            if found.modules:
                self._root_of(found.modules)

    def _ordered(self) -> list[_Root]:
        """The given root, then discovered ones, newest first."""
        roots = list(reversed(self._roots.values()))
        return sorted(roots, key=lambda root: root is not self._roots.get(self._given or 0))

    def _add(self, module: torch.nn.Module) -> _Root:
        root = _Root(weakref.ref(module), type(module).__name__)
        root.scan()
        self._roots.pop(id(module), None)
        self._roots[id(module)] = root
        self.version += 1
        for key in [k for k, r in self._roots.items() if r.ref() is None and k != self._given]:
            del self._roots[key]
        return root

    def _root_of(self, modules: list[torch.nn.Module]) -> _Root:
        outer = modules[-1]
        with self._lock:
            root = self._roots.get(id(outer))
            if root is None or root.ref() is not outer:
                root = self._add(outer)
            return root

    def _named(self, found: _Stack) -> Running | None:
        """The innermost module with a name; None if there is no module at all."""
        if not found.modules:
            return None
        given = self._roots.get(self._given) if self._given is not None else None
        if given is not None and given.ref() is not None:
            running = self._innermost(given, found)
            if running is not None:
                return running
        if found.recomputing:  # the stack does not reach up to the root
            for root in self._ordered():
                if root.name(found.modules[-1]) is not None:
                    return self._innermost(root, found)
        return self._innermost(self._root_of(found.modules), found)

    def _innermost(self, root: _Root, found: _Stack) -> Running | None:
        for module in found.modules:
            name = root.name(module)
            if name is None and module not in self._strangers:
                with self._lock:  # added to the model since the last look?
                    root.scan()
                    self.version += 1
                name = root.name(module)
                if name is None:
                    self._strangers.add(module)
            if name is not None:
                cls = type(module).__name__
                return Running(name, cls, root.cls, id(module), found.file, found.line)
        return None

    # ---- launches ----

    def running(self, frame: FrameType | None = None) -> tuple[Running | None, Phase]:
        """(module, phase) of a launch made from `frame` (default: the caller's).

        forward: the innermost known module whose forward is on the stack, also while activation
        checkpointing recomputes. backward: what was noted when the forward of the running autograd
        node launched; None if nothing was. optimizer: inside `Optimizer.step`, no module. none:
        outside of all of these.
        """
        running, phase, _ = self._look(frame if frame is not None else sys._getframe(1))
        return running, phase

    def locate(self, frame: FrameType | None = None) -> Origin:
        """Origin of an eager launch made from `frame` (default: the caller's).

        Module and phase as in `running`. `model_file` / `model_line`: innermost frame outside
        torch, Triton and this package, of the forward also for a backward launch. `aten` is
        unknown (empty).
        """
        running, phase, found = self._look(frame if frame is not None else sys._getframe(1))
        if running is None:
            return Origin(
                phase=phase, model_file=found.file, model_line=found.line, source="frames"
            )
        module = running.name or label(running.root_cls)
        return Origin(
            module=module,
            modules=(module,),
            phase=phase,
            model_file=running.file,
            model_line=running.line,
            source="frames",
        )

    def _look(self, frame: FrameType) -> tuple[Running | None, Phase, _Stack]:
        found = _walk(frame)
        if found.optimizer:
            return None, "optimizer", found
        node = torch._C._current_autograd_node()
        if node is not None and not found.modules:
            running, phase = self._noted_for(node), "backward"
        else:
            running = self._named(found)
            phase = "forward" if found.modules else "none"
        if running is not None and found.in_node:
            self._note(running)
        return running, phase, found  # type: ignore[return-value]  # the literals of Phase

    def _note(self, running: Running) -> None:
        """Remember a launch inside a differentiable op for its backward. First launch wins: it is
        nearest to the creation of the node."""
        sequence = torch.autograd._get_sequence_nr() - 1
        if sequence < 0:
            return
        with self._lock:
            noted = self._noted.setdefault(_thread_number(), OrderedDict())
            if len(self._noted) > _NOTED_THREADS:
                del self._noted[next(iter(self._noted))]
            noted.setdefault(sequence, running)
            if len(noted) > _NOTED_PER_THREAD:
                noted.popitem(last=False)

    def _noted_for(self, node: Any) -> Running | None:
        """Sequence numbers count per forward thread. The CPU backward runs on that thread, the one
        of a device does not, and then only an unambiguous number names a module."""
        sequence, thread = node._sequence_nr(), _thread_number()
        with self._lock:
            candidates = {t: n[sequence] for t, n in self._noted.items() if sequence in n}
        if thread in candidates:
            return candidates[thread]
        distinct = set(candidates.values())
        return distinct.pop() if len(distinct) == 1 else None


_threads = threading.local()
_thread_numbers = itertools.count()


def _thread_number() -> int:
    """A number no other thread of this process has or had; `get_ident` is reused."""
    if not hasattr(_threads, "number"):
        _threads.number = next(_thread_numbers)
    number: int = _threads.number
    return number


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside torch.compile's OptimizedModule."""
    inner = module.__dict__.get("_modules", {}).get("_orig_mod")
    return inner if isinstance(inner, torch.nn.Module) else module


# what a frame's file and function name say: bits of _kind_of
_USER, _FORWARD, _STEP, _BACKWARD_CALL, _NODE = 1, 2, 4, 8, 16


@functools.lru_cache(1 << 14)
def _kind_of(file: str, name: str) -> int:
    """Bits of one frame; a walk asks for some fifty frames at every launch."""
    kind = _USER if is_user_file(file) else 0
    if name in ("forward", "_call_impl", "_wrapped_call_impl"):
        kind |= _FORWARD
    elif name == "step":
        kind |= _STEP
    elif (file, name) == _ENGINE:
        kind |= _BACKWARD_CALL
    return kind | (_NODE if file.startswith(_NODE_FRAMES) else 0)


def _walk(frame: FrameType | None) -> _Stack:
    backward = torch._C._current_autograd_node() is not None
    found = _Stack(recomputing=backward)
    while frame is not None:
        code = frame.f_code
        kind = _kind_of(code.co_filename, code.co_name)
        if kind:
            if kind & _USER and found.file is None:
                found.file, found.line = code.co_filename, frame.f_lineno
            if kind & _FORWARD:
                module = frame.f_locals.get("self")
                if isinstance(module, torch.nn.Module):
                    module = _unwrapped(module)
                    if not found.modules or found.modules[-1] is not module:
                        found.modules.append(module)
            elif kind & _STEP and not found.modules:
                if isinstance(frame.f_locals.get("self"), torch.optim.Optimizer):
                    found.optimizer = True
                    break
            elif kind & _BACKWARD_CALL and backward:
                break  # whoever called backward() is not part of the node's forward
            if kind & _NODE:
                found.in_node = True
        frame = frame.f_back
    return found


def is_user_file(file: str) -> bool:
    """Whether `file` is code of the user: not torch, Triton, this package or generated text."""
    if file.startswith((_TORCH, _PACKAGE, "<")):
        return False
    return not file.startswith(_triton())


def _triton() -> tuple[str, ...]:
    triton = sys.modules.get("triton")
    path = getattr(triton, "__file__", None)
    return (str(Path(path).parent) + "/",) if path else ()
