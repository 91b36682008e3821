"""FX node -> owner: module, ATen op, model line and phase, from the metadata of post-grad graphs.

Relied on (torch 2.11 to 2.14): node.meta keys `nn_module_stack` / `fwd_nn_module_stack` (backward
nodes carry the stack of their forward node), `original_aten`, `stack_trace`, `seq_nr`,
`partitioner_tag`, `autograd_backward`; the stack's keys are `str(id(module))` plus "@k" for the
k-th further call (torch/_dynamo/variables/nn_module.py, `record_nn_module_stack`).
"""

from __future__ import annotations

import bisect
import operator
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from flagprism_torch.provenance import graph_inputs
from flagprism_torch.provenance.markers import ModuleRef, Owner
from flagprism_torch.records.model import Phase

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in ')
_BASE = re.compile(r"^[LG]\['[^']*'\]")
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(\w+?)_at_\d+")
_TORCH = str(Path(torch.__file__).parent) + "/"
_OPTIM = _TORCH + "optim/"
_INFER_DEPTH = 4  # how far a node without metadata looks along its inputs or users
# torch.fx.traceback.GRADIENT_ACC_SPECIAL_STACK
_SUM_OF_GRADIENTS = "Gradient addition node due to multiple use of tensor"


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
    `bases`: source prefixes that are modules (`L['self']`, `G['net']`) -> their class. `inputs`:
    names of the graph inputs (`graph_inputs.names`)."""

    ref: ModuleRef | None = None
    bases: dict[str, str] = field(default_factory=dict)
    inputs: tuple[str | None, ...] = ()


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
    inputs = graph_inputs.names(root_tx.output)
    module = _compiled_module(code, local)
    if module is None:
        return Root(None, bases, inputs)
    cls = _class(type(module))
    return Root(ModuleRef(str(id(module)), "", cls, cls), bases, inputs)


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

    A node that AOTAutograd did not trace belongs to what its inputs have in common, else its users.
    The sum of two gradients belongs to the last of them.
    """
    node = _annotated(node)
    meta = node.meta
    file, line, optimizer = _model_line(meta.get("stack_trace") or "")
    # The pass that runs it: a backward graph is backward, also where it recomputes forward values.
    phase: Phase = "optimizer" if optimizer else "backward" if backward else "forward"
    aten = _aten(node)
    if optimizer:
        return Owner(None, aten, file, line, phase)
    if _accumulation(meta):
        file = line = None  # it has the trace of whatever ran before it
        # The last input is the gradient from the user nearest to the value's producer.
        last = node.all_input_nodes[-1:]
        if node.target == torch.ops.aten.add.Tensor and last and last[0].op == "call_function":
            near = describe(last[0], root, backward)
            return Owner(near.module, aten, near.file, near.line, phase)
    stack = _traced(node, root)
    if stack is None:
        stack, places = _around(node, root)
        if file is None and len(places) == 1:
            file, line = next(iter(places))
        users = {_aten(user) for user in node.users if user.op == "call_function"}
        if aten is None and len(users) == 1:
            aten = users.pop()
    return Owner(stack[-1] if stack else None, aten, file, line, phase)


def _annotated(node: torch.fx.Node) -> torch.fx.Node:
    """The node that has the metadata of the model. Of what the pattern matcher made with several
    results (`prims.prepare_softmax_online`), only these do: that of the nodes they replace."""
    results = list(node.users)
    if "stack_trace" in node.meta or any(one.target is not operator.getitem for one in results):
        return node
    traces = {one.meta.get("stack_trace") for one in results}
    return results[0] if len(traces) == 1 and None not in traces else node


def _traced(node: torch.fx.Node, root: Root) -> list[ModuleRef] | None:
    """Modules whose forward a traced node is in, outermost first. None for nodes that no line of
    the model made: those of the partitioner and the pattern matcher, and sums of gradients.

    A traced node without a module stack is code of the root, or a gradient whose forward node
    AOTAutograd did not find by its sequence number. (A model made of torch's own modules has module
    stacks without traces.)
    """
    meta = node.meta
    if meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack"):
        return _stack(meta, root)
    if not meta.get("stack_trace") or "seq_nr" not in meta or _accumulation(meta):
        return None
    if meta.get("autograd_backward") and meta.get("partitioner_tag") == "is_backward":
        return _between(node, root)
    return _stack({}, root)


def _accumulation(meta: dict[str, Any]) -> bool:
    return _SUM_OF_GRADIENTS in (meta.get("stack_trace") or "")


def _between(node: torch.fx.Node, root: Root) -> list[ModuleRef]:
    """Modules that ran when the op whose gradient `node` is did. Sequence numbers grow as the
    forward runs: a call of a module that holds a smaller and a larger one holds those between."""
    known, number = _timeline(node.graph), node.meta["seq_nr"]
    after = bisect.bisect_left(known, number, key=lambda one: one[0])
    if not 0 < after < len(known) or known[after][0] == number:
        return _stack({}, root)
    return _common(_stack(known[after - 1][1], root), _stack(known[after][1], root))


_Timeline = list[tuple[int, dict[str, Any]]]  # (sequence number, metadata), sorted
_forwards: weakref.WeakKeyDictionary[Any, _Timeline] = weakref.WeakKeyDictionary()
_timelines: weakref.WeakKeyDictionary[torch.fx.Graph, _Timeline] = weakref.WeakKeyDictionary()


def note_forward(graph: torch.fx.Graph) -> None:
    """Keeps when which module ran, for the gradients in the backward graph of this compilation."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is not None:
        _forwards[context] = _numbered(graph, "nn_module_stack")


def _timeline(graph: torch.fx.Graph) -> _Timeline:
    """When which module ran: from the gradients of a graph, and its forward if that was compiled
    here too and not found in a cache."""
    from torch._guards import TracingContext

    if graph not in _timelines:
        forward = _forwards.get(TracingContext.try_get(), [])
        found = forward + _numbered(graph, "fwd_nn_module_stack")
        _timelines[graph] = sorted(found, key=lambda one: one[0])
    return _timelines[graph]


def _numbered(graph: torch.fx.Graph, stack: str) -> _Timeline:
    return [
        (node.meta["seq_nr"], {stack: node.meta[stack]})
        for node in graph.nodes
        if "seq_nr" in node.meta and node.meta.get(stack)
    ]


_Places = set[tuple[str, int]]


def _around(node: torch.fx.Node, root: Root) -> tuple[list[ModuleRef], _Places]:
    """(modules that contain every neighbour, outermost first; model lines of the neighbours)."""
    if node.op == "call_function":
        stack, places = _neighbours(node, root, lambda one: one.all_input_nodes)
        if stack or places:
            return stack, places
    # A constant, or the copy of a graph input in another layout: made for its users.
    return _neighbours(node, root, lambda one: list(one.users))


def _neighbours(
    node: torch.fx.Node,
    root: Root,
    toward: Callable[[torch.fx.Node], list[torch.fx.Node]],
    depth: int = _INFER_DEPTH,
) -> tuple[list[ModuleRef], _Places]:
    shared: list[ModuleRef] | None = None
    places: _Places = set()
    others = [other for other in toward(node) if other.op == "call_function"]
    trace = node.meta.get("stack_trace")
    if trace and not _accumulation(node.meta):  # those of the same call, if there are any
        others = [o for o in others if o.meta.get("stack_trace") == trace] or others
    for other in others:
        stack = _traced(other, root)
        if stack is not None:
            file, line, _ = _model_line(other.meta.get("stack_trace") or "")
            if file is not None and line is not None:
                places.add((file, line))
        elif depth:
            stack, lines = _neighbours(other, root, toward, depth - 1)
            places |= lines
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
