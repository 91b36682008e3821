"""Plain data that travels from collection to presentation; no behaviour beyond derivations."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from flagprism_torch.records.address_model import AccessEntry, TensorLayout
from flagprism_torch.records.full_model import NO_PLAN, FullPlan
from flagprism_torch.records.hint_model import Hint

Phase = Literal["forward", "backward", "optimizer", "none"]
NO_MODULE = "<none>"


@dataclass(frozen=True)
class OpEntry:
    """One probed value of a kernel; its index in `OpTable.ops` is its op id.

    `dtype` is Triton's name (fp32, bf16, fp16, fp64, fp8e4nv, fp8e5, int1, int8, uint8, ...).
    `shape` is the tile shape, () for a scalar. `mask` says which lanes the statistics are over:
    "live" (valid and needed), "all" (every lane is live), "valid" (need not known) or "unknown"
    (all lanes counted).
    `role`: load | store | atomic | value. `pointer`: the kernel argument a load or store goes
    through.
    """

    op_id: int
    op: str
    dtype: str
    shape: tuple[int, ...]
    mask: str
    file: str
    line: int
    variable: str | None
    statement: str
    role: str = "value"
    pointer: str | None = None
    histogram: int = -1  # index of the histogram block, -1 for none
    record: int = -1  # index of the record on the device; entries with equal statistics share one
    reaches: tuple[int, ...] = ()  # op ids whose values this one can enter
    leads: tuple[int, ...] = ()  # checks with an operand that this value can enter

    @property
    def numel(self) -> int:
        """Lanes of one execution."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Operand:
    """An operand of a check. `name`: the variable, constant or operation it comes from; `record`:
    op id of the entry with its statistics, -1 for none."""

    name: str
    record: int = -1


@dataclass(frozen=True)
class CheckEntry:
    """An operation whose lanes are examined one by one; its index in `OpTable.checks` is its
    number.

    `kind`: "birth" (a non-finite result of operands that do not explain it), "undefined" (needed
    lanes of a load that its mask leaves undefined), "wrap" (an integer result that does not fit),
    "stagnation" (a sum that a non-zero addend does not change), "saturation" (a cast of a value
    beyond the largest), "tf32" (dot operands that lose bits). `rule`: what the operation computes,
    for the cause (analysis.causes). `mask`: the lanes that are examined: "needed", "all" (all are
    needed) or "unknown" (need not known, all examined). `op_id`: the entry of the value itself, -1
    if it has none. `reaches`: op ids whose values the result can enter, its own included; `leads`:
    checks with an operand that the result can enter. `pointer`: of a "watch" (level 0), the kernel
    argument that the value is loaded or stored through; its `rule` are its roles, "load+store".
    """

    kind: str
    rule: str
    op: str
    dtype: str
    shape: tuple[int, ...]
    mask: str
    file: str
    line: int
    variable: str | None
    statement: str
    operands: tuple[Operand, ...] = ()
    op_id: int = -1
    reaches: tuple[int, ...] = ()
    leads: tuple[int, ...] = ()
    pointer: str | None = None

    @property
    def numel(self) -> int:
        """Lanes of one execution."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class TracePoint:
    """Where a program may be stopped: before the operation `op` of a statement; "" and line 0 for
    the end of the kernel (instrument.trace)."""

    file: str
    line: int
    statement: str
    op: str

    @property
    def is_end(self) -> bool:
        return not self.line


@dataclass(frozen=True)
class OpTable:
    """What the records of one twin mean. `left_out`: reason -> number of values without a probe;
    `full`: what it writes down lane by lane."""

    kernel: str
    file: str
    line: int
    ops: tuple[OpEntry, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    checks: tuple[CheckEntry, ...] = ()
    accesses: tuple[AccessEntry, ...] = ()
    trace: tuple[TracePoint, ...] = ()
    hints: tuple[Hint, ...] = ()
    full: FullPlan = NO_PLAN

    @functools.cached_property
    def records(self) -> int:
        """Number of records on the device per slot."""
        values = 1 + max((op.record for op in self.ops), default=-1)
        return max(values, 1 + max((access.record for access in self.accesses), default=-1))

    @property
    def check_records(self) -> int:
        """Number of check records on the device: of the checks, then one for the bounds of each
        access, then one for the sample of each access."""
        return len(self.checks) + 2 * len(self.accesses)

    def bounds(self, access: int) -> int:
        """Number of the check record for the bounds of an access."""
        return len(self.checks) + access

    def sample(self, access: int) -> int:
        """Number of the check record for the sample of an access."""
        return len(self.checks) + len(self.accesses) + access

    @functools.cached_property
    def access_order(self) -> list[int]:
        """Record of each access."""
        return [access.record for access in self.accesses]

    @functools.cached_property
    def order(self) -> list[int]:
        """Record of each op."""
        return [op.record for op in self.ops]

    @functools.cached_property
    def histograms(self) -> int:
        """Number of histogram blocks on the device."""
        return 1 + max((op.histogram for op in self.ops), default=-1)


@dataclass(frozen=True)
class StatementOrigin:
    """Owner of one value inside a generated kernel. `modules` lists all owners (merged values)."""

    module: str = NO_MODULE
    modules: tuple[str, ...] = ()
    aten: str | None = None
    model_file: str | None = None
    model_line: int | None = None
    phase: Phase = "none"


@dataclass(frozen=True)
class Origin:
    """Where a call site comes from. `statements` maps a kernel variable (`tmp7`) or, for stores, a
    pointer argument (`out_ptr0`) to its owner. `source` says how it was found: "recorded" (the
    compile-time recorder), "comments" (Inductor's own comments), "frames" (running module, eager),
    "none". `inputs`: pointer argument -> what the program calls the input of the compiled code that
    is passed (`batch['ids']`)."""

    module: str = NO_MODULE
    modules: tuple[str, ...] = ()
    phase: Phase = "none"
    aten: tuple[str, ...] = ()
    model_file: str | None = None
    model_line: int | None = None
    source: str = "none"
    statements: Mapping[str, StatementOrigin] = field(default_factory=lambda: MappingProxyType({}))
    inputs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class CallSite:
    """Identity of rows: one place that launches one kernel.

    `key` is stable in a process: "<file>:<line>" of the launching line (generated wrapper or user
    code) plus the module for eager launches. `index` numbers the call sites of one kernel, from 0.
    """

    key: str
    kernel: str
    index: int
    origin: Origin


class TensorNote(NamedTuple):
    """A tensor argument of a launch: the name of the kernel argument in TTIR, the address of the
    first byte, and the bytes from there to the end of its last element.

    A named tuple, because several are made at every launch, in half the time of a dataclass.
    """

    name: str
    address: int
    nbytes: int


@dataclass(frozen=True)
class Launch:
    """One recorded launch. `tensors`: its tensor arguments, in the order of the arguments;
    `layouts`: the same, where addresses are recorded."""

    number: int
    step: int
    site: CallSite
    table: OpTable
    grid: tuple[int, int, int]
    tensors: tuple[TensorNote, ...] = ()
    layouts: tuple[TensorLayout, ...] = ()

    @property
    def programs(self) -> int:
        """Programs that ran: none if an extent is not positive."""
        width, height, depth = self.grid
        return width * height * depth if min(self.grid) > 0 else 0


@dataclass(frozen=True)
class Found:
    """What one check found over one step (or all steps): lanes by kind (Note [Check record] in
    records.layout) and the earliest places, as (launch number, (x, y, z) or None, iteration or
    None, lane, cause bits), lane as in `Row`; None if there is none. The counters of
    silent checks have the same names, in their order. `largest`: of a wrap check, the largest
    magnitude that a result should have, if it is 2**30 or more."""

    nan: int
    posinf: int
    neginf: int
    padding: int
    first_nan: tuple[int, tuple[int, int, int] | None, int | None, Any, int] | None = None
    first_inf: tuple[int, tuple[int, int, int] | None, int | None, Any, int] | None = None
    largest: int = 0


@dataclass(frozen=True)
class Outside:
    """Lanes of one access outside of its tensors, over one step (or all steps).

    `lanes`, `executions` with such lanes; `low`, `high`: their smallest and largest offset in bytes
    from the start of the first argument's tensor; `launch`: the earliest with such lanes, whose
    first one is at `program`, `iteration` (None: unknown), `lane` (as in `Row`), `offset` (None:
    too far to tell).
    """

    lanes: int
    executions: int
    low: int
    high: int
    launch: Launch
    program: tuple[int, int, int] | None
    iteration: int | None
    lane: Any
    offset: int | None


@dataclass(frozen=True)
class Sample:
    """What the first launch of a call site tells about one access (records.layout, Note [Sample]).
    Offsets and strides in bytes; `strides` as many as axes, at most the last three, None if they
    are not known; `even`: whether all lanes lie where the strides say."""

    launch: Launch
    first: int | None
    last: int | None
    strides: tuple[int, ...] | None
    even: bool


@dataclass
class Block:
    """Merged records of one call site and op table over one step (or over all steps).

    `records`: structured array [ops] of `layout.RECORD_DTYPE`; its `first` is not used, because
    places of different launches do not compare. `firsts`: op id -> (launch number, (x, y, z),
    iteration or None, lane), of the earliest launch with a non-finite live lane; lane as in `Row`.
    `found`: check -> what it found, for checks that found something. `access_records`: structured
    array [accesses] like `records`; `outside`: access -> its lanes outside, where there are some;
    `samples`: [accesses], none without launches.
    `histograms`: int64 [histogram blocks, 64]. `launches`: merged launches. `first_launch`: number
    of the first of them.
    """

    site: CallSite
    table: OpTable
    records: Any
    histograms: Any
    launches: int = 0
    first_launch: int = 0
    firsts: dict[int, tuple[int, tuple[int, int, int], int | None, Any]] = field(
        default_factory=dict
    )
    found: dict[int, Found] = field(default_factory=dict)
    access_records: Any = ()
    outside: dict[int, Outside] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class Row:
    """Statistics of one value at one call site over one step (or all: step is None).

    Counts, `min` and `max` (over finite live lanes) are exact; `mean` and `l2` are float64 over
    finite live lanes. `min`, `max`, `mean`, `l2` are None when no finite live lane exists.
    `inexact` is True when an integer sum passed 2**53. `first_nonfinite` is ((x, y, z), iteration,
    lane), lane a row-major int for rank <= 1, a tuple otherwise; iteration None means unknown.
    `histogram`: 64 counts (records.layout, HIST_*) or None.
    """

    step: int | None
    site: str
    call: int
    module: str
    phase: str
    kernel: str
    file: str
    line: int
    variable: str | None
    statement: str
    op: str
    op_id: int
    role: str
    dtype: str
    mask: str
    executions: int
    lanes: int
    live: int
    nan: int
    posinf: int
    neginf: int
    zero: int
    min: float | int | None
    max: float | int | None
    mean: float | None
    l2: float | None
    inexact: bool
    first_nonfinite: tuple[tuple[int, int, int], int | None, Any] | None
    aten: str | None
    modules: tuple[str, ...]
    model_file: str | None
    model_line: int | None
    launches: int = 0
    histogram: tuple[int, ...] | None = None

    @property
    def nonfinite(self) -> int:
        return self.nan + self.posinf + self.neginf


# what `Anomaly.details` counts for kinds other than nan and inf
COUNTED = ("oob_lanes", "undefined_lanes", "wrapped_lanes", "lost_additions",
           "saturated_lanes", "operand_lanes_not_tf32")  # fmt: skip

# kinds that are about an argument, not about lanes
OF_ARGUMENTS = ("noncontiguous_argument", "config_dependent", "autotune_mutation", "parameter")


@dataclass(frozen=True)
class Anomaly:
    """A finding. Field meanings: docs/contract.md, section Anomaly."""

    kind: str
    verdict: str
    severity: str
    step: int
    last_step: int
    occurrences: int
    launch: int
    kernel: str
    statement: str
    file: str
    line: int
    variable: str | None
    op: str
    op_id: int
    module: str
    modules: tuple[str, ...]
    phase: str
    aten: str | None
    model_file: str | None
    model_line: int | None
    program: tuple[int, int, int] | None
    lane: Any
    iteration: int | None
    counts: Mapping[str, int]
    site: str = ""
    operands: tuple[Mapping[str, Any], ...] = ()
    cause: str = ""
    births: tuple[Anomaly, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def extent(self) -> str:
        """How much is concerned: "48 of 4800 lanes" (of all lanes if some are padding), or what
        `details` counts: "12 undefined lanes"."""
        if self.kind == "crash":
            here = [stop["programs"] for stop in self.details["reached"][:1]]
            return f"{sum(here)} of {self.details['programs']} programs stopped here"
        for thing in ("program", "execution"):  # of the watch, which knows no lanes
            bad = self.details.get(f"bad_{thing}s")
            if bad is not None:
                return f"{bad} {thing}{'s' * (bad != 1)}"
        for name in COUNTED:
            if name in self.details:
                return f"{self.details[name]} {name.replace('_', ' ')}"
        if self.kind in OF_ARGUMENTS:
            return f"argument {self.details['argument']}" if "argument" in self.details else "-"
        infinite = self.counts["posinf"] + self.counts["neginf"]
        bad = infinite if self.kind == "inf" else self.counts["nan"]
        return f"{bad} of {self.counts['lanes' if self.counts['padding'] else 'live']} lanes"

    def __str__(self) -> str:
        where = ""
        if self.program is not None:
            where = f", first at program {self.program}"
            where += f" lane {self.lane}" if self.lane is not None else ""
            if self.iteration:
                where += f" iteration {self.iteration}"
        model = f"{_short(self.model_file)}:{self.model_line}" if self.model_file else "-"
        place = f"{self.kernel} | {self.statement or '-'}"
        return (
            f"{self.verdict.upper()} {self.kind} | {self.module} | {self.aten or '-'} | {model} | "
            f"{place} | {self.extent}{where}"
        )


def _short(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]
