"""A bias row that is entirely -inf makes a row softmax compute (-inf) - (-inf)."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_masked_softmax"
SOURCE = "pytorch/pytorch#103749"
CAUSE = (
    "every key of one row is masked with -inf, so the row maximum is -inf and the shift is inf-inf"
)
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "row_softmax",
    "statement": "shifted = logit - top",
    "op": "arith.subf",
    "cause": "inf - inf",
    "first": {"program": (3, 0, 0), "lane": 0},
    "nan_count": 64,
    "padding_count": 16,
    "out": {"out": {"nan": 48, "rows": [3]}},
    "benign_inf": ["s", "logit"],  # -inf that is meant: padding lanes and the mask itself
}


@triton.jit
def row_softmax(s_ptr, bias_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    keep = cols < n_cols
    s = tl.load(s_ptr + row * n_cols + cols, mask=keep, other=float("-inf"))
    b = tl.load(bias_ptr + row * n_cols + cols, mask=keep, other=0.0)
    logit = s + b
    top = tl.max(logit, axis=0)
    shifted = logit - top
    num = tl.exp(shifted)
    den = tl.sum(num, axis=0)
    p = num / den
    tl.store(out_ptr + row * n_cols + cols, p, mask=keep)


def arrays():
    i = np.arange(6 * 48)
    s = (((i * 37) % 23) - 11).astype(np.float32).reshape(6, 48) / np.float32(8)
    b = np.zeros((6, 48), np.float32)
    b[1, 24:] = -np.inf
    b[3, :] = -np.inf
    return s, b


def run(device="cuda"):
    s, b = (torch.from_numpy(a).to(device) for a in arrays())
    out = torch.zeros_like(s)
    row_softmax[(6,)](s, b, out, 48, BLOCK=64)
    return {"out": out}


def oracle():
    s, b = arrays()
    pad = np.full((6, 64), -np.inf, np.float32)
    pad[:, :48] = s + b
    top = pad.max(1, keepdims=True)
    with np.errstate(all="ignore"):
        sh = pad - top
        num = np.exp(sh)
        den = num.sum(1, keepdims=True)
        p = num / den
    return {
        "stats": {
            "logit = s + b": pad,
            "top = tl.max(logit, axis=0)": top,
            "shifted = logit - top": sh,
            "num = tl.exp(shifted)": num,
            "den = tl.sum(num, axis=0)": den,
            "p = num / den": p,
        },
        "out": {"out": p[:, :48]},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "logit = s + b": {
        "count": 384,
        "nan": 0,
        "posinf": 0,
        "neginf": 168,
        "zero": 10,
        "min": -1.375,
        "max": 1.375,
    },
    "top = tl.max(logit, axis=0)": {
        "count": 6,
        "nan": 0,
        "posinf": 0,
        "neginf": 1,
        "zero": 0,
        "min": 1.375,
        "max": 1.375,
    },
    "shifted = logit - top": {
        "count": 384,
        "nan": 64,
        "posinf": 0,
        "neginf": 104,
        "zero": 9,
        "min": -2.75,
        "max": 0.0,
    },
    "num = tl.exp(shifted)": {
        "count": 384,
        "nan": 64,
        "posinf": 0,
        "neginf": 0,
        "zero": 104,
        "min": 0.0,
        "max": 1.0,
    },
    "den = tl.sum(num, axis=0)": {
        "count": 6,
        "nan": 1,
        "posinf": 0,
        "neginf": 0,
        "zero": 0,
        "min": 8.1497220993042,
        "max": 17.09221839904785,
    },
    "p = num / den": {
        "count": 384,
        "nan": 64,
        "posinf": 0,
        "neginf": 0,
        "zero": 104,
        "min": 0.0,
        "max": 0.12270356714725494,
    },
}
