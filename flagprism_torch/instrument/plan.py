"""Which values of a kernel get a probe, and how each is recorded.

Note [Chosen values]
Level 1 probes what a statement finally produces: a value that is used outside of its statement
(outermost source line), and what stores and atomics write. So library code that is inlined into one
statement, such as `tl.sort`, counts as that statement. Floats that are loaded inside of a larger
statement (`tl.load(p).to(tl.float32)`) have a row without a variable, because a NaN that comes from
memory must be told from one that is made. Not probed: constants, shape-only operations
(their values are their operand's, which leaves the statement through them), pointers, and integers
that come from program ids, ranges and scalar arguments alone (index arithmetic).

Note [Shared records]
Two entries share one record if their statistics are equal by construction: a store of a value that
is probed under the same mask in the same block, an exact widening (bf16 or fp16 to fp32), and a
`where` that only replaces masked-off lanes by a constant.

Note [Lanes of a probe]
Statistics are over live lanes: valid and needed (ir.valid, ir.needed). Verdicts are over needed
lanes. A probe stands after the operation, or further down where its masks are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flagprism_torch.instrument.accesses import Access, accesses_of
from flagprism_torch.instrument.checks import REAL, Check, bearing
from flagprism_torch.instrument.codegen import triton_dtype
from flagprism_torch.instrument.facts import ATOMICS, LOADS, STORES, Facts
from flagprism_torch.instrument.full_text import Full, FullRequest, choose
from flagprism_torch.instrument.hosting import host
from flagprism_torch.instrument.lanes import Lanes, Live
from flagprism_torch.instrument.optable import Chosen, entries_of, table_of
from flagprism_torch.instrument.record import Place, Record, place_of, statement_of
from flagprism_torch.instrument.silent import silent_checks
from flagprism_torch.instrument.trace import points_of, stops_of
from flagprism_torch.ir.masks import ALL, NONE, UNKNOWN, Mask, implied_by, is_constant, leaf
from flagprism_torch.ir.module import Module, Op, Value
from flagprism_torch.records.model import OpTable

CROWDED_LOOP = 12  # records that one loop nest carries comfortably
_VIEWS = {"tt.splat", "tt.unsplat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans",
          "ttg.convert_layout"}  # fmt: skip
_NO_VALUE = {*_VIEWS, "tt.make_range", "arith.constant", "tt.get_program_id", "tt.get_num_programs",
             "ub.poison", "tt.make_tensor_descriptor", "tt.make_tensor_ptr", "arith.index_cast",
             "scf.if", "scf.for", "scf.while"}  # fmt: skip
_FROM_INT = ("arith.sitofp", "arith.uitofp")


@dataclass(frozen=True)
class Plan:
    """`records` in the order of their numbers; `watches` have no record; `checks` and `accesses` by
    number; `stops`: operations with a trace point (instrument.trace); `full`: what is written down
    lane by lane."""

    records: tuple[Record, ...]
    watches: tuple[Record, ...]
    checks: tuple[Check, ...]
    accesses: tuple[Access, ...]
    stops: tuple[Op, ...]
    table: OpTable
    full: Full | None = None


def make_plan(
    module: Module,
    signature: Mapping[str, Any],
    max_values: int,
    histograms: bool,
    stores_only: bool = False,
    addresses: bool = False,
    trace: bool = False,
    full: FullRequest | None = None,
    offsets: bool = False,
) -> Plan:
    """Choose the values of the module's kernel.

    Args:
        signature: kernel argument name -> Triton type (instrument.facts).
        max_values: largest number of records.
        histograms: whether stored values get a histogram block.
        stores_only: leave out everything that is not written to memory.
        addresses: whether accesses get records of where they go.
        trace: whether programs say how far they came.
        full: what is to be written down lane by lane, `offsets` too if the backend can tell them.
    """
    planner = _Planner(module, signature, max_values, histograms, stores_only)
    return planner.plan(addresses, trace, full, offsets)


def values_to_watch(
    module: Module, signature: Mapping[str, Any]
) -> tuple[list[Chosen], dict[str, int]]:
    """The floats of the kernel for level 0 (instrument.watch), each once, in program order, with
    all its roles ("value+store"), and reason -> number of those left out."""
    planner = _Planner(module, signature, 0, False, False)
    found: dict[Any, Chosen] = {}
    left_out = 0
    for one in (each for op in planner.ops for each in planner._values(op)):
        if not one.record.real:
            continue
        if one.label in ("valid", "unknown"):
            left_out += 1
            continue
        known = found.setdefault(_group(one.record), one)
        if one.role not in known.role:  # what is loaded, or computed, is stored as it is
            role, pointer = f"{known.role}+{one.role}", known.pointer or one.pointer
            found[_group(one.record)] = replace(known, role=role, pointer=pointer)
    reasons = {name: n for name, n in planner.left_out.items() if name != "index arithmetic"}
    if left_out:
        reasons["need of lanes unknown"] = left_out
    return list(found.values()), reasons


class _Planner:
    def __init__(
        self,
        module: Module,
        signature: Mapping[str, Any],
        max_values: int,
        histograms: bool,
        stores_only: bool,
    ) -> None:
        self.stores_only = stores_only
        self.max_values, self.histograms = max_values, histograms
        self.module, self.entry = module, module.entry
        self.ops = [op for op in self.entry.walk() if not _inside_combine(op)]
        self.facts = Facts(module, self.ops, signature)
        self.lanes = Lanes(module)
        self.left_out: Counter[str] = Counter()

    def plan(self, addresses: bool, trace: bool, full: FullRequest | None, offsets: bool) -> Plan:
        chosen = [found for op in self.ops for found in self._values(op)]
        if self.stores_only:
            everything, chosen = chosen, [c for c in chosen if c.role in ("store", "atomic")]
            if len(chosen) < len(everything):
                self.left_out["stored values only"] += len(everything) - len(chosen)
        records: list[Record] = []
        rows: list[tuple[int, Chosen]] = []
        known: dict[Any, int] = {}
        kept = self._within_limit(chosen)
        for one in chosen:
            key = _group(one.record)
            if key not in known:
                if key not in kept:
                    self.left_out["max_values"] += 1
                    continue
                known[key] = len(records)
                records.append(one.record)
            rows.append((known[key], one))
        checks: list[Check] = []
        watches: list[Record] = []
        if not self.stores_only:
            checks = self._checks(rows)
            records, watches = host(records, checks)
            silent, unknown = silent_checks(self.ops, self.facts, self.lanes)
            checks += silent
            if unknown:
                self.left_out["need of lanes unknown"] += unknown
        accesses = accesses_of(self.module, self.ops, self.left_out) if addresses else []
        table = table_of(self.entry, rows, checks, self.ops, self.histograms, dict(self.left_out))
        table = replace(table, accesses=entries_of(accesses, len(records), rows))
        records += [_of_offsets(access) for access in accesses]
        stops = tuple(stops_of(self.ops)) if trace else ()
        table = replace(table, trace=points_of(stops))
        chosen_full = None
        if full is not None:
            chosen_full = choose(self.module, self.ops, rows, table.ops, accesses, full, offsets)
            table = replace(table, full=chosen_full.plan)
        return Plan(
            _without_crowding(records),
            tuple(watches),
            tuple(checks),
            tuple(accesses),
            stops,
            table,
            chosen_full,
        )

    def _within_limit(self, chosen: list[Chosen]) -> set[Any]:
        """The groups of records to keep: stores first, then loads, then the rest, each in program
        order."""
        rank = {"store": 0, "atomic": 0, "load": 1, "value": 2}
        groups: dict[Any, None] = {}
        for one in sorted(chosen, key=lambda one: rank[one.role]):
            key = _group(one.record)
            if key in groups or len(groups) < self.max_values:
                groups[key] = None
        return set(groups)

    # -- which values

    def _values(self, op: Op) -> list[Chosen]:
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
            real = REAL.match(value.type.element) is not None
            inner = not self._final(op, value)
            if is_constant(value) or (inner and not (real and op.name in LOADS)):
                continue
            whole = not real or op.name in _FROM_INT
            if whole and not self.facts.is_data(value):
                self.left_out["index arithmetic"] += 1
                continue
            if triton_dtype(value.type.element) is None:
                self.left_out[f"type {value.type.element}"] += 1
                continue
            if not op.frames:
                self.left_out["no source location"] += 1
                continue
            live = self.lanes.live(op, value)
            if live.mask is NONE:
                self.left_out["never needed"] += 1
                continue
            role = "load" if op.name in LOADS else "atomic" if op.name in ATOMICS else "value"
            pointer = self.facts.argument(op.operands[0]) if role != "value" else None
            frame = replace(op.frames[0], name=None) if inner else op.frames[0]
            found.append(Chosen(self._record(op, value, live), live.label, role, frame, pointer))
        return found

    def _stored(self, op: Op) -> list[Chosen]:
        value = op.operands[STORES[op.name]]
        if value.type.is_pointer or triton_dtype(value.type.element) is None:
            self.left_out[f"type {value.type.element}"] += 1
            return []
        if not op.frames:
            self.left_out["no source location"] += 1
            return []
        mask = UNKNOWN  # descriptors: which lanes lie inside the tensor
        if op.name == "tt.store":
            mask = leaf(op.operands[2]) if len(op.operands) > 2 else ALL
            if mask is not ALL and is_constant(op.operands[2]):
                mask = ALL
        else:
            mask = self.lanes.valid(value)
        if mask not in (ALL, UNKNOWN) and mask.type.dims != value.type.dims:
            mask = UNKNOWN
        label = "all" if mask is ALL else "unknown" if mask is UNKNOWN else "live"
        live = Live(mask, mask, op.end, label)
        pointer = self.facts.argument(op.operands[0])
        return [Chosen(self._record(op, value, live), label, "store", op.frames[0], pointer)]

    def _record(self, op: Op, value: Value, live: Live) -> Record:
        unsigned = self.facts.is_unsigned(value)
        return Record(value, op, live.mask, place_of(op.block), unsigned, live.line, live.needed)

    def _final(self, op: Op, value: Value) -> bool:
        """Whether the value leaves its statement (Note [Chosen values])."""
        own = statement_of(op)
        if not value.uses:  # of several results, or of an operation that is not pure
            return op.name in LOADS or op.name in ATOMICS
        for user, _ in value.uses:
            while user.block.parent is not None and user.block.parent.block is not op.block:
                if user.block is op.block:
                    break
                user = user.block.parent
            leaves = user.name in ("scf.yield", "scf.condition", "tt.return")
            if leaves or statement_of(user) != own:
                return True
            if user.name in _VIEWS and any(self._final(user, view) for view in user.results):
                return True
        return False

    # -- checks

    def _checks(self, rows: list[tuple[int, Chosen]]) -> list[Check]:
        """The births to look for: at operations of statements that have a row."""
        statements = {statement_of(one.record.op) for _, one in rows}
        found = []
        for rule, op, value in bearing(self.ops):
            if statement_of(op) not in statements:
                self.left_out["births not checked"] += 1
                continue
            needed, valid, line, label = self.lanes.examined(op, value)
            if needed is not NONE:
                found.append(Check(rule, op, value, needed, valid, line, label))
        return found


def _of_offsets(access: Access) -> Record:
    op, mask = access.op, access.mask
    place = place_of(op.block)
    return Record(access.offsets, op, mask, place, False, op.end, mask, access=access)


def _inside_combine(op: Op) -> bool:
    """Whether an operation lies in the region of a reduction, a scan or map_elementwise."""
    block = op.block
    while block.parent is not None:
        if block.parent.name.startswith("tt."):
            return True
        block = block.parent.block
    return False


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
