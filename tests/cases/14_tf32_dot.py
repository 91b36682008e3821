"""fp32 tl.dot runs in tf32 by default; operands that differ from 1 by 2^-12 are rounded to 1."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "precision_tf32"
SOURCE = "triton-lang/triton#8654"
CAUSE = "default input_precision of tl.dot is tf32 (10 mantissa bits)"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "precision",
    "kernel": "plain_dot",
    "statement": "c = tl.dot(a, b)",
    "op": "tt.dot",
    "op_attr": "inputPrecision = tf32",
    "silent": True,
    "operand_lanes_not_tf32": 1024,  # all of a, none of b
    "exact": 32.0078125,
    "gpu_value": 32.0,
    "rel_error": 2.44e-4,
    "interpreter_is_exact": True,
}


@triton.jit
def plain_dot(a_ptr, b_ptr, c_ptr, N: tl.constexpr):
    i = tl.arange(0, N)[:, None]
    j = tl.arange(0, N)[None, :]
    a = tl.load(a_ptr + i * N + j)
    b = tl.load(b_ptr + i * N + j)
    c = tl.dot(a, b)
    tl.store(c_ptr + i * N + j, c)


def run(device="cuda"):
    a = torch.full((32, 32), 1 + 2.0**-12, device=device)
    b = torch.ones(32, 32, device=device)
    c = torch.zeros(32, 32, device=device)
    plain_dot[(1,)](a, b, c, N=32)
    return {"c": c}


def oracle():
    a = np.full((32, 32), 1 + 2.0**-12, np.float32)
    c = a @ np.ones((32, 32), np.float32)
    assert (c == EXPECT["exact"]).all()
    low = a.view(np.uint32) & 0x1FFF  # the 13 bits tf32 drops
    assert int((low != 0).sum()) == EXPECT["operand_lanes_not_tf32"]
    return {"stats": {"c = tl.dot(a, b)": c}, "out": {"c": c}}


def gpu_outputs():
    """The product of operands in tf32. To round them and to cut them off is the same here."""
    a = np.full((32, 32), 1 + 2.0**-12, np.float32)
    bits = a.view(np.uint32)
    rounded, cut = ((x & 0xFFFFE000).view(np.float32) for x in (bits + 0x1000, bits))
    assert (rounded == cut).all()
    c = rounded @ np.ones((32, 32), np.float32)
    assert (c == EXPECT["gpu_value"]).all()
    return {"c": c}


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "c = tl.dot(a, b)": {
        "count": 1024,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 0,
        "min": 32.0078125,
        "max": 32.0078125,
    },
}
