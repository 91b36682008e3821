"""Kernels whose TTIR the tests of `flagprism_torch.ir` read. Only compiled, never launched."""

import triton
import triton.language as tl


@triton.jit
def masked(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    whole = tl.load(y_ptr + offsets)
    square = x * x
    mixed = x + whole
    doubled = whole + whole
    narrow = mixed.to(tl.float16)
    shifted = tl.exp(square)
    tl.store(o_ptr + offsets, narrow + shifted + doubled, mask=mask)


@triton.jit
def two_masks(x_ptr, y_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x_ptr + i, mask=i < n, other=0.0)
    b = tl.load(y_ptr + i, mask=i < m, other=1.0)
    both = a + b
    chosen = tl.where(i < n, a, 0.0)
    other = tl.where(i < n, a, b)
    either = tl.where(b > 0, a, b)
    kept = tl.where(i < n, a, both)
    turned = tl.flip(a, 0)
    tl.store(o_ptr + i, both * chosen * other * either * kept * turned)


@triton.jit
def shapes(x_ptr, o_ptr, n, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    row = tl.load(x_ptr + columns, mask=columns < m)
    tile = tl.load(
        x_ptr + rows[:, None] * m + columns[None, :],
        mask=(rows[:, None] < n) & (columns[None, :] < m),
    )
    wide = row[None, :]
    summed = tile + wide
    total = tl.sum(summed, 1)
    whole = tl.sum(total, 0)
    turned = tl.trans(summed)
    flat = tl.reshape(summed, [ROWS * COLUMNS])
    running = tl.cumsum(summed, 1)
    tl.store(o_ptr + rows, total, mask=rows < n)
    tl.store(o_ptr + columns[:, None] * n + rows[None, :], turned)
    tl.store(o_ptr + tl.arange(0, ROWS * COLUMNS), flat)
    tl.store(o_ptr + rows[:, None] * m + columns[None, :], running + whole)


@triton.jit
def product(a_ptr, b_ptr, o_ptr, n, m, k, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    row, column = i[:, None], i[None, :]
    a = tl.load(a_ptr + row * k + column, mask=(row < n) & (column < k), other=0.0)
    b = tl.load(b_ptr + row * m + column, mask=(row < k) & (column < m), other=0.0)
    c = tl.dot(a, b)
    tl.store(o_ptr + row * m + column, c, mask=(row < n) & (column < m))


@triton.jit
def loops(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.float32)
    peak = tl.full([BLOCK], -1.0, tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < n, other=0.0)
        total += x
        peak = peak * 2.0
    for outer in range(0, n):
        for inner in range(0, 4):
            total += outer * inner
    tl.store(o_ptr + tl.arange(0, BLOCK), total + peak)


@triton.jit
def branches(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    if n > 3:
        y = x + 1.0
        z = x * 2.0
    else:
        y = x - 1.0
        z = x * 3.0
    if n > 100:
        tl.store(o_ptr + i, y)
    tl.store(o_ptr + i, z)
    step = n
    while step > 1:
        step = step // 2
        x = x * 0.5
    tl.store(o_ptr + i, x)
    tl.store(o_ptr + BLOCK, step)


@triton.jit
def early_return(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    if n < 3:
        return
    y = x + 1.0
    tl.store(o_ptr + i, y)


@triton.jit
def _two(a0, b0, a1, b1):
    return a0 + a1, tl.maximum(b0, b1)


@triton.jit
def regions(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    total, top = tl.reduce((x, x * x), 0, _two)
    run, highest = tl.associative_scan((x, x * x), 0, _two)
    at = tl.argmax(x, 0)
    tl.store(o_ptr + i, run + highest + total + top + at)


@triton.jit
def descriptors(x_ptr, o_ptr, n, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, [n, m], [m, 1], [ROWS, COLUMNS])
    target = tl.make_tensor_descriptor(o_ptr, [n, m], [m, 1], [ROWS, COLUMNS])
    x = source.load([0, 0])
    y = x * 2.0
    target.store([0, 0], y)


@triton.jit
def atomics(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    old = tl.atomic_add(o_ptr + i, x, mask=i < n)
    seen = tl.atomic_cas(o_ptr + i, x, old)
    tl.store(x_ptr + i, seen + old)


@triton.jit
def helper(x, scale):
    half = x * 0.5
    return half * scale


@triton.jit(noinline=True)
def separate(a, b):
    return a * b + 1.0


@triton.jit
def nested(x_ptr, o_ptr, scale, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = helper(x, scale) + 1.0
    z = y * separate(scale, scale)
    tl.device_print("text (with %names, : and {braces) ->", z)
    tl.store(o_ptr + i, z)


@triton.jit
def pieces(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    even, odd = tl.split(tl.reshape(x, [BLOCK // 2, 2]))
    joined = tl.join(even * 2.0, odd)
    turned = tl.flip(x, 0) + 1.0
    picked = tl.gather(x, i ^ 1, 0)
    counts = tl.histogram((x * 4.0).to(tl.int32), 16)
    tl.store(o_ptr + i, tl.reshape(joined, [BLOCK]) + turned + picked)
    tl.store(o_ptr + tl.arange(0, 16), counts)
