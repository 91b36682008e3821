"""Which values of a kernel get a probe, and how each is recorded.

Note [Chosen values]
Level 1 probes what a statement finally produces: a value that is used outside of its statement
(outermost source line), and what stores and atomics write. So library code that is inlined into one
statement, such as `tl.sort`, counts as that statement. Not probed: constants, shape-only operations
(their values are their operand's, which leaves the statement through them), pointers, and integers
that come from program ids, ranges and scalar arguments alone (index arithmetic).

Note [Shared records]
Two entries share one record if their statistics are equal by construction: a store of a value that
is probed under the same mask in the same block, an exact widening (bf16 or fp16 to fp32), and a
`where` that only replaces masked-off lanes by a constant.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flagprism_torch.instrument.codegen import triton_dtype
from flagprism_torch.ir.locations import Frame, source_line
from flagprism_torch.ir.masks import ALL, UNKNOWN, Mask, ValidLanes, implied_by, is_constant, leaf
from flagprism_torch.ir.module import Block, Module, Op, Value
from flagprism_torch.records.model import OpEntry, OpTable

LOADS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.experimental_descriptor_load")
STORES = {"tt.store": 1, "tt.descriptor_store": 1, "tt.descriptor_scatter": 3,
          "tt.experimental_descriptor_store": 1, "tt.descriptor_reduce": 1}  # fmt: skip
CROWDED_LOOP = 12  # records that one loop nest carries comfortably
ATOMICS = ("tt.atomic_rmw", "tt.atomic_cas")
_VIEWS = {"tt.splat", "tt.unsplat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans",
          "ttg.convert_layout"}  # fmt: skip
_NO_VALUE = {*_VIEWS, "tt.make_range", "arith.constant", "tt.get_program_id", "tt.get_num_programs",
             "ub.poison", "tt.make_tensor_descriptor", "tt.make_tensor_ptr", "arith.index_cast",
             "scf.if", "scf.for", "scf.while"}  # fmt: skip
_SIGNED = re.compile(r"arith\.(divsi|remsi|maxsi|minsi|shrsi|extsi|fptosi|cmpi|index_cast)$")
_FROM_INT = ("arith.sitofp", "arith.uitofp")
_REAL = re.compile(r"f\d|bf16")


@dataclass(frozen=True)
class Place:
    """Where a record is made: `loops` is the innermost run of directly nested `scf.for`, outermost
    first; `repeated` if further loops enclose those."""

    loops: tuple[Op, ...]
    repeated: bool


@dataclass(frozen=True)
class Record:
    """One record to be made: of `value`, at operation `op`."""

    value: Value
    op: Op
    mask: Mask
    place: Place
    unsigned: bool

    @property
    def real(self) -> bool:
        return bool(_REAL.match(self.value.type.element))


@dataclass(frozen=True)
class Plan:
    records: tuple[Record, ...]
    table: OpTable


def _without_crowding(records: list[Record]) -> tuple[Record, ...]:
    """Records of single lanes in a crowded loop merge into memory: carried partials of one lane
    cost as many registers as those of a whole tile."""
    crowd = Counter(record.place.loops for record in records)
    return tuple(
        replace(record, place=Place((), True))
        if record.place.loops
        and record.value.type.numel == 1
        and crowd[record.place.loops] > CROWDED_LOOP
        else record
        for record in records
    )


def place_of(block: Block) -> Place:
    loops: list[Op] = []
    repeated = False
    run = True
    while block.parent is not None:
        parent = block.parent
        if parent.name == "scf.for" and run:
            loops.insert(0, parent)
        else:
            run = False
            repeated |= parent.name in ("scf.for", "scf.while")
        block = parent.block
    return Place(tuple(loops), repeated)


def make_plan(
    module: Module,
    signature: Mapping[str, Any],
    max_values: int,
    histograms: bool,
    stores_only: bool = False,
) -> Plan:
    """Choose the values of the module's kernel.

    Args:
        signature: kernel argument name -> Triton type (`*fp32`, `*u8`, `i32`, a tuple of them), for
            the signedness that TTIR types do not have.
        max_values: largest number of records.
        histograms: whether stored values get a histogram block.
        stores_only: leave out everything that is not written to memory.
    """
    return _Planner(module, signature, max_values, histograms, stores_only).plan()


class _Planner:
    def __init__(
        self,
        module: Module,
        signature: Mapping[str, Any],
        max_values: int,
        histograms: bool,
        stores_only: bool,
    ) -> None:
        self.module, self.types = module, _types(module, signature)
        self.stores_only = stores_only
        self.max_values, self.histograms = max_values, histograms
        self.entry = module.entry
        self.masks = ValidLanes(self.entry)
        self.left_out: Counter[str] = Counter()
        self.ops = [op for op in self.entry.walk() if not _inside_combine(op)]
        self.unsigned: set[int] = set()
        self.data: set[int] = set()
        self._flow()

    def plan(self) -> Plan:
        chosen = [found for op in self.ops for found in self._values(op)]
        if self.stores_only:
            everything, chosen = chosen, [c for c in chosen if c[1] in ("store", "atomic")]
            if len(chosen) < len(everything):
                self.left_out["stored values only"] += len(everything) - len(chosen)
        records: list[Record] = []
        entries: list[tuple[int, Record, str, Frame, str | None]] = []
        known: dict[tuple[int, Mask, int], int] = {}
        kept = self._within_limit(chosen)
        for record, role, frame, pointer in chosen:
            key = _group(record)
            if key not in known:
                if id(record) not in kept:
                    self.left_out["max_values"] += 1
                    continue
                known[key] = len(records)
                records.append(record)
            entries.append((known[key], record, role, frame, pointer))
        return Plan(_without_crowding(records), self._table(entries))

    def _within_limit(self, chosen: list[tuple[Record, str, Frame, str | None]]) -> set[int]:
        """The records to keep: stores first, then loads, then the rest, each in program order."""
        rank = {"store": 0, "atomic": 0, "load": 1, "value": 2}
        order = sorted(range(len(chosen)), key=lambda i: (rank[chosen[i][1]], i))
        groups: dict[tuple[int, Mask, int], None] = {}
        for i in order:
            record = chosen[i][0]
            key = _group(record)
            if key in groups or len(groups) < self.max_values:
                groups[key] = None
        return {id(record) for record, *_ in chosen if _group(record) in groups}

    def _table(self, entries: list[tuple[int, Record, str, Frame, str | None]]) -> OpTable:
        listed = []
        blocks: dict[int, int] = {}
        stored = {index for index, _, role, _, _ in entries if role in ("store", "atomic")}
        for op_id, (index, record, role, frame, pointer) in enumerate(entries):
            histogram = -1
            if self.histograms and index in stored:
                histogram = blocks.setdefault(index, len(blocks))
            mask = {"all": "all", "unknown": "unknown"}.get(record.mask.kind, "valid")
            dtype = triton_dtype(record.value.type.element, record.unsigned)
            listed.append(
                OpEntry(
                    op_id=op_id,
                    op=record.op.name,
                    dtype=str(dtype),
                    shape=record.value.type.dims,
                    mask=mask,
                    file=frame.file,
                    line=frame.line,
                    variable=frame.name,
                    statement=source_line(frame.file, frame.line),
                    role=role,
                    pointer=pointer,
                    histogram=histogram,
                    record=index,
                )
            )
        first = self.entry.walk()
        frames = [f for op in first for f in op.frames[:1]]
        file = frames[0].file if frames else ""
        line = min((f.line for f in frames if f.file == file), default=0)
        return OpTable(self.entry.name, file, line, tuple(listed), dict(self.left_out))

    # -- which values

    def _values(self, op: Op) -> list[tuple[Record, str, Frame, str | None]]:
        if op.name in STORES:
            return self._stored(op)
        if op.name in _NO_VALUE or op.name.startswith(("cf.", "tt.return", "scf.", "ttg.")):
            return []
        if op.name == "tt.call":
            self.left_out["noinline call"] += 1
        found = []
        for value in op.results:
            if value.type.is_pointer or value.type.element.startswith(("!", "index")):
                continue
            if is_constant(value) or not self._final(op, value):
                continue
            whole = not _REAL.match(value.type.element) or op.name in _FROM_INT
            if whole and id(value) not in self.data:
                self.left_out["index arithmetic"] += 1
                continue
            if triton_dtype(value.type.element) is None:
                self.left_out[f"type {value.type.element}"] += 1
                continue
            if not op.frames:
                self.left_out["no source location"] += 1
                continue
            role = "load" if op.name in LOADS else "atomic" if op.name in ATOMICS else "value"
            pointer = self._argument(op.operands[0]) if role != "value" else None
            found.append(
                (self._record(op, value, self.masks.of(value)), role, op.frames[0], pointer)
            )
        return found

    def _stored(self, op: Op) -> list[tuple[Record, str, Frame, str | None]]:
        value = op.operands[STORES[op.name]]
        if value.type.is_pointer or triton_dtype(value.type.element) is None:
            self.left_out[f"type {value.type.element}"] += 1
            return []
        if not op.frames:
            self.left_out["no source location"] += 1
            return []
        if op.name == "tt.store":
            mask = leaf(op.operands[2]) if len(op.operands) > 2 else ALL
            if mask is not ALL and is_constant(op.operands[2]):
                mask = ALL
        else:
            mask = self.masks.of(value)
        pointer = self._argument(op.operands[0])
        return [(self._record(op, value, mask), "store", op.frames[0], pointer)]

    def _record(self, op: Op, value: Value, mask: Mask) -> Record:
        if mask not in (ALL, UNKNOWN) and mask.type.dims != value.type.dims:
            mask = UNKNOWN
        unsigned = id(value) in self.unsigned
        return Record(value, op, mask, place_of(op.block), unsigned)

    def _final(self, op: Op, value: Value) -> bool:
        """Whether the value leaves its statement (Note [Chosen values])."""
        own = _statement(op)
        if not value.uses:  # of several results, or of an operation that is not pure
            return op.name in LOADS or op.name in ATOMICS
        for user, _ in value.uses:
            while user.block.parent is not None and user.block.parent.block is not op.block:
                if user.block is op.block:
                    break
                user = user.block.parent
            if user.name in ("scf.yield", "scf.condition", "tt.return") or _statement(user) != own:
                return True
            if user.name in _VIEWS and any(self._final(user, view) for view in user.results):
                return True
        return False

    # -- facts that flow forward

    def _flow(self) -> None:
        """Which values depend on loaded data, and which integers are unsigned."""
        while True:
            before = len(self.data) + len(self.unsigned)
            for op in self.ops:
                if op.name in LOADS or op.name in ATOMICS:
                    self._mark_loaded(op)
                for source, target in _edges(op):
                    if id(source) in self.data:
                        self.data.add(id(target))
                    same = source.type.element == target.type.element
                    if same and id(source) in self.unsigned and not _SIGNED.match(op.name):
                        self.unsigned.add(id(target))
                if op.name == "tt.store" and self._unsigned_pointer(op.operands[0]):
                    self.unsigned.add(id(op.operands[1]))
            if len(self.data) + len(self.unsigned) == before:
                return

    def _mark_loaded(self, op: Op) -> None:
        for value in op.results:
            self.data.add(id(value))
            if self._unsigned_pointer(op.operands[0]):
                self.unsigned.add(id(value))

    def _unsigned_pointer(self, pointer: Value) -> bool:
        name = self._argument(pointer)
        return self.types.get(name or "", "").lstrip("*k").startswith("u")

    def _argument(self, pointer: Value) -> str | None:
        """Name of the kernel argument that a pointer is derived from, None if not traceable."""
        seen = set()
        while id(pointer) not in seen:
            seen.add(id(pointer))
            op = pointer.op
            if op is None:
                block = pointer.block
                if block is not None and block.parent is None and block is self.entry.blocks[0]:
                    return pointer.name.lstrip("%")
                if block is None or block.parent is None or block.parent.name != "scf.for":
                    return None
                if pointer.index == 0:
                    return None
                pointer = block.parent.operands[2 + pointer.index]
            elif op.name == "scf.for":
                pointer = op.operands[3 + pointer.index]
            elif op.operands and op.name.startswith("tt."):
                pointer = op.operands[0]
            else:
                return None
        return None


def _types(module: Module, signature: Mapping[str, Any]) -> dict[str, str]:
    """TTIR argument -> Triton type. The members of a tuple are arguments of their own (`ptrs`,
    `ptrs_0`), in order."""
    flat = [kind for value in signature.values() for kind in _members(value)]
    names = [argument.name.lstrip("%") for argument in module.entry.arguments]
    if len(names) == len(flat):
        return dict(zip(names, flat, strict=True))
    return {name: kind for name, kind in signature.items() if isinstance(kind, str)}


def _members(kind: Any) -> list[str]:
    if isinstance(kind, tuple):
        return [member for part in kind for member in _members(part)]
    return [] if kind == "constexpr" else [kind]


def _edges(op: Op) -> list[tuple[Value, Value]]:
    """Value flow of one operation, through regions too."""
    flows = []
    if op.name in ("scf.for", "scf.while"):
        skip = 3 if op.name == "scf.for" else 0
        body = op.regions[0][0].arguments[1 if skip else 0 :]
        flows += list(zip(op.operands[skip:], body, strict=False))
    if op.name in ("scf.yield", "scf.condition") and op.block.parent is not None:
        parent = op.block.parent
        passed = op.operands[1:] if op.name == "scf.condition" else op.operands
        flows += list(zip(passed, parent.results, strict=False))
        if parent.name == "scf.for":
            flows += list(zip(passed, parent.regions[0][0].arguments[1:], strict=False))
        elif parent.name == "scf.while":
            other = parent.regions[1 if op.name == "scf.condition" else 0][0]
            flows += list(zip(passed, other.arguments, strict=False))
        return flows
    if not op.regions or op.name in ("tt.reduce", "tt.scan", "tt.map_elementwise"):
        flows += [(source, target) for source in op.operands for target in op.results]
    return flows


def _statement(op: Op) -> tuple[str, int] | None:
    return (op.frames[0].file, op.frames[0].line) if op.frames else None


def _inside_combine(op: Op) -> bool:
    """Whether an operation lies in the region of a reduction, a scan or map_elementwise."""
    block = op.block
    while block.parent is not None:
        if block.parent.name.startswith("tt."):
            return True
        block = block.parent.block
    return False


def _group(record: Record) -> tuple[int, Mask, int]:
    """What records of equal statistics have in common (Note [Shared records])."""
    return id(_same_lanes(record.value, record.mask)), record.mask, id(record.op.block)


def _same_lanes(value: Value, mask: Mask) -> Value:
    """The value that `value` repeats in every lane of `mask` (Note [Shared records])."""
    op = value.op
    if op is None:
        return value
    source = None
    if op.name == "arith.extf" and value.type.element == "f32":
        source = op.operands[0]
    elif (
        op.name == "arith.select"
        and mask not in (ALL, UNKNOWN)
        and is_constant(op.operands[2])
        and implied_by(op.operands[0], mask)
    ):
        source = op.operands[1]
    if source is None or source.op is None or source.op.block is not op.block:
        return value
    return _same_lanes(source, mask)
