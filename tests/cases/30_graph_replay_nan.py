"""Captured once with good data; the third replay sees a zero divisor."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "cuda_graph"
SOURCE = "pytorch/pytorch#169849"
CAUSE = (
    "no Python runs at replay, so anything recorded only at launch misses replays; the input "
    "buffer is updated in place"
)
MODE = "triton"
# the CPU path launches three times instead of replaying; the expected per-run numbers are the same
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "normalise",
    "statement": "y = x / den",
    "op": "arith.divf",
    "cause": "0 / 0",
    "runs": 3,
    "nan_per_run": [0, 0, 16],
    "cause_statement": "den = tl.sum(x, axis=0)",
    "captured_launches": 1,
    "replays": 3,
    "nan_count": 16,
    "out": {"run0": {"nan": 0}, "run1": {"nan": 0}, "run2": {"nan": 16}},
}


@triton.jit
def normalise(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    den = tl.sum(x, axis=0)
    y = x / den
    tl.store(out_ptr + i, y)


def _data():
    return [torch.ones(16), torch.arange(16.0), torch.zeros(16)]


def run(device="cuda"):
    x = torch.ones(16, device=device)
    out = torch.zeros(16, device=device)
    res = {}
    if device == "cpu":
        for k, d in enumerate(_data()):
            x.copy_(d)
            normalise[(1,)](x, out, N=16)
            res[f"run{k}"] = out.clone()
        return res
    normalise[(1,)](x, out, N=16)  # warm up: compile outside capture
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        normalise[(1,)](x, out, N=16)
    for k, d in enumerate(_data()):
        x.copy_(d)
        g.replay()
        torch.cuda.synchronize()
        res[f"run{k}"] = out.clone()
    return res


def oracle():
    xs = np.stack([d.numpy() for d in _data()])
    with np.errstate(all="ignore"):
        y = xs / xs.sum(1, keepdims=True)
    return {
        "stats": {"den = tl.sum(x, axis=0)": xs.sum(1), "y = x / den": y},
        "out": {f"run{k}": y[k] for k in range(3)},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "den = tl.sum(x, axis=0)": {
        "count": 3,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 1,
        "min": 0.0,
        "max": 120.0,
    },
    "y = x / den": {
        "count": 48,
        "nan": 16,
        "posinf": 0,
        "neginf": 0,
        "zero": 1,
        "min": 0.0,
        "max": 0.125,
    },
}
