"""Who wrote what a launch loaded: the launches and extern calls before it, as the log of tensors
knows them.

Note [Producer]
The latest earlier writers of the loaded memory are asked in turn whether the row of their store
holds what was loaded (a NaN or an infinity), because a tensor may have been written in parts. A
block merges the launches of a call site, so a row only answers for a writer if its first
non-finite launch is not later than the writer.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..records.model import Block, Launch, OpEntry, OpTable, Row
from ..records.tensor_log import TensorLog, Writer
from .births import EXTERN
from .totals import STORED

WRITERS = 64  # asked for one load
LATEST = 1 << 62  # a launch number after all others
SEARCHES = 64  # in a step, for memory that no earlier step wrote: each goes through all of them


@dataclass(frozen=True)
class Source:
    """What is known of the producer of loaded memory.

    `kind`: "row", a recorded store holds the value (`block`, `op_id`, `launch`); "call", an extern
    call without a row wrote it; "maybe", a launch may have written it whose stores are not known;
    "earlier", a store of an earlier step held a NaN (`store`); "clean", a launch whose row
    does not hold the value wrote all of it; "partly", the same, but perhaps in part only;
    "outside", no launch that was seen wrote it; "unknown".
    """

    kind: str
    block: int = -1
    op_id: int = -1
    launch: int = -1
    writer: Writer | None = None
    store: tuple[str, str, int] | None = None


class Producers:
    """Answers for the blocks of one step.

    Args:
        rows: of each block.
        tensors: None if nothing is known.
        earlier: stores (site, kernel, op id) that held a NaN in earlier steps -> last such step.
    """

    def __init__(
        self,
        step: int,
        blocks: Sequence[Block],
        rows: Callable[[int], Sequence[Row]],
        tensors: TensorLog | None,
        earlier: Mapping[tuple[str, str, int], int],
    ) -> None:
        self._step, self._blocks, self._rows = step, blocks, rows
        self._tensors, self._earlier = tensors, earlier
        self._searches = 0
        self._outside: set[tuple[int, int]] = set()  # memory that no earlier step wrote
        self._index = {
            (block.site.key, id(block.table)): number for number, block in enumerate(blocks)
        }

    def launch(self, number: int) -> Launch | None:
        return None if self._tensors is None else self._tensors.launch(self._step, number)

    def inputs(self, number: int) -> list[str]:
        """Arguments that an extern call read (hooks.externs)."""
        launch = self.launch(number)
        tensors = () if launch is None else launch.tensors
        return [tensor.name for tensor in tensors if tensor.name.startswith("in")]

    def of(
        self,
        pointer: str | None,
        number: int,
        bad: Callable[[Row], bool],
        holds: Callable[[int, int, int], bool] = lambda block, op_id, launch: True,
    ) -> Source:
        """The producer of what launch `number` loaded through `pointer`.

        Args:
            bad: whether a row holds what was loaded.
            holds: `holds(block, op_id, launch)`, whether a store of that launch can hold it.
        """
        launch = self.launch(number)
        if self._tensors is None or launch is None or not _has(launch, pointer):
            return Source("unknown")
        assert pointer is not None
        known = self._tensors.writers_before(launch, pointer)
        writers = list(itertools.islice(known, WRITERS))
        for writer in writers:
            found = self._written(writer, bad, holds)
            if found is not None:
                return found
        if not self._tensors.knows_before(launch):
            return Source("unknown")
        if not writers:
            return self._before(launch, pointer)
        whole = self._wrote_all(writers[0], launch, pointer)
        return Source("clean" if whole else "partly", writer=writers[0])

    def _written(
        self,
        writer: Writer,
        bad: Callable[[Row], bool],
        holds: Callable[[int, int, int], bool],
    ) -> Source | None:
        number = writer.launch.number
        block = self._index.get((writer.launch.site.key, id(writer.launch.table)))
        if block is None:
            kind = "call" if is_extern(writer.launch.table) else "maybe"
            return Source(kind, writer=writer)
        for entry in writer.launch.table.ops:
            if entry.role in STORED and entry.pointer == writer.pointer:
                row = self._rows(block)[entry.op_id]
                if (
                    bad(row)
                    and self._since(block, entry) <= number
                    and holds(block, entry.op_id, number)
                ):
                    return Source("row", block, entry.op_id, number, writer)
        return None if writer.certain else Source("maybe", writer=writer)

    def _wrote_all(self, writer: Writer, launch: Launch, pointer: str) -> bool:
        """Whether a launch wrote all of what another one loaded: it was given a tensor around it,
        and stores as many bytes. Of several launches of a call site the average counts."""
        wanted = next(tensor for tensor in launch.tensors if tensor.name == pointer)
        given = [tensor for tensor in writer.launch.tensors if tensor.name == writer.pointer]
        block = self._index.get((writer.launch.site.key, id(writer.launch.table)))
        if not writer.certain or not given or block is None:
            return False
        inside = given[0].address <= wanted.address and (
            wanted.address + wanted.nbytes <= given[0].address + given[0].nbytes
        )
        stored = sum(
            self._rows(block)[entry.op_id].live * _bytes(entry.dtype)
            for entry in writer.launch.table.ops
            if entry.role in STORED and entry.pointer == writer.pointer
        )
        return inside and stored >= given[0].nbytes * self._blocks[block].launches

    def _since(self, block: int, entry: OpEntry) -> int:
        first = self._blocks[block].firsts.get(entry.op_id)
        return self._blocks[block].first_launch if first is None else first[0]

    def _before(self, launch: Launch, pointer: str) -> Source:
        """The same in earlier steps: memory outlives them. Their rows are gone, but stores that
        held a NaN are remembered."""
        assert self._tensors is not None
        wanted = next(tensor for tensor in launch.tensors if tensor.name == pointer)
        memory = (wanted.address, wanted.nbytes)
        if memory in self._outside:
            return Source("outside")
        if self._searches >= SEARCHES:
            return Source("unknown")
        for step in range(launch.step - 1, max(launch.step - self._tensors.kept, -1), -1):
            then = dataclasses.replace(launch, step=step, number=LATEST)
            writer = self._tensors.writer_before(then, pointer)
            if writer is None:
                continue
            for entry in writer.launch.table.ops:
                store = (writer.launch.site.key, writer.launch.table.kernel, entry.op_id)
                if entry.pointer == writer.pointer and self._earlier.get(store) == step:
                    return Source("earlier", writer=writer, store=store)
            return Source("unknown", writer=writer)
        self._searches += 1
        self._outside.add(memory)
        return Source("outside")


def _bytes(dtype: str) -> int:
    """Size of a value, from Triton's name of its type (`fp32`, `fp8e4nv`, `int1`)."""
    bits = re.search(r"\d+", dtype)
    return max(int(bits[0]) // 8, 1) if bits else 0


def is_extern(table: OpTable) -> bool:
    return bool(table.ops) and table.ops[0].op == EXTERN


def _has(launch: Launch, pointer: str | None) -> bool:
    return any(tensor.name == pointer for tensor in launch.tensors)
