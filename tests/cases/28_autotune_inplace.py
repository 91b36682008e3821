"""autotune benchmarks an in-place kernel without restore_value: the input is scaled repeatedly."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "autotune_mutation"
SOURCE = "triton-lang/triton#6547"
CAUSE = "each benchmark call runs the kernel on the live tensor"
MODE = "triton"
# a fixed do_bench (3 calls per configuration) fixes the number of hidden launches: 2*3 + 1
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "autotune_mutation",
    "kernel": "double_inplace",
    "statement": "tl.store(x_ptr + offs, y, mask=keep)",
    "op": "tt.store",
    "argument": "x_ptr",
    "launches": 7,
    "benchmark_launches": 6,
    "user_launches": 1,
    "out": {"x": {"wrong": 128.0, "right": 2.0}},
}


def _bench(call, quantiles=None):
    for _ in range(3):
        call()
    return [1.0, 1.0, 1.0]


def _tuned(fn):
    return triton.autotune(
        configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})],
        key=["n"],
        do_bench=_bench,
    )(fn)


@triton.jit
def double_inplace(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offs < n
    x = tl.load(x_ptr + offs, mask=keep, other=0.0)
    y = x * 2.0
    tl.store(x_ptr + offs, y, mask=keep)


def run(device="cuda"):
    x = torch.ones(256, device=device)
    _tuned(double_inplace)[lambda meta: (triton.cdiv(256, meta["BLOCK"]),)](x, 256)
    return {"x": x}


def oracle():
    return {
        "stats": {"y = x * 2.0": np.repeat(2.0 ** np.arange(1, 8), 256).astype(np.float32)},
        "out": {"x": np.full(256, 128.0, np.float32)},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "y = x * 2.0": {
        "count": 1792,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 0,
        "min": 2.0,
        "max": 128.0,
    },
}
