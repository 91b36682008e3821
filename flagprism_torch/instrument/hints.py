"""What a kernel's IR tells about trouble that only shows at a launch, without probes.

Note [Hints]
* "reload": in a loop that software pipelining may touch, a load of the pointer that a store before
  it in the same iteration went through. The pipeliner moves loads to earlier iterations and does
  not look at memory (triton/lib/Dialect/TritonGPU/Transforms/Pipeliner/AssignLatencies.cpp,
  ScheduleLoops.cpp). It leaves alone loops with a barrier, loops around other loops, loads of
  single lanes, and, where the loop itself has no `num_stages`, loads that do not feed a dot.
* "layout": accesses through several arguments at the same offsets, whose elements meet lane by
  lane: a load with a load in some operation, or a load with what a store writes. If the arguments
  have one shape but other strides, different elements meet. Kernels that are given strides have
  other offsets for each argument.
* "inplace": a store, through the pointer that a value was loaded through, of something that depends
  on this value and that another run would change again; an atomic addition to what nothing
  else writes (else it may be a counter that is reset). What only clamps, selects or converts gives
  the same when it is repeated.
* "unmasked": an access that every program makes in all lanes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from flagprism_torch.instrument.codegen import triton_dtype
from flagprism_torch.ir.flow import edges
from flagprism_torch.ir.locations import source_line
from flagprism_torch.ir.masks import ALL, is_constant, leaf
from flagprism_torch.ir.module import Block, Module, Op, Value
from flagprism_torch.ir.terms import Place, Terms
from flagprism_torch.records.hint_model import Hint

_MASKS = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}  # position of the mask
_ADDITIONS = ("add", "fadd", "xor")
_EXCHANGES = ("tt.atomic_cas", "tt.atomic_store")
_LANEWISE = re.compile(
    r"(arith|math|scf)\.|ttg\.convert_layout$|"
    r"tt\.(fp_to_fp|bitcast|extern_elementwise|clampf|precise_sqrt|precise_divf|mulhiui)$"
)
_REPEATABLE = re.compile(
    r"arith\.(max|min|select|cmp|ext|trunc|bitcast|andi|ori|sitofp|uitofp|fpto)|math\.abs|scf\.|"
    r"ttg\.convert_layout$|tt\.(fp_to_fp|bitcast|clampf|splat|unsplat|broadcast|expand_dims|"
    r"reshape|trans)$"
)


@dataclass(frozen=True, eq=False)
class _Access:
    """`bit`: of a load, what marks the values that it enters."""

    op: Op
    place: Place
    size: int
    bit: int

    @property
    def argument(self) -> str:
        return self.place.argument.name.lstrip("%")

    @property
    def key(self) -> Any:
        """What accesses of the same offsets have in common."""
        return self.place.terms, self.op.operands[0].type.dims

    @property
    def loads(self) -> bool:
        return self.op.name == "tt.load"

    @property
    def stored(self) -> Value:
        return self.op.operands[1]

    @property
    def masked(self) -> bool:
        at = _MASKS[self.op.name]
        masks = self.op.operands[at : at + 1]
        return bool(masks) and not (is_constant(masks[0]) and leaf(masks[0]) is ALL)


def hints(module: Module, num_stages: int = 1) -> tuple[Hint, ...]:
    """The hints of a module's kernel (Note [Hints]).

    Args:
        num_stages: of loops that do not have their own.
    """
    return tuple(_Reader(module, num_stages).hints())


class _Reader:
    def __init__(self, module: Module, num_stages: int) -> None:
        self.entry, self.num_stages = module.entry, num_stages
        self.ops = list(module.entry.walk())
        self.terms = Terms(module)
        self.accesses = list(self._accesses())
        loads = {id(one.op.results[0]): one.bit for one in self.accesses if one.loads}
        self.lanewise = _spread(self.ops, loads, _is_lanewise)
        self.entered = _spread(self.ops, loads, lambda *_: True)
        changed: dict[int, int] = defaultdict(int)
        for op in self.ops:
            if not _REPEATABLE.match(op.name):
                for source, target in edges(op):
                    changed[id(target)] |= self.entered.get(id(source), 0)
        self.changed = _spread(self.ops, changed, lambda *_: True)

    def hints(self) -> Iterator[Hint]:
        for op in self.ops:
            if op.name == "scf.for":
                yield from self._reloads(op)
        yield from self._layouts()
        yield from self._in_place()
        yield from self._unmasked()

    def _accesses(self) -> Iterator[_Access]:
        bit = 1
        for op in self.ops:
            if op.name not in _MASKS or not op.operands[0].type.is_pointer or not op.frames:
                continue
            place = self.terms.place(op.operands[0])
            kind = triton_dtype(op.operands[0].type.pointee)
            if place is not None and kind is not None:
                size = max(kind.primitive_bitwidth // 8, 1)
                yield _Access(op, place, size, bit)
                bit <<= op.name == "tt.load"

    # -- reload

    def _reloads(self, loop: Op) -> Iterator[Hint]:
        own = loop.int_attr("tt.num_stages")
        stages = self.num_stages if own is None else own
        (body,) = loop.regions[0]
        inside = [op for op in self.ops if _within(op, body)]
        if stages < 2 or any("barrier" in op.name or op.name in _LOOPS for op in inside):
            return
        for at, load in enumerate(body.ops):
            if load.name != "tt.load" or not load.operands[0].type.dims or not load.frames:
                continue
            if own is None and not _feeds_dot(load.results[0], body):
                continue
            stores = [op for op in body.ops[:at] if op.name == "tt.store" and op.frames]
            writer = next((op for op in stores[::-1] if self._same_place(op, load)), None)
            if writer is not None:
                place = self.terms.place(load.operands[0])
                arguments = () if place is None else (place.argument.name.lstrip("%"),)
                yield _hint("reload", load, arguments, writer=_statement(writer), num_stages=stages)

    def _same_place(self, one: Op, other: Op) -> bool:
        a, b = one.operands[0], other.operands[0]
        place = self.terms.place(a)
        return a is b or (place is not None and a.type == b.type and place == self.terms.place(b))

    # -- layout

    def _layouts(self) -> Iterator[Hint]:
        groups: dict[Any, list[_Access]] = defaultdict(list)
        for access in self.accesses:
            if self.terms.varies(access.place):
                groups[access.key].append(access)
        meeting = {bits for bits in self.lanewise.values() if bits & (bits - 1)}
        for group in groups.values():
            seen: set[str] = set()
            for access in group:
                partners = dict.fromkeys(
                    other.argument
                    for other in group
                    if other.argument != access.argument
                    and other.size == access.size
                    and self._meet(access, other, meeting)
                )
                if partners and access.argument not in seen:
                    seen.add(access.argument)
                    arguments = (access.argument, *partners)
                    yield _hint("layout", access.op, arguments, itemsize=access.size)

    def _meet(self, one: _Access, other: _Access, meeting: Iterable[int]) -> bool:
        """Whether elements of both accesses meet lane by lane."""
        if one.loads and other.loads:
            both = one.bit | other.bit
            return any(bits & both == both for bits in meeting)
        if one.loads or other.loads:
            load, store = (one, other) if one.loads else (other, one)
            return bool(self.lanewise.get(id(store.stored), 0) & load.bit)
        return False

    # -- inplace, unmasked

    def _in_place(self) -> Iterator[Hint]:
        seen: set[str] = set()
        for access in self.accesses:
            if access.loads or access.argument in seen:
                continue
            if access.op.name == "tt.atomic_rmw":
                found = _adds(access.op) and access.argument not in self._replaced()
            else:
                bits = self.changed.get(id(access.stored), 0)
                found = any(
                    one.bit & bits
                    for one in self.accesses
                    if one.loads and (one.argument, one.key) == (access.argument, access.key)
                )
            if found:
                seen.add(access.argument)
                yield _hint("inplace", access.op, (access.argument,))

    def _replaced(self) -> set[str]:
        """The arguments that are written by anything but additions."""
        written = {one.argument for one in self.accesses if not one.loads and not _adds(one.op)}
        places = (self.terms.place(op.operands[0]) for op in self.ops if op.name in _EXCHANGES)
        return written | {place.argument.name.lstrip("%") for place in places if place is not None}

    def _unmasked(self) -> Iterator[Hint]:
        seen: set[str] = set()
        for access in self.accesses:
            always = access.op.block is self.entry.blocks[0] and not access.masked
            if always and access.argument not in seen:
                seen.add(access.argument)
                yield _hint("unmasked", access.op, (access.argument,))


_LOOPS = ("scf.for", "scf.while")


def _within(op: Op, block: Block) -> bool:
    at: Block | None = op.block
    while at is not None and at is not block:
        at = at.parent.block if at.parent is not None else None
    return at is block


def _feeds_dot(value: Value, body: Block) -> bool:
    """Whether a value of the loop's body becomes, in the same iteration, an operand of a dot that
    is multiplied."""
    waiting, seen = [value], {id(value)}
    while waiting:
        for user, at in waiting.pop().uses:
            if user.name.startswith("tt.dot") and at != 2:
                return True
            if user.block is body and not user.regions:
                waiting += [v for v in user.results if id(v) not in seen]
                seen |= {id(v) for v in user.results}
    return False


def _is_lanewise(op: Op, source: Value, target: Value) -> bool:
    return bool(_LANEWISE.match(op.name)) and source.type.dims == target.type.dims


def _spread(
    ops: Iterable[Op], marks: dict[int, int], passes: Callable[[Op, Value, Value], bool]
) -> dict[int, int]:
    """id(value) -> the bits of all marked values that enter it."""
    ways = [(id(s), id(t)) for op in ops for s, t in edges(op) if passes(op, s, t)]
    bits = dict(marks)
    changed = True
    while changed:
        changed = False
        for source, target in ways:
            new = bits.get(source, 0) & ~bits.get(target, 0)
            if new:
                bits[target] = bits.get(target, 0) | new
                changed = True
    return bits


def _adds(op: Op) -> bool:
    return op.name == "tt.atomic_rmw" and op.head.split(",")[0].strip() in _ADDITIONS


def _statement(op: Op) -> str:
    return source_line(op.frames[0].file, op.frames[0].line)


def _hint(kind: str, op: Op, arguments: tuple[str, ...], **details: Any) -> Hint:
    frame = op.frames[0]
    variable = frame.name if op.results else None
    return Hint(kind, op.name, frame.file, frame.line, variable, _statement(op), arguments, details)
