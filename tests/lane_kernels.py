"""Kernels whose lanes `lane_oracle` finds by changing them. Every store has memory of its own, and
results never hide behind an infinity."""

import triton
import triton.language as tl


@triton.jit
def elementwise(x_ptr, y_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i, mask=i < n, other=0.5)
    a = x * 0.5 + y
    b = x - y
    tl.store(o_ptr + i, a, mask=i < m)
    tl.store(o_ptr + BLOCK + i, b, mask=(i < n) & (i > 2))


@triton.jit
def guards(x_ptr, y_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    positive = x > 0
    safe = tl.where(positive, x, 1.0)
    root = tl.sqrt(safe)
    guarded = tl.where(positive, root, y)
    taken = tl.where(i < m, guarded, x * 3.0)
    kept = tl.where(n > 3, taken, y * 2.0)
    tl.store(o_ptr + i, kept, mask=i < n)


@triton.jit
def default(x_ptr, y_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    """A masked load whose other values are computed."""
    i = tl.arange(0, BLOCK)
    fallback = tl.load(y_ptr + i) * 2.0
    x = tl.load(x_ptr + i, mask=i < m, other=fallback)
    tl.store(o_ptr + i, x, mask=i < n)


@triton.jit
def softmax(x_ptr, o_ptr, n, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < n) & (column < m)
    x = tl.load(x_ptr + row * COLUMNS + column, mask=inside, other=0.0)
    masked = tl.where(column < m, x, -float("inf"))
    top = tl.max(masked, 1)[:, None]
    shifted = tl.exp(masked - top)
    total = tl.sum(shifted, 1)[:, None]
    y = shifted / total
    tl.store(o_ptr + row * COLUMNS + column, y, mask=inside)


@triton.jit
def shapes(x_ptr, y_ptr, o_ptr, n, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    size: tl.constexpr = ROWS * COLUMNS
    tile = tl.load(x_ptr + rows[:, None] * COLUMNS + columns[None, :])
    line = tl.load(y_ptr + columns)
    added = tile + line[None, :]
    turned = tl.trans(added)
    scaled = turned * 2.0
    at = columns[:, None] * ROWS + rows[None, :]
    tl.store(o_ptr + at, scaled, mask=(rows[None, :] < n) & (columns[:, None] < m))
    flat = tl.reshape(tile, [size])
    i = tl.arange(0, size)
    tl.store(o_ptr + size + i, flat, mask=i < n)


@triton.jit
def scans(x_ptr, y_ptr, o_ptr, n, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    at = row * COLUMNS + column
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    forward = tl.cumsum(x, 1)
    backward = tl.cumsum(y, 1, reverse=True)
    tl.store(o_ptr + at, forward + backward, mask=(row < n) & (column < m) & (column > 1))


@triton.jit
def totals(x_ptr, o_ptr, n, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row[:, None] * COLUMNS + column[None, :])
    used = tl.where(column[None, :] < m, x, 0.0)
    total = tl.sum(used, 1)
    largest = tl.max(x, 0)
    tl.store(o_ptr + row, total, mask=row < n)
    tl.store(o_ptr + ROWS + column, largest, mask=column < m)
    tl.store(o_ptr + ROWS + COLUMNS, tl.sum(total, 0))


@triton.jit
def pairs(x_ptr, y_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    j = tl.arange(0, 2 * BLOCK)
    x = tl.load(x_ptr + j)
    even, odd = tl.split(tl.reshape(x, [BLOCK, 2]))
    doubled = even * 2.0
    joined = tl.join(doubled, tl.load(y_ptr + i))
    tl.store(o_ptr + j, tl.reshape(joined, [2 * BLOCK]), mask=j < n)
    tl.store(o_ptr + 2 * BLOCK + i, odd, mask=i < m)


@triton.jit
def picked(x_ptr, y_ptr, o_ptr, n, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    at = row * COLUMNS + column
    x = tl.load(x_ptr + at)
    index = tl.broadcast_to((column + 3) % COLUMNS, [ROWS, COLUMNS])
    moved = tl.gather(x, index, 1)
    tl.store(o_ptr + at, moved, mask=row < n)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, o_ptr, n, m, k, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    row, column = i[:, None], i[None, :]
    a = tl.load(a_ptr + row * SIZE + column)
    b = tl.load(b_ptr + row * SIZE + column)
    c = tl.load(c_ptr + row * SIZE + column)
    d = tl.dot(tl.where(column < k, a, 0.0), b, c, input_precision="ieee")
    tl.store(o_ptr + row * SIZE + column, d, mask=(row < n) & (column < m))


@triton.jit
def matmul(a_ptr, b_ptr, o_ptr, n, m, k, SIZE: tl.constexpr):
    """The mask of the store is computed behind the loop."""
    i = tl.arange(0, SIZE)
    acc = tl.zeros([SIZE, SIZE], tl.float32)
    for start in range(0, k, SIZE):
        inner = start + i
        a = tl.load(a_ptr + i[:, None] * k + inner[None, :], mask=inner[None, :] < k, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * SIZE + i[None, :], mask=inner[:, None] < k, other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    y = acc * 0.5
    rows = tl.program_id(0) * SIZE + i
    inside = (rows[:, None] < n) & (i[None, :] < m)
    tl.store(o_ptr + i[:, None] * SIZE + i[None, :], y, mask=inside)


@triton.jit
def masked_loop(x_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    """A value from outside, used under another mask in each iteration."""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    total = x * 0.5
    last = x - 1.0
    for step in range(0, n):
        scaled = total * 0.25
        tl.store(o_ptr + BLOCK * (step + 2) + i, scaled, mask=i < step)
        last = last + x
        total = total + x
    tl.store(o_ptr + i, last, mask=i < m)


@triton.jit
def branch(x_ptr, y_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    if n > 4:
        z = x + y
        few = i < (n // 2)
        tl.store(o_ptr + BLOCK + i, y * 2.0, mask=few)
    else:
        z = y * 3.0
    tl.store(o_ptr + i, z, mask=i < m)


@triton.jit
def halving(x_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    step = n
    while step > 1:
        step = step // 2
        x = x * 0.5
    tl.store(o_ptr + i, x, mask=i < m)


@triton.jit
def leaves_early(x_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = x * 2.0
    if n < 3:
        return
    z = y + 1.0
    tl.store(o_ptr + i, z, mask=i < m)


@triton.jit
def atomics(x_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    old = tl.atomic_add(o_ptr + i, x * 2.0, mask=i < n)
    tl.store(o_ptr + BLOCK + i, old, mask=i < m)


@triton.jit
def counted(x_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    bins = tl.histogram((x * 0.0 + i).to(tl.int32), BLOCK, mask=i < m)
    tl.store(o_ptr + i, bins.to(tl.float32))


@triton.jit
def single(x_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    """Scalars: stored under a condition, and spread over a tile."""
    i = tl.arange(0, BLOCK)
    a = tl.load(x_ptr) * 2.0
    b = tl.load(x_ptr + 1) * 3.0
    c = tl.sum(tl.load(x_ptr + 2 + i), 0)
    tl.store(o_ptr, a, mask=n > 3)
    tl.store(o_ptr + 1, c, mask=m > 30)
    tl.store(o_ptr + 2 + i, tl.zeros([BLOCK], tl.float32) + b, mask=i < m)


@triton.jit
def online(x_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    """A softmax over chunks."""
    i = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + start + i, mask=start + i < n, other=-1e30)
        higher = tl.maximum(top, x)
        total = total * tl.exp(top - higher) + tl.exp(x - higher)
        top = higher
    tl.store(o_ptr + i, top + tl.log(total), mask=i < m)


@triton.jit
def carried(x_ptr, y_ptr, o_ptr, n, m, k, BLOCK: tl.constexpr):
    """What loops carry: sums that start valid and masked, and values that are replaced."""
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    started = tl.load(x_ptr + i, mask=i < n, other=0.0)
    grown = tl.load(x_ptr + i, mask=i < n, other=0.0)
    fetched = tl.load(y_ptr + i)
    same = tl.load(y_ptr + i, mask=i < m, other=0.0)
    for step in range(0, k):
        part = tl.load(x_ptr + step * BLOCK + i, mask=i < m, other=0.0)
        total = total + part
        shown = total * part
        started = started * 0.5
        grown = grown + fetched
        fetched = tl.load(y_ptr + step + i, mask=i < n, other=0.0)
        same = tl.load(y_ptr + step + i, mask=i < m, other=1.0)
        tl.store(o_ptr + BLOCK * (8 + step) + i, shown)
    tl.store(o_ptr + i, total)
    tl.store(o_ptr + BLOCK + i, started)
    tl.store(o_ptr + 2 * BLOCK + i, grown)
    tl.store(o_ptr + 3 * BLOCK + i, fetched)
    tl.store(o_ptr + 4 * BLOCK + i, same)


@triton.jit
def sides(x_ptr, y_ptr, o_ptr, n, m, k, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    if k > 3:
        a = x * 2.0
        b = tl.load(y_ptr + i, mask=i < m, other=0.0)
        c = tl.zeros([BLOCK], tl.float32)
        d = tl.load(y_ptr + i, mask=tl.load(x_ptr + i) > 0, other=0.0)
    else:
        a = x + 1.0
        b = x * 3.0
        c = tl.load(y_ptr + i)
        d = x
    tl.store(o_ptr + i, a + 1.0)
    tl.store(o_ptr + BLOCK + i, b + 1.0)
    tl.store(o_ptr + 2 * BLOCK + i, c + 1.0)
    tl.store(o_ptr + 3 * BLOCK + i, d + 1.0)


@triton.jit
def waiting(x_ptr, y_ptr, o_ptr, n, m, k, BLOCK: tl.constexpr):
    """What a while loop carries."""
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    kept = tl.load(x_ptr + i, mask=i < n, other=0.0)
    left = k
    while left > 0:
        total = total + tl.load(y_ptr + left + i, mask=i < m, other=0.0)
        kept = kept * 0.5
        left = left - 1
    tl.store(o_ptr + i, total + 1.0)
    tl.store(o_ptr + BLOCK + i, kept + 1.0)


@triton.jit
def tiles(x_ptr, y_ptr, o_ptr, n, m, k, BLOCK: tl.constexpr):
    """Operations that move or combine lanes, on a masked tile."""
    i = tl.arange(0, BLOCK)
    j = tl.arange(0, 2 * BLOCK)
    x = tl.load(x_ptr + j, mask=j < n, other=0.0)
    even, odd = tl.split(tl.reshape(x, [BLOCK, 2]))
    y = tl.load(y_ptr + i, mask=i < m, other=0.0)
    joined = tl.join(even, y)
    index = (i + k) % BLOCK
    moved = tl.gather(y, index, 0)
    counts = tl.histogram(y.to(tl.int32), BLOCK, mask=i < m)
    running = tl.cumsum(y, 0)
    tl.store(o_ptr + i, odd + moved + running + counts)
    tl.store(o_ptr + BLOCK + j, tl.reshape(joined, [2 * BLOCK]))


@triton.jit
def padded(in_ptr, out_ptr, xnumel, XBLOCK: tl.constexpr):
    """Written as Inductor writes constant_pad_nd: 5 columns, of which 3 are read, then 1.5."""
    xindex = tl.arange(0, XBLOCK)
    xmask = xindex < xnumel
    x0 = xindex % 5
    tmp0 = x0
    tmp1 = tl.full([1], 3, tl.int32)
    tmp2 = tmp0 < tmp1
    tmp3 = tl.load(in_ptr + xindex, tmp2 & xmask, other=1.5)
    tmp4 = tmp3 * 2.0
    tl.store(out_ptr + xindex, tmp4, xmask)


@triton.jit
def scaled(a_ptr, b_ptr, s_ptr, t_ptr, o_ptr, n, m, k, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    g = tl.arange(0, SIZE // 32)
    row, column = i[:, None], i[None, :]
    a = tl.load(a_ptr + row * SIZE + column, mask=row < n, other=0.0)
    b = tl.load(b_ptr + row * SIZE + column, mask=column < m, other=0.0)
    s = tl.load(s_ptr + row * (SIZE // 32) + g[None, :])
    t = tl.load(t_ptr + row * (SIZE // 32) + g[None, :], mask=row < k, other=127)
    c = tl.dot_scaled(a, s, "e4m3", b, t, "e4m3")
    tl.store(o_ptr + row * SIZE + column, c, mask=(row < n) & (column < m))


@triton.jit
def described(x_ptr, o_ptr, n, m, i, j, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, [n, m], [m, 1], [ROWS, COLUMNS])
    target = tl.make_tensor_descriptor(o_ptr, [n, m], [m, 1], [ROWS, COLUMNS])
    x = source.load([i, j])
    y = x * 2.0
    target.store([j, i], y)


@triton.jit
def listed(x_ptr, o_ptr, n, m, i, j, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of a descriptor by index, and a slice of one of rank 3."""
    source = tl.make_tensor_descriptor(x_ptr, [n, m], [m, 1], [1, COLUMNS])
    target = tl.make_tensor_descriptor(o_ptr, [n, m], [m, 1], [1, COLUMNS])
    deep = tl.make_tensor_descriptor(x_ptr, [i, n, m], [n * m, m, 1], [1, ROWS, COLUMNS])
    rows = tl.arange(0, ROWS) * 2 - i
    x = source.gather(rows, j)
    y = deep.load([j, i, j]).reshape([ROWS, COLUMNS])
    target.scatter(x + y, rows + 1, j)


@triton.jit
def passed_in(desc, o_ptr, i, j, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A descriptor made on the host."""
    x = desc.load([i, j])
    rows = tl.arange(0, ROWS)[:, None]
    tl.store(o_ptr + rows * COLUMNS + tl.arange(0, COLUMNS)[None, :], x)


@triton.jit
def effects(x_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    """Uses that take every lane."""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.device_print("x", x * 2.0)
    y = tl.load(x_ptr + BLOCK + i)
    at = (y * 4.0).to(tl.int32)
    tl.store(o_ptr + at, x, mask=i < n)
    z = tl.load(x_ptr + 2 * BLOCK + i)
    tl.store(o_ptr + i, i * 1.0, mask=(z > 0) & (i < m))
    packed = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [x + 3.0], tl.int32, is_pure=True, pack=2
    )
    tl.store(o_ptr + i, packed, mask=i < n)


@triton.jit
def reordered(x_ptr, y_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    j = tl.arange(0, 2 * BLOCK)
    x = tl.load(x_ptr + i)
    joined = tl.cat(x, tl.load(y_ptr + i), can_reorder=True)
    tl.store(o_ptr + j, joined, mask=j < n)
    total = tl.cat(x + 1.0, x, can_reorder=True)
    tl.store(o_ptr + j, total)


@triton.jit
def blocks_of_blocks(x_ptr, o_ptr, n, m, k, BLOCK: tl.constexpr):
    """The mask of the outer loop's store is made in its body, behind the inner loop."""
    i = tl.arange(0, BLOCK)
    for outer in range(0, n):
        acc = tl.load(x_ptr + outer * BLOCK + i)
        for inner in range(0, k):
            acc = acc * 0.5 + inner
        y = acc + 1.0
        inside = i < m + outer
        tl.store(o_ptr + outer * BLOCK + i, y, mask=inside)


@triton.jit
def told_late(x_ptr, y_ptr, o_ptr, n, m, k, BLOCK: tl.constexpr):
    """Masks that are read from memory, behind the loop or inside of it."""
    i = tl.arange(0, BLOCK)
    acc = tl.load(x_ptr + i)
    base = acc * 0.25
    for step in range(0, k):
        acc = acc + 1.0
        few = tl.load(y_ptr + step * BLOCK + i) > 0
        tl.store(o_ptr + (step + 1) * BLOCK + i, base, mask=few)
    chosen = tl.load(y_ptr + i) > 0
    tl.store(o_ptr + i, acc, mask=chosen)
