"""Findings of a step as anomalies: one per causal chain, with what became of it.

Note [Hidden]
A chain is hidden if no store or atomic that it can enter holds a non-finite lane. Where the table
may lack stores, or an atomic takes a value that it does not show, nobody knows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..records.layout import is_float
from ..records.model import Anomaly, Block, Row
from ..records.tensor_log import TensorLog, hides_stores
from .links import Links, Ref, has_inf
from .totals import STORED

LISTED = 64  # births, and values that were passed, of one anomaly

Store = tuple[str, str, int]  # site, kernel, op id


@dataclass(frozen=True)
class Chain:
    """`order`: sorts the anomalies of a step. `check`: number of the check of its head, -1 for a
    row. `stores`: where its NaN was stored. `earlier`: a store of an earlier step that explains all
    of it."""

    anomaly: Anomaly
    order: tuple[Any, ...]
    check: int = -1
    hidden: bool = False
    stores: tuple[Store, ...] = ()
    earlier: Store | None = None


def chains(
    step: int,
    blocks: Sequence[Block],
    tensors: TensorLog | None = None,
    earlier: Mapping[Store, int] = MappingProxyType({}),
    name_of: Callable[[int], str | None] = lambda address: None,
) -> list[Chain]:
    """The chains of a step.

    Args:
        blocks: all blocks of the step.
        tensors: the log of launches, to follow values from kernel to kernel.
        earlier: stores that held a NaN in earlier steps -> last such step.
        name_of: name of the parameter or buffer at an address.
    """
    links = Links(step, blocks, tensors, earlier)
    return [_chain(links, group, name_of) for group in links.groups()]


def _chain(links: Links, group: list[Ref], name_of: Callable[[int], str | None]) -> Chain:
    heads = [ref for ref in group if ref not in links.absorbed] or group[:1]
    head, one = heads[0], links.at(heads[0])
    nan = any(links.at(ref).anomaly.kind == "nan" for ref in group)
    reached = _reached(links, group)
    bad = [row for _, row in reached if row.role in STORED and row.nonfinite]
    stored_nan = any(row.nan for row in bad)
    known = bool(bad) or all(_stores_known(links, ref) for ref in group)
    sure = any(links.at(ref).sure for ref in heads)
    severity = _severity(nan, stored_nan, bool(bad) or not known, sure)

    cause, details = _origin(links, head, name_of)
    if nan:
        details["stored_nan"] = stored_nan if known else None
    passed = _passed(links, heads, reached, nan)
    if passed:
        details["passed"] = tuple(passed[:LISTED])
        visible = [entry for entry in passed if entry["role"] in STORED]
        if visible:
            details["visible"] = visible[-1]
    births = [links.at(ref).anomaly for ref in heads if links.at(ref).birth]
    left_out = max(len(births) - LISTED, 0) + max(len(passed) - LISTED, 0)
    if left_out:
        details["left_out"] = left_out
    anomaly = dataclasses.replace(
        one.anomaly,
        severity=severity,
        cause=cause,
        births=tuple(dataclasses.replace(b, severity=severity) for b in births[:LISTED]),
        details=MappingProxyType({**one.anomaly.details, **details}),
    )
    absorbed = all(ref in links.absorbed for ref in group)
    source = links.sources.get(head)
    return Chain(
        anomaly,
        (0 if nan else 1, anomaly.launch, one.order, anomaly.kernel, anomaly.site),
        one.check,
        known and not bad,
        tuple((row.site, row.kernel, row.op_id) for row in bad if row.nan),
        source.store if absorbed and source is not None else None,
    )


def _severity(nan: bool, stored_nan: bool, left: bool, sure: bool) -> str:
    """`left`: whether a non-finite value left the kernel, or may have."""
    if stored_nan:
        return "error" if sure else "warning"
    if left or nan:
        return "warning" if sure else "info"
    return "info"


def _reached(links: Links, group: Iterable[Ref]) -> list[tuple[int, Row]]:
    """(block, row) of all rows that a chain can enter, in the order of the group and of values."""
    reached: dict[int, set[int]] = {}
    for ref in group:
        reached.setdefault(ref[0], set()).update(links.at(ref).reaches)
    return [
        (block, links.rows(block)[op_id])
        for block, op_ids in reached.items()
        for op_id in sorted(op_ids)
    ]


def _stores_known(links: Links, ref: Ref) -> bool:
    """Whether the rows that a finding can enter show everything that leaves the kernel."""
    table = links.blocks[ref[0]].table
    entries = (table.ops[op_id] for op_id in links.at(ref).reaches)
    shown = not any(entry.role == "atomic" and is_float(entry.dtype) for entry in entries)
    return shown and not hides_stores(table)


def _passed(
    links: Links, heads: Sequence[Ref], reached: Sequence[tuple[int, Row]], nan: bool
) -> list[Mapping[str, Any]]:
    """Rows that hold what was born: of the first kernel all, of later ones what they store."""
    own = {(ref[0], links.at(ref).anomaly.op_id) for ref in heads}
    first = heads[0][0]
    return [
        MappingProxyType(
            {
                name: getattr(row, name)
                for name in ("kernel", "module", "phase", "statement", "site", "op_id", "role",
                             "nan", "posinf", "neginf")
            }
        )
        for block, row in reached
        if (row.nan if nan else has_inf(row))
        and ((block, row.op_id) not in own or row.role in STORED)
        and (block == first or row.role in STORED)
    ]  # fmt: skip


def _origin(
    links: Links, ref: Ref, name_of: Callable[[int], str | None]
) -> tuple[str, dict[str, Any]]:
    """The cause of a head and, for a loaded value, what is known of its producer."""
    anomaly, source = links.at(ref).anomaly, links.sources.get(ref)
    if source is None:
        return anomaly.cause, {}
    block = links.blocks[ref[0]]
    pointer = block.table.ops[anomaly.op_id].pointer
    if source.kind == "outside":
        what = _name(links, block, pointer, anomaly.launch, name_of)
        named = f" ({what})" if what else ""
        return f"produced outside Triton: argument {pointer}{named}", {"name": what} if what else {}
    if source.writer is not None and source.kind in ("call", "maybe"):
        writer = source.writer.launch.table.kernel
        if source.kind == "call" and source.writer.certain:
            return f"produced by {writer}", {"producer": writer}
        return f"{anomaly.cause}, which {writer} may have written", {}
    return anomaly.cause, {}


def _name(
    links: Links,
    block: Block,
    pointer: str | None,
    launch: int,
    name_of: Callable[[int], str | None],
) -> str | None:
    """What the program calls the tensor behind an argument."""
    known = block.site.origin.inputs.get(pointer or "")
    if known is not None:
        return known
    note = links.producers.launch(launch)
    for tensor in note.tensors if note is not None else ():
        if tensor.name == pointer:
            return name_of(tensor.address)
    return None
