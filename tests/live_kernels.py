"""Triton kernels for end-to-end checks of level 1. Each statement is unique in its kernel's text,
so that a test can find its row."""

import triton
import triton.language as tl


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    total = x + y
    tl.store(out_ptr + offsets, total, mask=mask)


@triton.jit
def row_softmax(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=float("-inf"))
    shifted = x - tl.max(x, axis=0)
    numerator = tl.exp(shifted)
    p = numerator / tl.sum(numerator, axis=0)
    tl.store(out_ptr + row * columns + column, p, mask=mask)


@triton.jit
def layer_norm(x_ptr, w_ptr, out_ptr, mean_ptr, rstd_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        a = tl.load(x_ptr + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
        total += a
    mean = tl.sum(total, axis=0) / columns
    square = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        b = tl.load(x_ptr + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
        centred = tl.where(at < columns, b - mean, 0.0)
        square += centred * centred
    rstd = 1 / tl.sqrt(tl.sum(square, axis=0) / columns + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        w = tl.load(w_ptr + at, mask=at < columns)
        c = tl.load(x_ptr + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * columns + at, (c - mean) * rstd * w, mask=at < columns)


@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        a_mask = (rows[:, None] < m) & (inner[None, :] < k)
        a = tl.load(a_ptr + rows[:, None] * k + inner[None, :], mask=a_mask, other=0.0)
        b_mask = (inner[:, None] < k) & (columns[None, :] < n)
        b = tl.load(b_ptr + inner[:, None] * n + columns[None, :], mask=b_mask, other=0.0)
        acc = tl.dot(a, b, acc)
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(out_ptr + rows[:, None] * n + columns[None, :], acc, mask=mask)


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, length, scale,
              D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Causal flash attention of one head per program_id(1); tensors [heads, length, D]."""
    base = tl.program_id(1) * length * D
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    lanes = tl.arange(0, D)
    q = tl.load(q_ptr + base + rows[:, None] * D + lanes[None, :], mask=rows[:, None] < length,
                other=0.0)  # fmt: skip
    top = tl.full([BM], float("-inf"), tl.float32)
    weight = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BM, BN):
        keys = start + tl.arange(0, BN)
        k = tl.load(k_ptr + base + keys[None, :] * D + lanes[:, None], mask=keys[None, :] < length,
                    other=0.0)  # fmt: skip
        scores = tl.dot(q, k) * scale
        scores = tl.where(keys[None, :] <= rows[:, None], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        p = tl.exp(scores - new_top[:, None])
        shrink = tl.exp(top - new_top)
        weight = weight * shrink + tl.sum(p, axis=1)
        v = tl.load(v_ptr + base + keys[:, None] * D + lanes[None, :], mask=keys[:, None] < length,
                    other=0.0)  # fmt: skip
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
        top = new_top
    inside = rows < length
    out_at = out_ptr + base + rows[:, None] * D + lanes[None, :]
    tl.store(out_at, acc / weight[:, None], mask=inside[:, None])
    lse_at = lse_ptr + tl.program_id(1) * length + rows
    tl.store(lse_at, top + tl.log(weight), mask=inside)


@triton.jit
def integers(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    flipped = x ^ 3
    tl.store(out_ptr + offsets, flipped, mask=mask)


@triton.jit
def convert(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """From the type of x to float32 (or float64), times two, to the type of out."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    wide = x.to(tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32)
    twice = wide * 2
    tl.store(out_ptr + offsets, twice.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def count_values(x_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0)
    tl.atomic_add(counts_ptr + x, 1, mask=mask)


@triton.jit
def cube(x_ptr, out_ptr, nx, ny, BLOCK: tl.constexpr):
    """A grid of three axes; odd planes take a branch."""
    plane, row = tl.program_id(2), tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = (plane * ny + row) * nx + column
    x = tl.load(x_ptr + at, mask=column < nx)
    if plane % 2 == 1:
        negated = -x
        tl.store(out_ptr + at, negated, mask=column < nx)
    else:
        tl.store(out_ptr + at, x, mask=column < nx)


@triton.autotune([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["n"])
@triton.jit
def tuned_double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * 2, mask=mask)
