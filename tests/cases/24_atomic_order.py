"""Programs add values of very different size to one fp32 cell: the result depends on order."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "race_atomic_order"
SOURCE = "triton-lang/triton#8424"
CAUSE = (
    "float atomics are unordered; 2**24 + 1 - 2**24 is 0 or 1 by order, partial sums may round up"
)
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nondeterministic",
    "kernel": "one_cell_sum",
    "statement": "old = tl.atomic_add(out_ptr, x)",
    "op": "tt.atomic_rmw",
    "writers": 64,
    "distinct_addresses": 1,
    "dtype": "fp32",
    "possible": [0.0, 64.0],
    "exact": 62.0,
    "program_order_value": 0.0,
}


@triton.jit
def one_cell_sum(x_ptr, out_ptr):
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid)
    old = tl.atomic_add(out_ptr, x)  # noqa: F841


def arrays():
    x = np.ones(64, np.float32)
    x[0] = 2.0**24
    x[63] = -(2.0**24)
    return x


def run(device="cuda"):
    x = torch.from_numpy(arrays()).to(device)
    out = torch.zeros(1, device=device)
    one_cell_sum[(64,)](x, out)
    return {"out": out}


def oracle():
    x = arrays()
    a = np.float32(0)
    for v in x:
        a = np.float32(a + v)
    assert a == EXPECT["program_order_value"] and x.astype(np.float64).sum() == EXPECT["exact"]
    return {"stats": {"x = tl.load(x_ptr + pid)": x}}


def verify(out):
    v = float(out["out"][0])
    assert EXPECT["possible"][0] <= v <= EXPECT["possible"][1], v


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "x = tl.load(x_ptr + pid)": {
        "count": 64,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 0,
        "min": -16777216.0,
        "max": 16777216.0,
    },
}
