"""A kernel that crashes the device: what the process can still tell; a guard keeps it alive."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from crash_child import BAD, FAR, PROGRAMS
from test_survivors import gather

import flagprism_torch

HERE = Path(__file__).parent.parent


def _child(device: str, export: bool) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / "crash_child.py"), device, str(export)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines, done.stderr[-3000:]
    return json.loads(lines[-1])


def test_a_dying_process_names_statement_and_lane(device: str, say: Callable[[str], None]):
    found = _child(device, True)
    assert found["error"]
    say(found["error"][:100])
    for line in found["report"]:
        say(line[:160])
    crash, oob = found["anomalies"]
    assert crash["kind"] == "crash" and crash["launch"] == 1
    assert crash["statement"].startswith("z = tl.load(")
    assert crash["details"]["programs"] == PROGRAMS
    assert (oob["kind"], oob["launch"]) == ("oob", 1)
    assert oob["statement"] == crash["statement"]
    assert (oob["program"], oob["lane"]) == ([BAD, 0, 0], 0)
    assert oob["details"]["oob_lanes"] == 50
    assert oob["details"]["index"] == [FAR, 0]
    # all of the launch before, and of this one what was written before it stopped
    assert PROGRAMS <= found["executions"] <= 2 * PROGRAMS


def test_without_the_option_the_warning_names_it(device: str):
    found = _child(device, False)
    assert found["error"]
    assert any("export_on_error=True" in text for text in found["warnings"])


def test_a_guard_keeps_the_process_alive(device: str):
    x = torch.arange(1.0, 301.0, device=device).view(6, 50)
    index = torch.tensor([0, 5, 3, FAR, 3, -FAR], device=device)
    out = torch.zeros(6, 64, device=device)
    with flagprism_torch.debug(logdir=False, guard=True) as session:
        gather[(6,)](x, index, out, 50, BLOCK=64)
        if device != "cpu":
            torch.accelerator.synchronize()
        index.clamp_(0, 5)
        again = torch.zeros_like(out)
        gather[(6,)](x, index, again, 50, BLOCK=64)
    lanes, rows = torch.arange(64) < 50, x.cpu()
    for got, at in ((out, [0, 5, 3, None, 3, None]), (again, [0, 5, 3, 5, 3, 0])):
        z = torch.stack([torch.zeros(50) if row is None else rows[row] for row in at])
        wanted = rows.log() + z
        torch.testing.assert_close(got.cpu()[:, lanes], wanted, rtol=1e-6, atol=1e-6)
    (oob,) = session.anomalies
    assert (oob.kind, oob.launch, oob.program) == ("oob", 0, (3, 0, 0))
    assert oob.details["oob_lanes"] == 100
    assert oob.details["index"] == (FAR, 0)


@pytest.mark.parametrize("export", [False, True])
def test_records_on_the_host_are_those_on_the_device(device: str, export: bool):
    torch.manual_seed(0)
    x = torch.randn(600, 50, device=device).abs() + 1
    index = torch.randint(0, 600, (600,), device=device)
    out = torch.zeros(600, 64, device=device)
    with flagprism_torch.debug(logdir=False, addr_level=1, export_on_error=export) as session:
        for _ in range(3):
            gather[(600,)](x, index, out, 50, BLOCK=64)
            session.step()
    assert session.anomalies == ()
    (row,) = session.table().where(variable="x")
    assert (row.executions, row.live) == (1800, 3 * x.numel())
    assert (row.min, row.max) == (float(x.min()), float(x.max()))
    stored = session.addresses().where(role="store")[0]
    assert (stored.min, stored.max, stored.outside) == (0, 4 * (out.numel() - 1), 0)
