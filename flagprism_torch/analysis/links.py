"""Which findings of a step belong together (analysis.chains).

Note [Links]
Births of one kernel are linked if one can enter an operand of the other. A loaded NaN is linked to
what is behind the store that wrote it (analysis.producers), and so is a NaN that is born of an
infinity which an earlier launch stored. A finding that another one explains is *absorbed*: listed
in its chain, not reported again.

The result of an extern call is a store of a kernel whose inputs are arguments `in0`, `in1`, ...: a
NaN in it was born there if all inputs are known to have none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ..records.model import Block, Row
from ..records.tensor_log import TensorLog
from . import join
from .births import EXTERN, READS, Finding, findings, of_row
from .producers import Producers, Source

DEPTH = 64  # kernels that an infinity is followed through

Ref = tuple[int, int]  # (block, finding)


class Links:
    """The findings of all blocks of a step, grouped.

    Args:
        tensors: the log of launches; None: nothing is followed from kernel to kernel.
        earlier: stores (site, kernel, op id) that held a NaN in earlier steps -> last such step.
    """

    def __init__(
        self,
        step: int,
        blocks: Sequence[Block],
        tensors: TensorLog | None,
        earlier: Mapping[tuple[str, str, int], int],
    ) -> None:
        self.step, self.blocks = step, blocks
        self.found: dict[int, list[Finding]] = {}
        self.absorbed: set[Ref] = set()
        self.sources: dict[Ref, Source] = {}  # of loaded NaNs
        self._rows: dict[int, list[Row]] = {}
        self._parent: dict[Ref, Ref] = {}
        self.producers = Producers(step, blocks, self.rows, tensors, earlier)
        for number, block in enumerate(blocks):
            records = block.records
            bad = records["nan"].any() or records["posinf"].any() or records["neginf"].any()
            if bad or any(block.table.checks[n].kind == "birth" for n in block.found):
                self.found[number] = findings(step, block, self.rows(number))
        externs = [number for number in self.found if self._is_extern(number)]
        for number in externs:
            self._extern_infinity(number)
        for number in self.found:
            for index in range(len(self.found[number])):
                if number in externs:
                    self._extern((number, index))
                else:
                    self._link((number, index))

    def rows(self, block: int) -> list[Row]:
        if block not in self._rows:
            self._rows[block] = join.rows(self.step, [self.blocks[block]])
        return self._rows[block]

    def at(self, ref: Ref) -> Finding:
        return self.found[ref[0]][ref[1]]

    def groups(self) -> list[list[Ref]]:
        """The linked findings: blocks in the order of their first finding, and within a block in
        the order of values."""
        groups: dict[Ref, list[Ref]] = {}
        for block, found in self.found.items():
            for index in range(len(found)):
                groups.setdefault(self._root((block, index)), []).append((block, index))
        for group in groups.values():
            begins: dict[int, int] = {}
            for ref in group:
                launch = self.at(ref).anomaly.launch
                begins[ref[0]] = min(begins.get(ref[0], launch), launch)
            group.sort(key=lambda ref: (begins[ref[0]], ref))
        return list(groups.values())

    def _root(self, ref: Ref) -> Ref:
        while ref in self._parent:
            ref = self._parent[ref]
        return ref

    def _union(self, one: Ref, other: Ref) -> None:
        a, b = sorted((self._root(one), self._root(other)))
        if a != b:
            self._parent[b] = a

    def _link(self, ref: Ref) -> None:
        block, one = ref[0], self.at(ref)
        if one.birth:
            for index, other in enumerate(self.found[block]):
                if other.birth and (other.check in one.leads or other.check == one.check):
                    self._union(ref, (block, index))
            if one.infinite:
                for entry in self.blocks[block].table.ops:
                    row = self.rows(block)[entry.op_id]
                    if entry.role in READS and has_inf(row) and one.check in entry.leads:
                        self._follow(ref, entry.pointer)
            return
        entry = self.blocks[block].table.ops[one.anomaly.op_id]
        if entry.role in READS:
            self.sources[ref] = self._source(ref, entry.pointer)
            self._absorb(ref, self.sources[ref])

    def _follow(self, ref: Ref, pointer: str | None) -> None:
        for origin in self._infinities(pointer, self.at(ref).anomaly.launch):
            self._union(ref, origin)

    def _absorb(self, ref: Ref, source: Source) -> None:
        if source.kind == "row":
            origin = self._behind(source.block, source.op_id, source.launch)
            if origin is not None and origin != ref:
                self._union(ref, origin)
                self.absorbed.add(ref)
        elif source.kind == "earlier":
            self.absorbed.add(ref)

    def _source(self, ref: Ref, pointer: str | None) -> Source:
        """The producer of a NaN that was loaded. Where the row holds infinities too, its first
        launch may be one without a NaN, and only a producer that is found counts."""
        block, anomaly = self.blocks[ref[0]], self.at(ref).anomaly
        source = self.producers.of(pointer, anomaly.launch, has_nan, self._explains)
        mixed = has_inf(self.rows(ref[0])[anomaly.op_id]) and block.launches > 1
        return Source("unknown") if mixed and source.kind != "row" else source

    def _explains(self, block: int, op_id: int, launch: int) -> bool:
        return self._behind(block, op_id, launch) is not None

    def _behind(self, block: int, op_id: int, launch: int) -> Ref | None:
        """The finding behind a NaN in a row, by that launch: a NaN rather than an infinity."""
        fitting = [
            (one.anomaly.kind != "nan", (block, index))
            for index, one in enumerate(self.found.get(block, ()))
            if op_id in one.reaches and one.anomaly.launch <= launch
        ]
        return min(fitting)[1] if fitting else None

    def _infinities(self, pointer: str | None, launch: int, depth: int = 0) -> list[Ref]:
        """The births of the infinities that a launch loaded, also through kernels that handed
        them on."""
        source = self.producers.of(pointer, launch, has_inf)
        if source.kind != "row" or depth == DEPTH:
            return []
        for index, one in enumerate(self.found.get(source.block, ())):
            if (
                one.anomaly.kind == "inf"
                and source.op_id in one.reaches
                and one.anomaly.launch <= source.launch
            ):
                return [(source.block, index)]
        if self._is_extern(source.block):
            pointers: list[str | None] = list(self.producers.inputs(source.launch))
        else:
            rows = self.rows(source.block)
            pointers = [
                entry.pointer
                for entry in self.blocks[source.block].table.ops
                if entry.role in READS
                and has_inf(rows[entry.op_id])
                and source.op_id in entry.reaches
            ]
        return [ref for p in pointers for ref in self._infinities(p, source.launch, depth + 1)]

    # -- extern calls

    def _is_extern(self, block: int) -> bool:
        return any(entry.op == EXTERN for entry in self.blocks[block].table.ops)

    def _extern_infinity(self, number: int) -> None:
        """Adds the birth of an infinity in a result whose inputs were all finite."""
        block, row = self.blocks[number], self.rows(number)[0]
        first = block.firsts.get(row.op_id)
        if not has_inf(row) or row.nan or first is None:
            return
        names = self.producers.inputs(first[0])
        clean = [self.producers.of(name, first[0], _bad).kind == "clean" for name in names]
        if clean and all(clean):
            cause = f"{row.statement} overflows {row.dtype}"
            anomaly = of_row(self.step, block, row, "inf", "born", cause)
            one = Finding(anomaly, 0, frozenset((0,)), sure=True, birth=True)
            self.found[number].append(one)

    def _extern(self, ref: Ref) -> None:
        """Where the NaN of an extern result comes from."""
        one = self.at(ref)
        if one.anomaly.kind == "inf":
            return
        launch, name = one.anomaly.launch, one.anomaly.statement
        inputs = self.producers.inputs(launch)
        sources = [self._source(ref, pointer) for pointer in inputs]
        for source in sources:
            self._absorb(ref, source)
        if ref in self.absorbed:
            self.sources[ref] = next(s for s in sources if s.kind in ("row", "earlier"))
        elif sources and all(source.kind == "clean" for source in sources):
            finite = [self.producers.of(p, launch, has_inf).kind == "clean" for p in inputs]
            cause = f"{name} of finite values gives NaN" if all(finite) else f"made by {name}"
            born = dataclasses.replace(one.anomaly, verdict="born", cause=cause)
            self.found[ref[0]][ref[1]] = dataclasses.replace(one, anomaly=born, birth=True)
            for pointer in inputs:
                self._follow(ref, pointer)


def has_nan(row: Row) -> bool:
    return row.nan > 0


def has_inf(row: Row) -> bool:
    return row.posinf + row.neginf > 0


def _bad(row: Row) -> bool:
    return row.nonfinite > 0
