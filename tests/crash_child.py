"""Child of test_gpu_crash.py: a kernel that crashes its device, under a session.

`python crash_child.py DEVICE EXPORT` prints what a dying process can still tell, as a JSON object.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
from test_survivors import gather

import flagprism_torch

FAR = 1 << 27  # rows of 50 floats: 25 GiB behind the tensor
PROGRAMS, BAD = 2000, 1234


def main(device: str, export: bool) -> dict[str, Any]:
    x = torch.arange(1.0, 301.0, device=device).view(6, 50).repeat(PROGRAMS // 6 + 1, 1)
    index = torch.zeros(PROGRAMS, dtype=torch.int64, device=device)
    out = torch.zeros(PROGRAMS, 64, device=device)
    good = torch.zeros_like(out)
    error = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = flagprism_torch.debug(logdir=False, export_on_error=export)
        try:
            with session:
                gather[(PROGRAMS,)](x, index, good, 50, BLOCK=64)
                index[BAD] = FAR
                gather[(PROGRAMS,)](x, index, out, 50, BLOCK=64)
                if device != "cpu":
                    torch.accelerator.synchronize()
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}".split("\n")[0]
    found: dict[str, Any] = {"error": error, "warnings": [str(w.message) for w in caught]}
    if not export:
        return found
    rows = session.table().where(variable="x")
    return found | {
        "report": session.report().splitlines()[:12],
        "anomalies": [
            {
                "kind": one.kind,
                "launch": one.launch,
                "statement": one.statement,
                "program": one.program,
                "lane": one.lane,
                "details": {k: v for k, v in one.details.items() if k != "reached"},
            }
            for one in session.anomalies
        ],
        "executions": sum(row.executions for row in rows),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2] == "True"), default=dict))
