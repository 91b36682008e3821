"""FX node -> owner: module, ATen op, model line and phase, from the metadata of post-grad graphs.

Relied on (torch 2.11 to 2.14): node.meta keys `nn_module_stack` / `fwd_nn_module_stack` (backward
nodes carry the stack of their forward node), `original_aten`, `stack_trace`, `partitioner_tag`,
`autograd_backward`; the stack's keys are `str(id(module))` plus "@k" for the k-th further call
(torch/_dynamo/variables/nn_module.py, `record_nn_module_stack`).
"""

from __future__ import annotations

import re
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from flagprism_torch.provenance.markers import ModuleRef, Owner
from flagprism_torch.records.model import Phase

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in ')
_BASE = re.compile(r"^[LG]\['[^']*'\]")
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(\w+?)_at_\d+")
_TORCH = str(Path(torch.__file__).parent) + "/"
_OPTIM = _TORCH + "optim/"
_INFER_DEPTH = 4  # how far a node without metadata looks back along its inputs


def clean_fqn(text: str) -> str:
    """Dynamo's source expression as a module name: `L['self'].layers[0]._modules['a']` ->
    `layers.0.a`; "" for the root itself."""
    text = _BASE.sub("", text)
    text = re.sub(r"\._modules\['([^']+)'\]", r".\1", text)
    text = re.sub(r"\['([^']+)'\]", r".\1", text)
    text = re.sub(r"\[(\d+)\]", r".\1", text)
    parts = [part for part in text.split(".") if part and part != "_orig_mod"]
    return ".".join(parts)


@dataclass(frozen=True)
class Root:
    """What is being compiled. `ref`: the module whose method is compiled, None for a function.
    `bases`: source prefixes that are modules (`L['self']`, `G['net']`) -> their class."""

    ref: ModuleRef | None = None
    bases: dict[str, str] = field(default_factory=dict)


_roots: weakref.WeakKeyDictionary[Any, Root] = weakref.WeakKeyDictionary()


def current_root() -> Root:
    """The root of the compilation that is running on this thread.

    Dynamo's translator is only there while the forward graph compiles; the backward graph of the
    same frame shares its TracingContext (torch/_guards.py), which is why the answer is kept there.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is None:
        return Root()
    known = _roots.get(context)
    if known is not None:
        return known
    root = _traced_root()
    if root is None:
        return Root()
    _roots[context] = root
    return root


def _traced_root() -> Root | None:
    from torch._dynamo import symbolic_convert

    translator = getattr(getattr(symbolic_convert, "tls", None), "current_tx", None)
    root_tx = getattr(getattr(translator, "output", None), "root_tx", None)
    if root_tx is None:
        return None
    code, local = root_tx.f_code, root_tx.f_locals
    bases = {f"L['{k}']": _class(type(v)) for k, v in local.items() if _is_module(v)}
    bases |= {f"G['{k}']": _class(type(v)) for k, v in root_tx.f_globals.items() if _is_module(v)}
    module = _compiled_module(code, local)
    if module is None:
        return Root(None, bases)
    cls = _class(type(module))
    return Root(ModuleRef(str(id(module)), "", cls, cls), bases)


def _compiled_module(code: Any, local: dict[str, Any]) -> Any:
    """The module whose method `code` is, None for a function."""
    arguments = code.co_varnames[: code.co_argcount]
    if _is_module(local.get("self")) and "self" in arguments:
        return local["self"]
    if arguments and not _RESUMED.match(code.co_name) and _is_module(local.get(arguments[0])):
        module = local[arguments[0]]
        method = getattr(type(module), code.co_name, None)
        return module if getattr(method, "__code__", None) is code else None
    # torch/_dynamo/external_utils.py, wrap_inline: modules of torch.nn are compiled through it.
    if "fn" in code.co_freevars and _is_module(local.get("fn")):
        return local["fn"]
    return None


def _is_module(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


def _class(cls: Any) -> str:
    """Plain class name of a class or of its (qualified) name."""
    return cls.rsplit(".", 1)[-1] if isinstance(cls, str) else cls.__name__


def describe(node: torch.fx.Node, root: Root, backward: bool) -> Owner:
    """Owner of the values computed for `node`.

    Args:
        node: a node of a post-grad graph.
        root: of the compilation (`current_root`).
        backward: whether the graph is a backward graph.

    Nodes that no line of the model made belong to what their inputs have in common (pattern
    matcher), or to the last gradient that is added (gradient accumulation).
    """
    meta = node.meta
    file, line, optimizer = _model_line(meta.get("stack_trace") or "")
    phase = _phase(meta, backward, optimizer)
    aten = _aten(node)
    if optimizer:
        return Owner(None, aten, file, line, phase)
    if _accumulation(meta):
        # The last input is the gradient from the user nearest to the value's producer.
        last = node.all_input_nodes[-1:]
        if last and last[0].op == "call_function":
            near = describe(last[0], root, backward)
            return Owner(near.module, aten, near.file, near.line, "backward")
        return Owner(None, aten, None, None, "backward")
    if _synthetic(meta):
        stack, places = _inherited(node, root, _INFER_DEPTH)
        file, line = places.pop() if len(places) == 1 else (None, None)
    else:
        stack = _stack(meta, root)
    return Owner(stack[-1] if stack else None, aten, file, line, phase)


def _accumulation(meta: dict[str, Any]) -> bool:
    """Gradient accumulation inherits the trace of whatever ran before it, but has no module stack
    at all, not even an empty one."""
    return (
        bool(meta.get("stack_trace"))
        and meta.get("partitioner_tag") == "is_backward"
        and "fwd_nn_module_stack" not in meta
        and "nn_module_stack" not in meta
    )


def _synthetic(meta: dict[str, Any]) -> bool:
    """Whether no line of the model made this node. (A model made of torch's own modules only has
    module stacks without traces.)"""
    if meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack"):
        return False
    return not meta.get("stack_trace") or _accumulation(meta)


def _inherited(
    node: torch.fx.Node, root: Root, depth: int
) -> tuple[list[ModuleRef], set[tuple[str, int]]]:
    """(modules that contain every input, outermost first; model lines of the inputs)."""
    shared: list[ModuleRef] | None = None
    places: set[tuple[str, int]] = set()
    for source in node.all_input_nodes:
        if source.op != "call_function":
            continue  # graph inputs have no owner
        if _synthetic(source.meta):
            if not depth:
                continue
            stack, lines = _inherited(source, root, depth - 1)
            places |= lines
        else:
            stack = _stack(source.meta, root)
            file, line, _ = _model_line(source.meta.get("stack_trace") or "")
            if file is not None and line is not None:
                places.add((file, line))
        if stack:
            shared = stack if shared is None else _common(shared, stack)
    return shared or [], places


def _common(one: list[ModuleRef], other: list[ModuleRef]) -> list[ModuleRef]:
    both = []
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        both.append(a)
    return both


def _stack(meta: dict[str, Any], root: Root) -> list[ModuleRef]:
    """Modules whose forward the node is in, outermost first; the compiled root is the first."""
    refs = [] if root.ref is None else [root.ref]
    entries = list((meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}).items())
    if not entries:
        return refs
    outer, outer_cls = entries[0][1][:2]
    base = _BASE.match(outer)
    if base and base[0] in root.bases:
        cut, root_cls = base[0], root.bases[base[0]]
    elif root.ref is not None:
        cut, root_cls = "", root.ref.cls
    elif base and base[0] == "L['self']":
        cut, root_cls = base[0], "Module"  # nothing is known of this compilation's root
    else:
        # The module hangs off something that is no module (a trainer): names start there.
        cut, root_cls = outer, _class(outer_cls)
    for key, (text, cls, *_) in entries:
        fqn = clean_fqn(text[len(cut) :] if text.startswith(cut) else text)
        refs.append(ModuleRef(str(key), fqn, _class(cls), root_cls))
    return refs


def _phase(meta: dict[str, Any], backward: bool, optimizer: bool) -> Phase:
    """Recomputed forward nodes in a backward graph are forward; the partitioner tags them."""
    if optimizer:
        return "optimizer"
    tag = meta.get("partitioner_tag")
    if tag in ("is_forward", "must_be_in_forward"):
        return "forward"
    if tag in ("is_backward", "must_be_in_backward") or "fwd_nn_module_stack" in meta:
        return "backward"
    return "backward" if backward or meta.get("autograd_backward") else "forward"


def _model_line(trace: str) -> tuple[str | None, int | None, bool]:
    """(file, line, whether it is optimizer code) of the innermost frame outside torch/; frames of
    torch/optim count, because they are the source of a compiled optimizer step."""
    for file, line in reversed(_FRAME.findall(trace)):
        if file.startswith(_OPTIM):
            return file, int(line), True
        if not file.startswith(_TORCH) and not file.startswith("<"):
            return file, int(line), False
    return None, None, False


def _aten(node: torch.fx.Node) -> str | None:
    """The user-level op without its overload, as in Inductor's comments: `aten.add`."""
    op = node.meta.get("original_aten")
    if op is None:
        op = node.target if isinstance(node.target, torch._ops.OpOverload) else None
    if op is None or isinstance(op, torch._ops.HigherOrderOperator):
        return None
    packet = getattr(op, "overloadpacket", op)
    return str(packet)
