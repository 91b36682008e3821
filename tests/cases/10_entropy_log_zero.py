"""Entropy p*log(p) with exact zero probabilities: 0 * -inf."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_log_zero"
SOURCE = "huggingface/trl#7221"
CAUSE = "log(0) is -inf (by itself harmless), the product with p = 0 is NaN"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "row_entropy",
    "statement": "h = p * lp",
    "op": "arith.mulf",
    "cause": "0 * inf",
    "inf_cause": "log of 0",
    "inf_statement": "lp = tl.log(p)",
    "inf_op": "math.log",
    "first": {"program": (0, 0, 0), "lane": 4},
    "nan_count": 11,
    "out": {"out": {"nan": 2, "rows": [0, 2]}},
}


@triton.jit
def row_entropy(p_ptr, out_ptr, V: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, V)
    p = tl.load(p_ptr + row * V + cols)
    lp = tl.log(p)
    h = p * lp
    ent = -tl.sum(h, axis=0)
    tl.store(out_ptr + row, ent)


P = np.array(
    [[0.25, 0.25, 0.25, 0.25, 0, 0, 0, 0], [0.125] * 8, [1, 0, 0, 0, 0, 0, 0, 0]], np.float32
)


def run(device="cuda"):
    p = torch.from_numpy(P).to(device)
    out = torch.zeros(3, device=device)
    row_entropy[(3,)](p, out, V=8)
    return {"out": out}


def oracle():
    with np.errstate(all="ignore"):
        lp = np.log(P)
        h = P * lp
        ent = -h.sum(1)
    return {
        "stats": {"lp = tl.log(p)": lp, "h = p * lp": h, "ent = -tl.sum(h, axis=0)": ent},
        "out": {"out": ent},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "lp = tl.log(p)": {
        "count": 24,
        "nan": 0,
        "posinf": 0,
        "neginf": 11,
        "zero": 1,
        "min": -2.079441547393799,
        "max": 0.0,
    },
    "h = p * lp": {
        "count": 24,
        "nan": 11,
        "posinf": 0,
        "neginf": 0,
        "zero": 1,
        "min": -0.3465735912322998,
        "max": 0.0,
    },
    "ent = -tl.sum(h, axis=0)": {
        "count": 3,
        "nan": 2,
        "posinf": 0,
        "neginf": 0,
        "zero": 0,
        "min": 2.079441547393799,
        "max": 2.079441547393799,
    },
}
