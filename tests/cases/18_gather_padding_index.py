"""A gather whose index tensor still contains -1 padding and one index past the end."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "oob_bad_index"
SOURCE = "vllm-project/vllm#54296"
CAUSE = "padding entries (-1) and an index equal to the table length are used unchecked"
MODE = "triton"
# the table is a view into the middle of a larger buffer filled with NaN canaries
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "oob",
    "kernel": "gather_table",
    "statement": "v = tl.load(tab_ptr + idx * D + d)",
    "op": "tt.load",
    "cause_statement": "idx = tl.load(idx_ptr + pid)",
    "index_values": [-1, -1, 10],
    "programs": [(2, 0, 0), (5, 0, 0), (6, 0, 0)],
    "oob_lanes": 24,
    "index_range": [-8, 87],
    "extent": [0, 80],
    "nan_count": 24,
    "out": {"out": {"nan": 24, "rows": [2, 5, 6]}},
}

# what the values alone show
LOADED = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "gather_table",
    "statement": "v = tl.load(tab_ptr + idx * D + d)",
    "op": "tt.load",
    "argument": "tab_ptr",
    "first": {"program": (2, 0, 0), "lane": 0},
    "nan_count": 24,
}


@triton.jit
def gather_table(tab_ptr, idx_ptr, out_ptr, D: tl.constexpr):
    pid = tl.program_id(0)
    d = tl.arange(0, D)
    idx = tl.load(idx_ptr + pid)
    v = tl.load(tab_ptr + idx * D + d)
    tl.store(out_ptr + pid * D + d, v)


IDX = np.array([0, 9, -1, 4, 4, -1, 10, 1], np.int64)


def run(device="cuda"):
    buf = torch.full((160,), float("nan"), device=device)
    buf[40:120] = torch.arange(80.0, device=device)
    tab = buf[40:120]
    idx = torch.from_numpy(IDX).to(device)
    out = torch.zeros(8, 8, device=device)
    gather_table[(8,)](tab, idx, out, D=8)
    return {"out": out}


def oracle():
    lin = IDX[:, None] * 8 + np.arange(8)[None]
    bad = (lin < 0) | (lin >= 80)
    assert int(bad.sum()) == 24 and [int(lin.min()), int(lin.max())] == EXPECT["index_range"]
    v = np.where(bad, np.nan, lin).astype(np.float32)
    return {
        "stats": {"idx = tl.load(idx_ptr + pid)": IDX, "v = tl.load(tab_ptr + idx * D + d)": v},
        "out": {"out": v},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "idx = tl.load(idx_ptr + pid)": {"count": 8, "zero": 1, "min": -1.0, "max": 10.0},
    "v = tl.load(tab_ptr + idx * D + d)": {
        "count": 64,
        "nan": 24,
        "posinf": 0,
        "neginf": 0,
        "zero": 1,
        "min": 0.0,
        "max": 79.0,
    },
}
