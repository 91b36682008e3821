"""The tensor log: who wrote what an argument points to, against a map of single bytes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flagprism_torch.records.model import CallSite, Launch, OpEntry, OpTable, Origin, TensorNote
from flagprism_torch.records.tensor_log import UNSEEN, TensorLog, Writer

SITE = CallSite("model.py:1", "kernel", 0, Origin())


def entry(role: str, pointer: str | None) -> OpEntry:
    return OpEntry(0, "tt.store", "fp32", (4,), "all", "k.py", 1, None, "s", role, pointer)


def table(*written: str | None, left_out: dict[str, int] | None = None) -> OpTable:
    ops = (entry("load", "read"), *(entry("store", name) for name in written))
    return OpTable("kernel", "k.py", 1, ops, left_out or {})


def launch(
    number: int, tensors: dict[str, tuple[int, int]], *written: str | None, step: int = 0, **kw: Any
) -> Launch:
    notes = tuple(TensorNote(name, *place) for name, place in tensors.items())
    return Launch(number, step, SITE, table(*written, **kw), (1, 1, 1), notes)


def log_of(*launches: Launch, **options: int) -> TensorLog:
    log = TensorLog(**options)
    for one in launches:
        log.note(one)
    return log


def test_the_latest_earlier_writer_is_named():
    first = launch(0, {"out": (100, 16)}, "out")
    second = launch(1, {"out": (100, 16)}, "out")
    reader = launch(2, {"x": (108, 4), "out": (500, 4)}, "out")
    later = launch(3, {"out": (100, 16)}, "out")
    log = log_of(first, second, reader, later)
    assert log.writer_before(reader, "x") == Writer(second, "out")
    assert [w.launch.number for w in log.writers_before(reader, "x")] == [1, 0]
    assert log.writer_before(reader, "out") is None  # its own store is not earlier
    assert log.writer_before(reader, "no such argument") is None
    assert log.knows_before(reader)


@pytest.mark.parametrize(
    ("place", "found"),
    [((99, 1), False), ((99, 2), True), ((115, 1), True), ((116, 4), False), ((104, 0), False)],
)
def test_ranges_are_half_open(place: tuple[int, int], found: bool):
    reader = launch(1, {"x": place})
    log = log_of(launch(0, {"out": (100, 16)}, "out"), reader)
    assert (log.writer_before(reader, "x") is not None) is found


def test_an_atomic_writes_and_a_load_does_not():
    ops = (entry("atomic", "sum"), entry("load", "x"))
    both = (TensorNote("sum", 0, 8), TensorNote("x", 8, 8))
    first = Launch(0, 0, SITE, OpTable("kernel", "k.py", 1, ops), (1, 1, 1), both)
    reader = launch(1, {"a": (0, 8), "b": (8, 8)})
    log = log_of(first, reader)
    assert log.writer_before(reader, "a") == Writer(first, "sum")
    assert log.writer_before(reader, "b") is None


@pytest.mark.parametrize(
    ("written", "left_out", "suspected"),
    [
        (("out",), {}, False),
        (("out", None), {}, True),  # a store through a pointer that was not traced
        (("out",), {"index arithmetic": 3}, False),
        (("out",), {"noinline call": 1}, True),
        (("out",), {"type !tt.ptr<f32>": 1}, True),
        (("out",), {"max_values": 1}, False),  # stores come first, and a load was kept
        ((), {UNSEEN: 1}, True),
    ],
)
def test_a_launch_with_hidden_stores_may_have_written(
    written: tuple[str | None, ...], left_out: dict[str, int], suspected: bool
):
    sure = launch(0, {"out": (100, 8)}, "out")
    passing = launch(1, {"in": (100, 8), "out": (200, 8)}, *written, left_out=left_out)
    reader = launch(2, {"x": (100, 8)})
    log = log_of(sure, passing, reader)
    expected = Writer(passing, "in", certain=False) if suspected else Writer(sure, "out")
    assert log.writer_before(reader, "x") == expected


def test_max_values_can_leave_out_stores_if_only_stores_were_kept():
    only_stores = OpTable("kernel", "k.py", 1, (entry("store", "out"),), {"max_values": 2})
    notes = (TensorNote("out", 0, 8), TensorNote("other", 8, 8))
    reader = launch(1, {"x": (8, 8)})
    log = log_of(Launch(0, 0, SITE, only_stores, (1, 1, 1), notes), reader)
    found = log.writer_before(reader, "x")
    assert found is not None and not found.certain


def test_steps_are_apart():
    reader = launch(1, {"x": (0, 8)}, step=1)
    log = log_of(launch(0, {"out": (0, 8)}, "out", step=0), reader)
    assert log.writer_before(reader, "x") is None and log.knows_before(reader)


def test_old_steps_make_room():
    launches = [launch(n, {"out": (0, 8)}, "out", step=n // 4) for n in range(20)]
    log = log_of(*launches, capacity=10)
    kept = [n for n in range(20) if log.launch(n // 4, n) is not None]
    assert kept == list(range(12, 20))  # a third step would not fit
    assert not log.knows_before(launches[7]) and log.writer_before(launches[7], "out") is None
    log.note(launch(3, {"out": (0, 8)}, "out", step=0))  # of a step that is gone
    assert log.launch(0, 3) is None
    assert log_of(*launches, steps=2).launch(2, 11) is None


def test_a_full_log_names_nobody_it_cannot_be_sure_of():
    launches = [launch(n, {"out": (0, 8)}, "out") for n in range(6)]
    log = log_of(*launches, capacity=4)
    assert log.dropped(0) == 2
    found = log.writer_before(launches[3], "out")
    assert found is not None and found.launch.number == 2
    assert log.writer_before(launches[4], "out") is not None  # everything before it is known
    assert not log.knows_before(launches[5]) and log.writer_before(launches[5], "out") is None


def test_threads_may_note_out_of_order():
    log = TensorLog()
    threads = [
        threading.Thread(
            target=lambda k=k: [
                log.note(launch(n, {"out": (n % 7, 8)}, "out")) for n in range(k, 4000, 4)
            ]
        )
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader = launch(4000, {"x": (0, 1)})
    log.note(reader)
    found = log.writer_before(reader, "x")
    assert found is not None and found.launch.number == max(n for n in range(4000) if n % 7 == 0)


PLACES = st.tuples(st.integers(0, 30), st.integers(0, 8))
LAUNCHES = st.lists(
    st.tuples(st.lists(st.tuples(PLACES, st.booleans()), max_size=3), st.integers(0, 1)),
    min_size=1,
    max_size=12,
)


@given(LAUNCHES, st.permutations(range(12)))
def test_against_a_map_of_bytes(described: Any, order: list[int]):
    """Oracle: for every byte of each step the numbers of the launches that wrote it, in order."""
    launches = []
    for number, (arguments, step) in enumerate(described):
        places = {f"a{k}": place for k, (place, _) in enumerate(arguments)}
        written = [f"a{k}" for k, (_, writes) in enumerate(arguments) if writes]
        launches.append(launch(number, places, *written, step=step))
    log = log_of(*(launches[k] for k in order if k < len(launches)))
    wrote: dict[tuple[int, int], set[int]] = {}
    for number, (arguments, step) in enumerate(described):
        for k, ((start, size), _) in enumerate(arguments):
            before = set()
            for byte in range(start, start + size):
                before |= wrote.get((step, byte), set())
            found = [w.launch.number for w in log.writers_before(launches[number], f"a{k}")]
            assert found == sorted(before, reverse=True)
        for (start, size), writes in arguments:
            for byte in range(start, start + size) if writes else ():
                wrote.setdefault((step, byte), set()).add(number)
