"""From scratch to ledger: folding, buffers on one stream, merging of launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from oracle import entry_of, record_of

from flagprism_torch.backends.cpu import register, unregister
from flagprism_torch.records import buffers, fold, native
from flagprism_torch.records.buffers import RecordBuffers, words_of
from flagprism_torch.records.layout import (
    HIST_BUCKETS,
    HIST_SHARDS,
    RECORD_DTYPE,
    RECORD_WORDS,
    pack_first,
)
from flagprism_torch.records.ledger import KEPT_STEPS, Ledger
from flagprism_torch.records.model import CallSite, Launch, OpTable, Origin

COUNTERS = ("executions", "live", "nan", "posinf", "neginf", "zero")
KEYS = ("min_key", "max_key", "first")
SITE = CallSite("user.py:1", "kernel", 0, Origin())


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    registered = register("record buffers")  # False beside a GPU
    yield
    if registered:
        unregister("record buffers")


def random_records(slots: int, ops: int) -> np.ndarray:
    rng = np.random.default_rng(slots * 100 + ops)
    records = np.zeros((slots, ops), RECORD_DTYPE)
    for name in COUNTERS:
        records[name] = rng.integers(0, 1 << 40, (slots, ops))
    for name in KEYS:
        records[name] = rng.integers(0, (1 << 64) - 1, (slots, ops), np.uint64, endpoint=True)
    records["sum"] = rng.standard_normal((slots, ops)) * 1e6
    records["sumsq"] = rng.random((slots, ops)) * 1e12
    records[rng.random((slots, ops)) < 0.3] = np.zeros((), RECORD_DTYPE)
    return records


def folded_by_numpy(records: np.ndarray) -> np.ndarray:
    out = np.zeros(records.shape[1:], RECORD_DTYPE)
    for name in COUNTERS:
        out[name] = records[name].sum(0)
    for name in KEYS:
        out[name] = records[name].max(0)
    for name in ("sum", "sumsq"):
        out[name] = records[name].sum(0)
    return out


def compare(found: Any, expected: Any) -> None:
    for name in (*COUNTERS, *KEYS, "scale", "flags"):
        assert np.array_equal(found[name], expected[name]), name
    np.testing.assert_allclose(found["sum"], expected["sum"], rtol=1e-12, atol=1e-4)
    np.testing.assert_allclose(found["sumsq"], expected["sumsq"], rtol=1e-12)


def words(records: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(records.tobytes(), np.int32).copy())


def decoded(tensor: torch.Tensor) -> np.ndarray:
    return np.frombuffer(tensor.cpu().numpy().tobytes(), RECORD_DTYPE)


@pytest.mark.parametrize("ops", [1, 3])
@pytest.mark.parametrize(("slots", "checks"), [(1, 0), (63, 1), (1024, 5), (1025, 50), (2500, 7)])
def test_fold(slots: int, checks: int, ops: int, device: str) -> None:
    """The kernel, the extension and NumPy agree; the kernel leaves its inputs zero."""
    records = random_records(slots, ops)
    expected = folded_by_numpy(records)
    out = torch.zeros(ops * RECORD_WORDS, dtype=torch.int32)
    native.fold(words(records), out, slots, ops)
    compare(decoded(out), expected)

    scratch = words(records).to(device).view(torch.int64)
    chunks = fold.chunks_of(slots)
    partial = torch.full((ops * chunks * 12,), -1, dtype=torch.int64, device=device)
    tickets = torch.zeros(ops + chunks, dtype=torch.int32, device=device)
    target = torch.full((ops * 12 + checks * 6,), -1, dtype=torch.int64, device=device)
    found = torch.arange(1, checks * 6 + 1, device=device)
    moved = found.clone()
    for _ in range(2):  # the second time there is nothing left
        fold.launch(scratch, partial, tickets, target, slots, ops, found, stream=0)
        compare(decoded(target[: ops * 12]), expected)
        assert torch.equal(target[ops * 12 :], moved)
        assert not scratch.any() and not tickets.any() and not found.any()
        expected, moved = np.zeros(ops, RECORD_DTYPE), torch.zeros_like(moved)


# ------------------------------------------------------------------ buffers


def table_of(ops: int, histograms: int = 0, kernel: str = "kernel", **fields: Any) -> OpTable:
    listed = [
        entry_of(k, "arith.addf", np.zeros(4), "fp32", record=k,
                 histogram=k if k < histograms else -1, **fields)
        for k in range(ops)
    ]  # fmt: skip
    return OpTable(kernel, "kernel.py", 1, tuple(listed))


def launch_of(number: int, table: OpTable, grid: tuple[int, int, int], step: int = 0) -> Launch:
    return Launch(number, step, SITE, table, grid)


class Consumer:
    def __init__(self) -> None:
        self.seen: list[tuple[int, np.ndarray, np.ndarray]] = []

    def __call__(self, launches: list[tuple[Launch, int]], words: torch.Tensor) -> None:
        for launch, start in launches:
            data = words[start : start + words_of(launch.table)]
            cut = launch.table.records * RECORD_WORDS
            counts = data[cut:].clone().view(torch.int64).numpy()
            self.seen.append((launch.number, decoded(data[:cut]), counts))


def nothing_lost(launch: Launch, reason: str) -> None:
    raise AssertionError(f"records of {launch} are lost: {reason}")


def writer(records: np.ndarray, histograms: np.ndarray | None = None) -> Any:
    """What a twin does: checks that scratch is zero, leaves its records in it."""

    def call(scratch: torch.Tensor) -> str:
        shards = 0 if histograms is None else histograms.size * 2
        data = words(records)
        assert not scratch[: shards + data.numel()].any()
        if histograms is not None:
            scratch[:shards].view(torch.int64).copy_(torch.from_numpy(histograms.reshape(-1)))
        scratch[shards : shards + data.numel()] = data.to(scratch.device)
        return "result"

    return call


def test_launches_of_one_stream(device: str) -> None:
    """Every launch finds zeroed scratch, whatever shape the one before had."""
    consumer = Consumer()
    owner = RecordBuffers(consumer, lost=nothing_lost)
    shapes = [(5, 2, 0), (40, 1, 1), (3, 7, 0), (1500, 2, 2), (5, 2, 0)]
    expected = []
    for number, (programs, ops, blocks) in enumerate(shapes):
        table, records = table_of(ops, blocks), random_records(programs, ops)
        rng = np.random.default_rng(number)
        counts = rng.integers(0, 1000, (HIST_SHARDS, blocks, HIST_BUCKETS)) if blocks else None
        note = launch_of(number, table, (programs, 1, 1))
        result = owner.launch(note, torch.device(device), 0, 0, writer(records, counts))
        assert result == "result"
        total = np.zeros(0) if counts is None else counts.sum(0).reshape(-1)
        expected.append((folded_by_numpy(records), total))
    assert not consumer.seen and owner.oldest_step() == 0
    owner.drain()
    assert owner.oldest_step() is None
    assert [number for number, *_ in consumer.seen] == [0, 1, 2, 3, 4]
    for (_, found, counts), (records, total) in zip(consumer.seen, expected, strict=True):
        compare(found, records)
        assert np.array_equal(counts, total)


def test_shared_slots(device: str) -> None:
    consumer = Consumer()
    owner = RecordBuffers(consumer, lost=nothing_lost)
    records = random_records(8, 3)
    note = launch_of(0, table_of(3), (1000, 1, 1))
    owner.launch(note, torch.device(device), 0, 8, writer(records))
    owner.drain()
    compare(consumer.seen[0][1], folded_by_numpy(records))


def test_a_full_buffer_is_sent_off(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More launches than the folded area holds: none is lost, and the order stays."""
    monkeypatch.setattr(buffers, "FOLDED_WORDS", 3 * 2 * RECORD_WORDS)
    consumer = Consumer()
    owner = RecordBuffers(consumer, lost=nothing_lost)
    table = table_of(2)
    all_records = [random_records(4 + k, 2) for k in range(10)]
    for number, records in enumerate(all_records):
        note = launch_of(number, table, (4 + number, 1, 1), step=number)
        owner.launch(note, torch.device(device), 0, 0, writer(records))
    large = random_records(2, 9)  # alone larger than the area
    owner.launch(launch_of(10, table_of(9), (2, 1, 1)), torch.device(device), 0, 0, writer(large))
    owner.drain()
    assert [number for number, *_ in consumer.seen] == list(range(11))
    for (_, found, _), records in zip(consumer.seen, [*all_records, large], strict=True):
        compare(found, folded_by_numpy(records))


def test_a_failed_launch_leaves_nothing(device: str) -> None:
    consumer = Consumer()
    owner = RecordBuffers(consumer, lost=nothing_lost)
    table, records = table_of(2), random_records(6, 2)

    def failing(scratch: torch.Tensor) -> None:
        scratch[:50] = 7
        raise RuntimeError("no such launch")

    with pytest.raises(RuntimeError, match="no such launch"):
        owner.launch(launch_of(0, table, (6, 1, 1)), torch.device(device), 0, 0, failing)
    owner.launch(launch_of(1, table, (6, 1, 1)), torch.device(device), 0, 0, writer(records))
    owner.drain()
    assert [number for number, *_ in consumer.seen] == [1]
    compare(consumer.seen[0][1], folded_by_numpy(records))


def test_no_memory_for_records(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the launch nothing runs; after it the result stands and the loss is told."""
    consumer, lost = Consumer(), []
    owner = RecordBuffers(consumer, lost=lambda launch, reason: lost.append((launch, reason)))
    table, records = table_of(2), random_records(6, 2)
    note, where = launch_of(0, table, (6, 1, 1)), torch.device(device)
    real = native.new_buffer

    def full(words: int, device: torch.device) -> torch.Tensor:
        raise torch.OutOfMemoryError("out of memory\nfor sure")

    monkeypatch.setattr(native, "new_buffer", full)
    with pytest.raises(buffers.NoBufferError, match=r"^out of memory$"):
        owner.launch(note, where, 0, 0, lambda scratch: pytest.fail("launched"))
    monkeypatch.setattr(native, "new_buffer", real)
    owner.launch(note, where, 0, 0, writer(records))
    owner.drain()
    sizes: list[int] = []

    def second_fails(words: int, device: torch.device) -> torch.Tensor:
        sizes.append(words)
        return real(words, device) if len(sizes) == 1 else full(words, device)

    monkeypatch.setattr(native, "new_buffer", second_fails)
    other = RecordBuffers(consumer, lost=lambda launch, reason: lost.append((launch, reason)))
    assert other.launch(note, where, 0, 0, writer(records)) == "result"
    assert lost == [(note, "out of memory")]
    monkeypatch.setattr(native, "new_buffer", real)
    other.launch(note, where, 0, 0, writer(records))
    other.drain()
    assert [number for number, *_ in consumer.seen] == [0, 0]


def test_a_launch_without_programs(device: str) -> None:
    consumer = Consumer()
    owner = RecordBuffers(consumer, lost=nothing_lost)
    note = launch_of(0, table_of(1), (0, 5, 1))
    assert owner.launch(note, torch.device(device), 0, 0, lambda scratch: 3) == 3
    owner.drain()
    assert not consumer.seen


# ------------------------------------------------------------------ ledger


def words_for(records: list[np.void]) -> torch.Tensor:
    return words(np.array(records, RECORD_DTYPE))


def test_ledger_merges_launches_of_different_grids() -> None:
    ledger, table = Ledger(), table_of(1, shape=(2, 4))
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((2, 4)) for _ in range(3)]
    data[1][1, 2], data[2][0, 0] = np.nan, np.inf
    grids = [(4, 1, 1), (3, 2, 2), (7, 1, 1)]
    for number, (values, grid) in enumerate(zip(data, grids, strict=True)):
        # program 8 of (3, 2, 2) is (2, 0, 1)
        record = record_of(values, "fp32", program=8 if number == 1 else 0, iteration=5)
        ledger.add([(launch_of(number, table, grid), 0)], words_for([record]))
    (block,) = ledger.blocks()
    assert (block.launches, block.first_launch) == (3, 0)
    whole = record_of(np.stack(data), "fp32", executions=3)
    for name in (*COUNTERS, "min_key", "max_key"):
        assert block.records[0][name] == whole[name], name
    assert block.records[0]["sum"] == pytest.approx(whole["sum"])
    assert block.records[0]["sumsq"] == pytest.approx(whole["sumsq"])
    # of the earliest launch, whichever place is the smallest number
    assert block.firsts == {0: (1, (2, 0, 1), 5, (1, 2))}


def test_ledger_takes_launches_in_any_order() -> None:
    ledger, table = Ledger(), table_of(1)
    for number in (2, 1, 3):
        record = record_of(np.array([0, np.nan, 0, 0]), "fp32", program=number)
        ledger.add([(launch_of(number, table, (9, 1, 1)), 0)], words_for([record]))
    (block,) = ledger.blocks()
    assert block.first_launch == 1
    assert block.firsts == {0: (1, (1, 0, 0), 0, 1)}


def test_ledger_spreads_shared_records() -> None:
    """Entries that share a record on the device have rows of their own."""
    first, second, third = (
        entry_of(k, "op", np.zeros(4), "fp32", record=r) for k, r in enumerate((0, 1, 0))
    )
    table = OpTable("kernel", "kernel.py", 1, (first, second, third))
    records = [record_of(np.array([1.0, np.inf, 2, 3]), "fp32"), record_of(np.ones(4), "fp32")]
    ledger = Ledger()
    ledger.add([(launch_of(0, table, (1, 1, 1)), 0)], words_for(records))
    (block,) = ledger.blocks()
    assert [int(r["posinf"]) for r in block.records] == [1, 0, 1]
    assert sorted(block.firsts) == [0, 2]


def test_ledger_keeps_the_last_steps() -> None:
    ledger, table = Ledger(), table_of(1)
    for step in range(KEPT_STEPS + 4):
        record = record_of(np.full(4, float(step)), "fp32")
        ledger.add([(launch_of(step, table, (1, 1, 1), step), 0)], words_for([record]))
    assert ledger.steps() == list(range(4, KEPT_STEPS + 4))
    (block,) = ledger.blocks(5)
    assert block.launches == 1 and block.records[0]["sum"] == 20.0
    (whole,) = ledger.blocks()
    assert whole.launches == KEPT_STEPS + 4
    with pytest.raises(KeyError):
        ledger.blocks(0)


def test_ledger_separates_sites_and_tables() -> None:
    ledger, one, other = Ledger(), table_of(1), table_of(1)
    record = words_for([record_of(np.ones(4), "fp32")])
    elsewhere = CallSite("user.py:2", "kernel", 1, Origin())
    ledger.add([(launch_of(0, one, (1, 1, 1)), 0)], record)
    ledger.add([(launch_of(1, other, (1, 1, 1)), 0)], record)
    ledger.add([(Launch(2, 0, elsewhere, one, (1, 1, 1)), 0)], record)
    ledger.add([(launch_of(3, one, (1, 1, 1)), 0)], record)
    assert [(b.site.key, b.launches) for b in ledger.blocks()] == [
        ("user.py:1", 2),
        ("user.py:1", 1),
        ("user.py:2", 1),
    ]


def test_a_program_id_that_did_not_fit_is_no_place() -> None:
    ledger, table = Ledger(), table_of(1)
    record = record_of(np.array([np.nan, 0, 0, 0]), "fp32")
    record["first"] = pack_first((1 << 28) - 1, 0, 0, 4)
    ledger.add([(launch_of(0, table, (1 << 28, 4, 1)), 0)], words_for([record]))
    (block,) = ledger.blocks()
    assert block.records[0]["nan"] == 1 and not block.firsts
