"""A plain load-add-store histogram: programs overwrite each other's counts."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "race_lost_update"
SOURCE = "thunlp/TritonBench#10"
CAUSE = "read-modify-write on shared addresses without an atomic"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "write_conflict",
    "kernel": "count_bins",
    "statement": "tl.store(hist_ptr + b, cur + 1)",
    "op": "tt.store",
    "also": "cur = tl.load(hist_ptr + b)",
    "programs": 256,
    "distinct_addresses": 4,
    "max_writers_per_address": 64,
    "right": [64, 64, 64, 64],
    "interpreter_is_right": True,
}


@triton.jit
def count_bins(x_ptr, hist_ptr):
    pid = tl.program_id(0)
    b = tl.load(x_ptr + pid)
    cur = tl.load(hist_ptr + b)
    tl.store(hist_ptr + b, cur + 1)


def run(device="cuda"):
    x = (torch.arange(256, device=device) * 7 % 4).to(torch.int32)
    hist = torch.zeros(4, dtype=torch.int32, device=device)
    count_bins[(256,)](x, hist)
    return {"hist": hist}


def oracle():
    b = (np.arange(256) * 7 % 4).astype(np.int32)
    assert np.bincount(b).tolist() == EXPECT["right"]
    return {"stats": {"b = tl.load(x_ptr + pid)": b}}


def verify(out):
    h = out["hist"].tolist()
    assert all(0 < a <= 64 for a in h), h  # equal to 64 only where programs run one after another


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "b = tl.load(x_ptr + pid)": {"count": 256, "zero": 64, "min": 0.0, "max": 3.0},
}
