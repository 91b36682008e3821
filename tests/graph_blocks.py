"""Kernels that are described by their data flow, and programs of them, for tests of verdicts and
chains."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from oracle import block_of, entry_of

from flagprism_torch.analysis.verdicts import AnomalyLog
from flagprism_torch.records.model import (
    Anomaly,
    Block,
    CheckEntry,
    Found,
    Launch,
    Operand,
    OpTable,
    Origin,
    TensorNote,
)
from flagprism_torch.records.tensor_log import UNSEEN, TensorLog

SIZE = 8  # bytes of a tensor, two values of fp32; tensor number n is at n * SIZE
Place = tuple[int, tuple[int, int, int] | None, int | None, Any, int]


@dataclass(frozen=True)
class Step:
    """One statement of a kernel: `sources` are indices of earlier statements. `born`: (NaN, +inf,
    -inf, padding) lanes that a check counted there; None: not checked. `bits`: of its places."""

    op: str
    values: Any
    sources: tuple[int, ...] = ()
    born: tuple[int, int, int, int] | None = None
    bits: int = 0
    role: str = "value"
    mask: str = "live"
    pointer: str | None = None
    rule: str = "add"
    check_mask: str = "needed"
    row: bool = True  # False: the row is that of a later value of the statement
    kind: str = "birth"


def load(values: Any, pointer: str = "in_ptr0", **fields: Any) -> Step:
    return Step("tt.load", values, role="load", pointer=pointer, **fields)


def store(source: int, values: Any, pointer: str = "out_ptr0", **fields: Any) -> Step:
    return Step("tt.store", values, (source,), role="store", pointer=pointer, **fields)


def downstream(steps: Sequence[Step], start: int) -> set[int]:
    """The statements that a value can enter, itself included."""
    found = {start}
    for index, step in enumerate(steps):
        if found & set(step.sources):
            found.add(index)
    return found


def kernel(
    steps: Sequence[Step], *, launch: int = 0, last: int | None = None, **where: Any
) -> Block:
    """A block of one program. `launch`: of the first launch, which is the first with everything
    that is bad; `last`: of the last launch, if there are several."""
    arrays = [np.array(step.values, np.float32) for step in steps]
    entries = []
    checked = [i for i, step in enumerate(steps) if step.born is not None]
    for index, (step, array) in enumerate(zip(steps, arrays, strict=True)):
        reaches = tuple(sorted(downstream(steps, index)))
        entries.append(
            entry_of(
                *(index, step.op, array, "fp32"),
                role=step.role,
                mask=step.mask,
                pointer=step.pointer,
                reaches=reaches,
                leads=tuple(leads(steps, checked, index)),
            )
        )
    block = block_of(
        [(entry, array, None) for entry, array in zip(entries, arrays, strict=True)],
        launch=launch,
        **where,
    )
    checks, found = [], {}
    for number, index in enumerate(checked):
        step = steps[index]
        entry = entries[index]
        checks.append(
            CheckEntry(
                *(step.kind, step.rule, step.op, "fp32", entry.shape, step.check_mask),
                *(entry.file, entry.line, entry.variable, entry.statement),
                operands=tuple(Operand(f"tmp{s}", s) for s in step.sources),
                op_id=index if step.row else -1,
                reaches=entry.reaches,
                leads=tuple(n for n in leads(steps, checked, index) if n != number),
            )
        )
        assert step.born is not None
        if any(step.born):
            nan, posinf, neginf, padding = step.born
            place: Place = (launch, (1, 2, 3), 4, 5, step.bits)
            found[number] = Found(
                *(nan, posinf, neginf, padding),
                place if nan else None,
                place if posinf + neginf else None,
            )
    launches = 1 if last is None else last - launch + 1
    table = dataclasses.replace(block.table, checks=tuple(checks))
    return dataclasses.replace(block, table=table, found=found, launches=launches)


def leads(steps: Sequence[Step], checked: Sequence[int], start: int) -> list[int]:
    """Checks with an operand that a value can enter."""
    reached = downstream(steps, start)
    return [n for n, index in enumerate(checked) if reached & set(steps[index].sources)]


def tensors(**at: int | tuple[int, int]) -> tuple[TensorNote, ...]:
    """Tensors by argument: number, or (number, number behind the last)."""
    places = {name: (n, n + 1) if isinstance(n, int) else n for name, n in at.items()}
    return tuple(TensorNote(k, a * SIZE, (b - a) * SIZE) for k, (a, b) in places.items())


class Run:
    """Launches of one or more steps, in order."""

    def __init__(self) -> None:
        self.log, self.anomalies_log = TensorLog(), AnomalyLog()
        self.blocks: list[Block] = []
        self.number = self.step = 0
        self.name_of: Any = {}.get

    def launch(self, name: str, steps: Sequence[Step], module: str = "m", **at: Any) -> Block:
        origin = Origin(module=module, modules=(module,), inputs=at.pop("inputs", {}))
        block = kernel(steps, launch=self.number, kernel=name, origin=origin)
        self.blocks.append(block)
        self.again(block, **at)
        return block

    def again(self, block: Block, **at: Any) -> None:
        """One more launch of a block's call site."""
        note = Launch(self.number, self.step, block.site, block.table, (1, 1, 1), tensors(**at))
        self.log.note(note)
        self.number += 1

    def extern(self, name: str, values: Any, recorded: bool = True, **at: Any) -> Block:
        steps = [Step("extern", values, role="store", pointer="out", mask="all")]
        origin = Origin(module="linear", modules=("linear",))
        block = kernel(steps, launch=self.number, kernel=name, origin=origin)
        (entry,) = block.table.ops
        table = dataclasses.replace(block.table, ops=(dataclasses.replace(entry, statement=name),))
        block = dataclasses.replace(block, table=table)
        if recorded:
            self.blocks.append(block)
        self.again(block, **at)
        return block

    def unseen(self, name: str, **at: Any) -> None:
        table = OpTable(name, "", 0, (), {UNSEEN: 1})
        site = kernel([load([1.0])], kernel=name).site
        note = Launch(self.number, self.step, site, table, (1, 1, 1), tensors(**at))
        self.log.note(note)
        self.number += 1

    def end_step(self) -> None:
        blocks, self.blocks = self.blocks, []
        self.anomalies_log.add(self.step, blocks, self.log, self.name_of)
        self.step += 1

    def anomalies(self) -> tuple[Anomaly, ...]:
        self.end_step()
        return self.anomalies_log.anomalies()

    def only(self) -> Anomaly:
        (one,) = self.anomalies()
        return one
