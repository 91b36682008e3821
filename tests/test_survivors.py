"""Records that outlive a crash: what a stopped kernel leaves, and that all else is as without."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import flagprism_torch
from flagprism_torch.errors import InvalidPointerError
from flagprism_torch.records.buffers import NoBufferError
from flagprism_torch.records.model import CallSite, Launch, OpEntry, OpTable, Origin, TracePoint
from flagprism_torch.records.survivors import Crash, HostBuffers

FAR = 1 << 22  # elements: far outside of every tensor here, near enough to be told


@triton.jit
def gather(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    at = tl.load(index_ptr + pid)
    x = tl.load(x_ptr + pid * n + lanes, mask=lanes < n, other=1.0)
    y = tl.log(x)
    z = tl.load(x_ptr + at * n + lanes, mask=lanes < n, other=0.0)
    tl.store(out_ptr + pid * BLOCK + lanes, y + z)


@triton.jit
def checked(x_ptr, out_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.device_assert(x > 0, "not positive")
    tl.store(out_ptr + tl.arange(0, BLOCK), x)


@triton.jit
def rows(x_ptr, out_ptr, n, steps, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for step in range(steps):
        lanes = step * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + pid * n + lanes, mask=lanes < n, other=0.0)
    tl.store(out_ptr + pid, tl.sum(total))


def _gather(bad: int, **options: Any) -> tuple[Any, torch.Tensor]:
    x = torch.arange(1.0, 301.0).view(6, 50)
    index = torch.tensor([0, 5, 3, bad, 3, 1])
    out = torch.zeros(6, 64)
    with flagprism_torch.debug(logdir=False, **options) as session:
        gather[(6,)](x, index, out, 50, BLOCK=64)
    return session, out


def test_a_stopped_kernel_tells_where_and_why():
    session = flagprism_torch.debug(logdir=False, export_on_error=True)
    x = torch.arange(1.0, 301.0).view(6, 50)
    index = torch.tensor([0, 5, 3, FAR, 3, 1])
    with pytest.raises(InvalidPointerError), session:
        gather[(6,)](x, index, torch.zeros(6, 64), 50, BLOCK=64)
    crash, oob = session.anomalies
    assert (crash.kind, crash.severity, crash.op) == ("crash", "error", "tt.load")
    assert crash.statement.startswith("z = tl.load(")
    assert crash.extent == "6 of 6 programs stopped here"
    assert "reads 4 bytes" in crash.cause
    assert (oob.kind, oob.statement) == ("oob", crash.statement)
    assert (oob.program, oob.lane, oob.iteration) == ((3, 0, 0), 0, 0)
    assert oob.details["oob_lanes"] == 50
    assert oob.details["index"] == (FAR, 0)
    assert not oob.details["in_storage"]
    assert oob.details["bytes_beyond"] == FAR * 50 * 4 + 4 - 1200
    # what ran before the crash is recorded, what did not is not
    (row,) = session.table().where(variable="x")
    assert (row.executions, row.live, row.min, row.max) == (6, 300, 1.0, 300.0)
    assert all(not row.executions for row in session.table().where(role="store"))
    first = session.report().splitlines()[3]
    assert first.startswith("FOUND crash") and "z = tl.load(" in first


def test_a_failed_assertion():
    session = flagprism_torch.debug(logdir=False, export_on_error=True)
    with pytest.raises(RuntimeError, match="not positive"), session:
        checked[(1,)](torch.zeros(8), torch.zeros(8), BLOCK=8, debug=True)
    (crash,) = session.anomalies
    assert crash.kind == "crash" and crash.statement.startswith("tl.device_assert(")
    assert crash.details["reached"][0]["op"] == "tt.assert"


def test_without_the_option_a_warning_names_it():
    with (
        pytest.warns(RuntimeWarning, match=r"export_on_error=True"),
        pytest.raises(InvalidPointerError),
    ):
        _gather(FAR)


def test_an_error_of_the_users_is_no_crash():
    session = flagprism_torch.debug(logdir=False, export_on_error=True)
    with pytest.raises(KeyError), session:
        rows[(2,)](torch.ones(2, 8), torch.zeros(2), 8, 1, BLOCK=8)
        raise KeyError
    assert session.anomalies == ()
    assert [row.executions for row in session.table().where(role="store")] == [2]


@pytest.mark.parametrize("options", [{}, {"record_capacity": 2}, {"logdir": True}])
def test_records_are_those_of_other_sessions(options: dict[str, Any], tmp_path: Any):
    """Counters and extremes, of straight code and loops, with shared slots and with histograms."""
    x = torch.randn(5, 200)
    options = options | {"logdir": tmp_path / "runs" if "logdir" in options else False}
    tables, outs = [], []
    out = torch.zeros(5)
    for export in (False, True):
        with flagprism_torch.debug(addr_level=1, export_on_error=export, **options) as session:
            for _ in range(3):
                rows[(5,)](x, out, 200, 4, BLOCK=64)
                session.step()
        tables.append((session.table(), session.addresses()))
        outs.append(out.clone())
    (values, addresses), (kept, kept_addresses) = tables
    assert torch.equal(*outs)
    assert len(values) == len(kept) and values[0].executions == 3 * 5 * 4
    for one, other in zip(values, kept, strict=True):
        assert dataclasses.replace(one, mean=0, l2=0) == dataclasses.replace(other, mean=0, l2=0)
        assert one.mean == pytest.approx(other.mean) and one.l2 == pytest.approx(other.l2)
    assert addresses == kept_addresses and len(addresses) == 2


def test_lanes_outside_in_a_loop_are_counted_before_the_access():
    big = torch.zeros(1000)
    x, out = big[:200].view(2, 100), torch.zeros(2)
    with flagprism_torch.debug(logdir=False, export_on_error=True) as session:
        rows[(2,)](x, out, 150, 3, BLOCK=64)
    (oob,) = session.anomalies
    # rows start at 0 and 150 and are 150 long: 100 of the second lie outside
    assert (oob.details["oob_lanes"], oob.program, oob.iteration) == (100, (1, 0, 0), 0)
    assert oob.details["index"] == (2, 0) and oob.lane == 50


# -- buffers by themselves


class _Event:
    """An event of a device that may have failed."""

    def __init__(self, done: bool = False, fails: bool = False) -> None:
        self.done, self.fails = done, fails

    def query(self) -> bool:
        if self.fails:
            raise RuntimeError("an illegal memory access was encountered\nmore")
        return self.done

    def synchronize(self) -> None:
        self.query()
        self.done = True


POINTS = (TracePoint("k.py", 3, "x = load", "tt.load"), TracePoint("", 0, "", "tt.return"))
OP = OpEntry(0, "tt.load", "fp32", (8,), "all", "k.py", 3, "x", "x = load", record=0)
TABLE = OpTable("kernel", "k.py", 1, (OP,), trace=POINTS)


class _Host(HostBuffers):
    def __init__(self, capacity: int = 1 << 30) -> None:
        self.seen: list[int] = []
        self.gone: list[tuple[int, str]] = []
        self.stopped: list[Crash] = []
        super().__init__(
            lambda launches, words: self.seen.extend(launch.number for launch, _ in launches),
            lambda launch, reason: self.gone.append((launch.number, reason)),
            self.stopped.append,
            capacity,
        )

    def run(self, number: int, words: list[int], event: _Event) -> None:
        """A launch whose programs leave `words`, on a device with that event."""
        note = Launch(number, 0, CallSite("k", "kernel", 0, Origin()), TABLE, (len(words), 1, 1))

        def call(buffer: torch.Tensor) -> None:
            start = len(words) * 24
            assert not buffer[: start + len(words)].any()
            buffer[start : start + len(words)] = torch.tensor(words, dtype=torch.int32)

        before = list(self._flying)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "poll", lambda: None)
            self.launch(note, torch.device("cpu"), 0, 0, call)
        (flight,) = (flight for flight in self._flying if flight not in before)
        flight.event = event


def test_launches_are_taken_as_they_end():
    host = _Host()
    slow = _Event()
    host.run(0, [2, 2], slow)
    host.run(1, [2], _Event(done=True))
    host.poll()
    assert host.seen == [1] and host.oldest_step() == 0
    slow.done = True
    host.drain()
    assert host.seen == [1, 0] and host.oldest_step() is None
    host.run(2, [2, 2, 2], _Event(done=True))  # memory that was used before is zero again
    host.drain()
    assert not host.stopped and not host.gone


def test_a_device_that_fails():
    host = _Host()
    host.run(0, [2, 2], _Event(fails=True))
    host.run(1, [2, 1, 0, 1], _Event(fails=True))
    host.run(2, [0, 0], _Event(fails=True))
    host.poll()
    assert host.seen == [0, 1]
    (crash,) = host.stopped
    assert crash.launch.number == 1
    assert crash.reason == "an illegal memory access was encountered"
    assert crash.reached == {None: (1, 2), POINTS[0]: (2, 1), POINTS[1]: (1, 0)}
    assert host.gone == [(2, "not run: an illegal memory access was encountered")]
    assert host.oldest_step() is None


def test_what_is_in_flight_is_limited():
    host = _Host(capacity=4 << 14)  # one buffer of the smallest size
    host.run(0, [2], _Event())
    host.run(1, [2], _Event())
    assert host.seen == [0]  # waited for


def test_a_device_that_does_not_reach_host_memory():
    host = _Host()
    note = Launch(0, 0, CallSite("k", "kernel", 0, Origin()), TABLE, (1, 1, 1))
    with pytest.raises(NoBufferError, match="does not reach"):
        host.launch(note, torch.device("meta"), 0, 0, lambda buffer: None)
