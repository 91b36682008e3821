"""The compile-time recorder: which FX node made each variable and each store of a generated kernel.

How an owner travels: lowering runs with a current FX node (`V.get_current_node`), so every
`inner_fn` of `ir.Loops` is wrapped to push that node while it runs (1); the tracer of loop bodies
notes the top of that stack on each node it creates (2); the kernel's CSE notes the owner of the
loop-body node being interpreted on each new `tmpN` (3). `TritonScheduling.define_kernel` has the
finished kernel and its schedule: one marker per call site (4), written as a comment before the
launch line. Only wrappers get text; kernel sources stay byte-identical.

This file says what to wrap (`points`); setting and restoring attributes is the work of
hooks/provenance_patches.py. Names relied on (torch 2.11 / 2.13 / 2.14): torch/_inductor/ir.py
`IRNode.__post_init__`, `Loops`, `UserDefinedTritonKernel.codegen`; loop_body.py
`LightTracer.create_node`; codegen/common.py `CSE.newvar/namedvar/generate`,
`CSEProxy.store/store_reduction`; codegen/triton.py `TritonScheduling.define_kernel` (:6147 / :7264
/ :8192); codegen/wrapper.py `PythonWrapperCodegen.generate_kernel_call`, `make_comment`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from flagprism_torch.provenance import graph_inputs, markers, nodes

_META = "flagprism_owner"  # in the meta of loop-body nodes: an FX node
_VARS = "_flagprism_variables"  # on kernels: name -> [FX node or None, further FX nodes ...]
_STORES = "_flagprism_stores"  # on kernels: buffer name -> FX node or None
_NODE = "_flagprism_node"  # on Loops and on wrapped inner_fn: FX node
_NOTES = "_flagprism_notes"  # on GraphLowering: _GraphNotes

Wrap = Callable[[Any], Any]


@dataclass(frozen=True)
class Point:
    """One attribute to wrap: `owner.name` becomes `wrap(original)`. Points of a map are useful only
    together: without the launch map nothing is written, without the statement map markers have
    owners of the launch but none of its statements."""

    owner: type
    name: str
    wrap: Wrap
    map: Literal["statement", "launch"]


@dataclass
class _GraphNotes:
    """What is known about one graph while its code is generated. `pending`: kernel name -> markers
    not yet written, in the order of their call sites."""

    backward: bool
    pending: dict[str, list[markers.Marker]] = field(default_factory=dict)
    owners: dict[torch.fx.Node, markers.Owner] = field(default_factory=dict)
    order: dict[torch.fx.Node, int] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)  # buffer of a graph input -> its name

    @staticmethod
    def current() -> _GraphNotes:
        graph = _virtualized().graph
        notes = graph.__dict__.get(_NOTES)
        if notes is None:
            notes = _GraphNotes(bool(graph.is_backward or _in_compiled_autograd()))
            graph.__dict__[_NOTES] = notes
            if not notes.backward:
                nodes.note_forward(graph.graph)
            notes.inputs = graph_inputs.by_buffer(graph, nodes.current_root().inputs)
        return notes

    def marker(self, kernel: str) -> markers.Marker:
        return markers.Marker(kernel, self.backward, root=nodes.current_root().ref)

    def owner(self, node: torch.fx.Node) -> markers.Owner:
        known = self.owners.get(node)
        if known is None:
            known = nodes.describe(node, nodes.current_root(), self.backward)
            self.owners[node] = known
        return known

    def sorted(self, found: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
        """In graph order: `origins` are sets in no useful order."""
        found = list(found)
        for node in found:
            if node not in self.order:
                for position, other in enumerate(node.graph.nodes):
                    self.order[other] = position
                self.order.setdefault(node, -1)  # erased from its graph
        return sorted(found, key=self.order.__getitem__)


class _Local(threading.local):
    def __init__(self) -> None:
        self.lowering: list[torch.fx.Node] = []  # innermost inner_fn last
        self.user: list[list[torch.fx.Node]] = []  # user-defined kernels being written


class Recorder:
    """Records owners while Inductor compiles. One instance per installation.

    Attributes:
        failures: reason -> number of times the recorder failed; a failure loses provenance and
            never the compilation.
        missing: reasons why a map is not recorded in this torch.
        written: number of markers written by this process.
    """

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self.missing: list[str] = []
        self.written = 0
        self._local = _Local()

    # ---- what to wrap ----

    def points(self) -> list[Point]:
        """Everything to wrap, once Inductor's code generator is loaded. A map of which this torch
        lacks a part is left out, and `missing` says so."""
        self.missing.clear()
        found: list[Point] = []
        for collect in (self._launch_points, self._statement_points):
            try:
                found += collect()
            except (AttributeError, ImportError, LookupError) as error:
                self.missing.append(f"{collect.__name__.strip('_')}: {error}")
                if collect == self._launch_points:
                    return []  # statements have nowhere to go
        return found

    def _launch_points(self) -> list[Point]:
        from torch._inductor import codecache, ir
        from torch._inductor.codegen.triton import TritonScheduling
        from torch._inductor.codegen.wrapper import PythonWrapperCodegen

        _need(TritonScheduling, "define_kernel", "src_code", "node_schedule", "kernel")
        _need(PythonWrapperCodegen, "generate_kernel_call", "kernel_name")
        _need(PythonWrapperCodegen, "make_comment")
        points = [
            Point(TritonScheduling, "define_kernel", self._define_kernel, "launch"),
            Point(PythonWrapperCodegen, "generate_kernel_call", self._kernel_call, "launch"),
        ]
        if hasattr(codecache, "FxGraphHashDetails"):
            points.append(Point(codecache.FxGraphHashDetails, "__init__", self._key, "launch"))
        if hasattr(getattr(ir, "UserDefinedTritonKernel", None), "codegen"):
            points.append(
                Point(ir.UserDefinedTritonKernel, "codegen", self._user_codegen, "launch")
            )
        else:
            self.missing.append("user kernels: no ir.UserDefinedTritonKernel.codegen")
        return points

    def _statement_points(self) -> list[Point]:
        from torch._inductor import ir, loop_body
        from torch._inductor.codegen import common
        from torch._inductor.virtualized import V

        if not (hasattr(V, "get_current_node") or hasattr(V, "current_node")):
            raise AttributeError("no current FX node in torch._inductor.virtualized.V")
        points: list[tuple[Any, str, Any]] = [(ir.IRNode, "__post_init__", self._post_init)]
        loops = [c for c in vars(ir).values() if isinstance(c, type) and issubclass(c, ir.Loops)]
        for cls in loops:  # reduction and store ops are emitted outside inner_fn
            points += [
                (cls, name, self._loops_store)
                for name in ("store_output", "store_reduction")
                if name in vars(cls)
            ]
        points += [
            (loop_body.LightTracer, "create_node", self._create_node),
            (common.CSE, "newvar", self._newvar),
            (common.CSE, "generate", self._generate),
            (common.CSEProxy, "store", self._kernel_store),
            (common.CSEProxy, "store_reduction", self._kernel_store),
        ]
        if "namedvar" in vars(common.CSE):
            points.append((common.CSE, "namedvar", self._newvar))
        for owner, name, _ in points:
            _need(owner, name)
        return [Point(owner, name, wrap, "statement") for owner, name, wrap in points]

    def _key(self, original: Any) -> Any:
        """Notes the root when a graph is looked up in the cache. The forward graph may come from
        there, and when the backward graph compiles there is no translator left to ask. The key
        itself is not touched."""

        @functools.wraps(original)
        def __init__(details: Any, *args: Any, **kwargs: Any) -> None:
            try:
                nodes.current_root()
            except Exception as error:
                self._failed("root", error)
            original(details, *args, **kwargs)

        return __init__

    # ---- 1. inner_fn -> FX node ----

    def _post_init(self, original: Any) -> Any:
        from torch._inductor import ir

        @functools.wraps(original)
        def __post_init__(node: Any) -> None:
            original(node)
            try:
                nodes.current_root()  # noted early, see _key
                if isinstance(node, ir.Loops):
                    self._own(node)
            except Exception as error:  # provenance must never break a compilation
                self._failed("inner_fn", error)

        return __post_init__

    def _own(self, loops: Any) -> None:
        current = _current_fx_node()
        if current is None:
            return
        # Frozen dataclasses: IRNode._post_init_setattr does the same.
        object.__setattr__(loops, "inner_fn", self._tagged(loops.inner_fn, current))
        functions = getattr(loops, "inner_fns", None)
        if functions:
            tagged = type(functions)(self._tagged(f, current) for f in functions)
            object.__setattr__(loops, "inner_fns", tagged)
        object.__setattr__(loops, _NODE, current)

    def _tagged(self, function: Any, node: torch.fx.Node) -> Any:
        """`function` with `node` on the stack while it runs; the innermost producer wins."""
        if function is None or hasattr(function, _NODE):
            return function
        stack = self._local

        @functools.wraps(function)
        def inner_fn(*args: Any, **kwargs: Any) -> Any:
            stack.lowering.append(node)
            try:
                return function(*args, **kwargs)
            finally:
                stack.lowering.pop()

        setattr(inner_fn, _NODE, node)
        return inner_fn

    def _loops_store(self, original: Any) -> Any:
        @functools.wraps(original)
        def store(loops: Any, *args: Any, **kwargs: Any) -> Any:
            node = getattr(loops, _NODE, None) or getattr(loops.inner_fn, _NODE, None)
            if node is None:
                return original(loops, *args, **kwargs)
            stack = self._local.lowering
            stack.append(node)
            try:
                return original(loops, *args, **kwargs)
            finally:
                stack.pop()

        return store

    # ---- 2. FX node -> loop-body node ----

    def _create_node(self, original: Any) -> Any:
        @functools.wraps(original)
        def create_node(tracer: Any, *args: Any, **kwargs: Any) -> Any:
            node = original(tracer, *args, **kwargs)
            try:
                # A body that is traced again (loops merged or reordered) inherits the owner.
                stack = self._local.lowering
                owner = stack[-1] if stack else _interpreted()
                if owner is not None:
                    node.meta[_META] = owner
            except Exception as error:
                self._failed("loop body", error)
            return node

        return create_node

    # ---- 3. loop-body node -> variable and store ----

    def _newvar(self, original: Any) -> Any:
        @functools.wraps(original)
        def newvar(cse: Any, *args: Any, **kwargs: Any) -> Any:
            variable = original(cse, *args, **kwargs)
            try:
                kernel = _kernel()
                if kernel is not None:
                    kernel.__dict__.setdefault(_VARS, {})[variable.name] = [_interpreted()]
            except Exception as error:
                self._failed("variable", error)
            return variable

        return newvar

    def _generate(self, original: Any) -> Any:
        from torch._inductor.codegen import common

        plain = (common.CSEVariable, getattr(common, "OpsValue", common.CSEVariable))

        @functools.wraps(original)
        def generate(cse: Any, buffer: Any, expr: Any, *args: Any, **kwargs: Any) -> Any:
            variable = original(cse, buffer, expr, *args, **kwargs)
            try:
                if getattr(variable, "use_count", 0) > 1 and not isinstance(expr, plain):
                    self._shared(variable.name)  # the same text for another FX node
            except Exception as error:
                self._failed("shared variable", error)
            return variable

        return generate

    @staticmethod
    def _shared(name: str) -> None:
        kernel, owner = _kernel(), _interpreted()
        if kernel is None or owner is None:
            return
        owners = kernel.__dict__.setdefault(_VARS, {}).setdefault(name, [None])
        if owners == [None]:
            owners[0] = owner
        elif owner not in owners:
            owners.append(owner)

    def _kernel_store(self, original: Any) -> Any:
        @functools.wraps(original)
        def store(proxy: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            try:
                proxy.kernel.__dict__.setdefault(_STORES, {})[name] = _interpreted()
            except Exception as error:
                self._failed("store", error)
            return original(proxy, name, *args, **kwargs)

        return store

    # ---- 4. one marker per call site ----

    def _define_kernel(self, original: Any) -> Any:
        @functools.wraps(original)
        def define_kernel(
            scheduling: Any, src_code: Any, node_schedule: Any, kernel: Any, *args: Any, **kw: Any
        ) -> Any:
            name = original(scheduling, src_code, node_schedule, kernel, *args, **kw)
            try:
                marker = self._marker(name, node_schedule, kernel)
                _GraphNotes.current().pending.setdefault(name, []).append(marker)
            except Exception as error:
                self._failed("call site", error)
            return name

        return define_kernel

    def _user_codegen(self, original: Any) -> Any:
        @functools.wraps(original)
        def codegen(user_kernel: Any, *args: Any, **kwargs: Any) -> Any:
            node = getattr(user_kernel, "fx_node", None)
            stack = self._local.user
            stack.append([node] if node is not None else _fx(getattr(user_kernel, "origins", ())))
            try:
                return original(user_kernel, *args, **kwargs)
            finally:
                stack.pop()

        return codegen

    def _kernel_call(self, original: Any) -> Any:
        @functools.wraps(original)
        def generate_kernel_call(wrapper: Any, kernel_name: Any, *args: Any, **kw: Any) -> Any:
            try:
                # "//" in C++ wrappers, whose launches Python never sees.
                if getattr(wrapper, "comment", "#") == "#":
                    for marker in self._take(wrapper, kernel_name):
                        wrapper.make_comment(markers.encode(marker))
                        self.written += 1
            except Exception as error:
                self._failed("marker", error)
            return original(wrapper, kernel_name, *args, **kw)

        return generate_kernel_call

    def _take(self, wrapper: Any, kernel_name: str) -> Iterator[markers.Marker]:
        """Markers of the launch about to be written: one, or one per choice of a multi-kernel."""
        notes = _GraphNotes.current()
        names = [kernel_name]
        state = getattr(wrapper, "multi_kernel_state", None)
        for choices, name in getattr(state, "subkernel_to_kernel_name", {}).items():
            if name == kernel_name:
                names = list(choices)
        found = [name for name in names if notes.pending.get(name)]
        for name in found:
            yield notes.pending[name].pop(0)
        if not found and self._local.user:
            marker = notes.marker(kernel_name)
            marker.owners = [notes.owner(node) for node in self._local.user[-1]]
            yield marker

    def _marker(self, name: str, node_schedule: Any, kernel: Any) -> markers.Marker:
        notes = _GraphNotes.current()
        marker = notes.marker(name)
        origins: dict[torch.fx.Node, None] = {}
        template: markers.Owner | None = None
        for snode in _leaves(node_schedule):
            found = _fx(snode.node.origins)
            origins.update(dict.fromkeys(found))
            if found and getattr(snode, "is_template", bool)():
                main = getattr(snode.node, "origin_node", None)
                template = notes.owner(main if main is not None else found[-1])
        marker.owners = [notes.owner(node) for node in notes.sorted(origins)]
        if template is not None:
            marker.variables[markers.REST] = (template,)
        for part in getattr(kernel, "sub_kernels", None) or [kernel]:
            for variable, owners in part.__dict__.get(_VARS, {}).items():
                known = [notes.owner(o) for o in owners if o is not None]
                if not known and template is not None:
                    known = [template]  # the body of the template
                if known:
                    earlier = marker.variables.get(variable, ())
                    marker.variables[variable] = tuple(dict.fromkeys((*earlier, *known)))
            marker.stores.update(self._stores(part, template, notes))
            marker.inputs.update(graph_inputs.by_pointer(part.args, notes.inputs))
        return marker

    @staticmethod
    def _stores(
        kernel: Any, template: markers.Owner | None, notes: _GraphNotes
    ) -> dict[str, markers.Owner]:
        """Pointer argument -> owner of what is stored there."""
        pointers: dict[str, Any] = dict(kernel.args.output_buffers)
        for buffer, argument in kernel.args.inplace_buffers.items():
            pointers[buffer] = getattr(argument, "inner_name", argument)
        scheduler = getattr(_virtualized().graph, "scheduler", None)
        renamed = getattr(scheduler, "mutation_real_name", {})  # copy_, optimizer state
        stores = {}
        for buffer, node in kernel.__dict__.get(_STORES, {}).items():
            pointer = pointers.get(renamed.get(buffer, buffer), pointers.get(buffer))
            owner = notes.owner(node) if node is not None else template
            if isinstance(pointer, str) and owner is not None:
                stores[pointer] = owner
        return stores

    def _failed(self, what: str, error: Exception) -> None:
        self.failures[f"{what}: {type(error).__name__}: {error}"[:200]] += 1


def _need(owner: type, name: str, *parameters: str) -> None:
    """Raise AttributeError if `owner.name` is missing or lacks a parameter."""
    function = getattr(owner, name)
    have = inspect.signature(function).parameters if parameters else {}
    if missing := [p for p in parameters if p not in have]:
        raise AttributeError(f"{owner.__name__}.{name} has no parameter {', '.join(missing)}")


def _in_compiled_autograd() -> bool:
    """Whether a whole backward is being compiled, whose graph does not say so."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(compiled, "in_compiled_autograd_region", False))


def _virtualized() -> Any:
    from torch._inductor.virtualized import V

    return V


def _kernel() -> Any:
    """The kernel being generated, or None."""
    from torch._inductor.virtualized import NullHandler

    kernel = _virtualized().kernel
    return None if isinstance(kernel, NullHandler) else kernel


def _current_fx_node() -> torch.fx.Node | None:
    V = _virtualized()
    node = V.get_current_node() if hasattr(V, "get_current_node") else V.current_node
    return node if isinstance(node, torch.fx.Node) else None


def _interpreted() -> torch.fx.Node | None:
    """Owner of the loop-body node being interpreted, or None."""
    node = getattr(_virtualized().interpreter, "current_node", None)
    return None if node is None else node.meta.get(_META)


def _fx(candidates: Iterable[Any]) -> list[torch.fx.Node]:
    return [c for c in candidates if isinstance(c, torch.fx.Node)]


def _leaves(node_schedule: Iterable[Any]) -> Iterator[Any]:
    """Scheduler nodes of a schedule: without markers (EnableReduction, classes), with fused and
    foreach nodes expanded."""
    for snode in node_schedule:
        if isinstance(snode, type):
            continue
        inner = list(snode.get_nodes()) if hasattr(snode, "get_nodes") else []
        if inner and inner != [snode]:
            yield from _leaves(inner)
        elif getattr(snode, "node", None) is not None:
            yield snode
