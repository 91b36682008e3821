"""End-to-end cases: a launch, its outputs, and what level 1 must say about statements whose live
lanes torch can name. They run on the CPU backend and, with more data, on an accelerator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import live_kernels as kernels
import torch
import triton

import flagprism_torch
from flagprism_torch.records.model import Row

NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class Seen:
    """Live lanes of a statement: each lane of `values`, `repeats` times. `first`: place of the
    first non-finite one, where it is checked. Without `values` only their number is known."""

    values: torch.Tensor | None
    repeats: int = 1
    first: Any = None
    live: int | None = None


@dataclass
class Result:
    outputs: dict[str, torch.Tensor]
    seen: dict[str, Seen]  # start of the statement -> lanes


@dataclass(frozen=True)
class Case:
    """`run(device)` launches once, with equal inputs every time."""

    name: str
    run: Callable[[str], Result]
    options: dict[str, Any] = field(default_factory=dict)  # of debug()


def normal(device: str, *shape: int, seed: int = 0, dtype: Any = torch.float32) -> torch.Tensor:
    """Normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(device)


def large(device: str) -> bool:
    return device != "cpu"


def _vector_add(device: str) -> Result:
    n, block = (3_000_001, 1024) if large(device) else (5_001, 128)
    x, y = normal(device, n), normal(device, n, seed=1)
    x[7] = y[7] = 0.0
    x[n // 2] = NAN
    x[n - 1], y[n - 1] = INF, -INF
    y[n // 3] = -INF
    out = torch.empty_like(x)
    kernels.vector_add[(triton.cdiv(n, block),)](x, y, out, n, BLOCK=block)

    def place(index: int) -> Any:
        return (index // block, 0, 0), 0, index % block

    return Result(
        {"out": out},
        {
            "x = tl.load": Seen(x, first=place(n // 2)),
            "y = tl.load": Seen(y, first=place(n // 3)),
            "total = x + y": Seen(out, first=place(n // 3)),
            "tl.store": Seen(out, first=place(n // 3)),
        },
    )


def _softmax(device: str) -> Result:
    rows, columns = (4_099, 781) if large(device) else (23, 50)
    x = normal(device, rows, columns)
    x[rows // 2, 3] = NAN
    out = torch.empty_like(x)
    kernels.row_softmax[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    assert torch.allclose(out, x.softmax(1), atol=1e-6, equal_nan=True)
    first = ((rows // 2, 0, 0), 0, 0)
    return Result(
        {"out": out},
        {
            "x = tl.load": Seen(x, first=((rows // 2, 0, 0), 0, 3)),
            "p = numerator": Seen(out, first=first),
            "tl.store": Seen(out, first=first),
        },
    )


def _layer_norm(dtype: torch.dtype) -> Callable[[str], Result]:
    def run(device: str) -> Result:
        rows, columns = (2_051, 1_000) if large(device) else (11, 100)
        block = 256 if large(device) else 32
        x, w = normal(device, rows, columns, dtype=dtype), normal(device, columns, seed=1)
        x[rows // 2, columns // 2] = NAN
        out = torch.empty(rows, columns, device=device)
        mean, rstd = torch.empty(rows, device=device), torch.empty(rows, device=device)
        kernels.layer_norm[(rows,)](x, w, out, mean, rstd, columns, 1e-5, BLOCK=block)
        wanted = torch.nn.functional.layer_norm(x.float(), (columns,), w)
        assert torch.allclose(out, wanted, atol=1e-4, equal_nan=True)
        program, column = (rows // 2, 0, 0), columns // 2
        first = (program, column // block, column % block)
        return Result(
            {"out": out, "mean": mean, "rstd": rstd},
            {
                "a = tl.load": Seen(x.float(), first=first),
                "b = tl.load": Seen(x.float(), first=first),
                "c = tl.load": Seen(x.float(), first=first),
                "w = tl.load": Seen(w, repeats=rows),
                "tl.store(mean_ptr": Seen(mean, first=(program, 0, 0)),
                "tl.store(rstd_ptr": Seen(rstd, first=(program, 0, 0)),
                "tl.store(out_ptr": Seen(out, first=(program, 0, 0)),
            },
        )

    return run


def _matmul(device: str) -> Result:
    m, n, k = (1_000, 520, 300) if large(device) else (70, 40, 50)
    tile, inner = (64, 32) if large(device) else (32, 16)
    a = normal(device, m, k, dtype=torch.float16)
    b = normal(device, k, n, seed=1, dtype=torch.float16)
    out = torch.empty(m, n, device=device)
    grid = (triton.cdiv(m, tile), triton.cdiv(n, tile))
    kernels.matmul[grid](a, b, out, m, n, k, BM=tile, BN=tile, BK=inner)
    assert torch.allclose(out, a.float() @ b.float(), atol=0.05, rtol=1e-2)
    return Result(
        {"out": out},
        {
            "a = tl.load": Seen(a.float(), repeats=grid[1]),
            "b = tl.load": Seen(b.float(), repeats=grid[0]),
            "tl.store": Seen(out),
        },
    )


def _attention(device: str) -> Result:
    heads, length = (6, 1_000) if large(device) else (2, 40)
    width, tile = (64, 64) if large(device) else (16, 16)
    q, k, v = (normal(device, heads, length, width, seed=s, dtype=torch.float16) for s in range(3))
    out = torch.empty(heads, length, width, device=device)
    lse = torch.empty(heads, length, device=device)
    grid = (triton.cdiv(length, tile), heads)
    kernels.attention[grid](q, k, v, out, lse, length, width**-0.5, D=width, BM=tile, BN=tile)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), is_causal=True
    )
    assert torch.allclose(out, wanted, atol=2e-2)
    return Result(
        {"out": out, "lse": lse},
        {
            "q = tl.load": Seen(q.float()),
            "tl.store(out_at": Seen(out),
            "tl.store(lse_at": Seen(lse),
        },
    )


def _integers(dtype: torch.dtype) -> Callable[[str], Result]:
    def run(device: str) -> Result:
        n, block = (1_000_003, 512) if large(device) else (3_003, 128)
        limits = torch.iinfo(dtype)
        generator = torch.Generator().manual_seed(3)
        x = torch.randint(limits.min, limits.max, (n,), generator=generator, dtype=torch.int64).to(
            dtype
        )
        x[5], x[6], x[7] = limits.min, limits.max, 0
        x = x.to(device)
        out = torch.empty_like(x)
        kernels.integers[(triton.cdiv(n, block),)](x, out, n, BLOCK=block)
        assert torch.equal(out, x ^ 3)
        return Result(
            {"out": out},
            {"x = tl.load": Seen(x), "flipped": Seen(out), "tl.store": Seen(out)},
        )

    return run


def _convert(
    source: torch.dtype, target: torch.dtype, planted: tuple[float, ...] = ()
) -> Callable[[str], Result]:
    def run(device: str) -> Result:
        n, block = (1_000_003, 512) if large(device) else (3_003, 128)
        x = normal(device, n, dtype=torch.float64)
        x[11 : 11 + len(planted)] = torch.tensor(planted, dtype=torch.float64)
        x = x.to(source)
        out = torch.empty(n, dtype=target, device=device)
        kernels.convert[(triton.cdiv(n, block),)](x, out, n, BLOCK=block)
        assert torch.equal(out.double(), (x.double() * 2).to(target).double())
        return Result({"out": out}, {"x = tl.load": Seen(x), "tl.store": Seen(out)})

    return run


def _atomics(device: str) -> Result:
    n, block = (1_000_003, 512) if large(device) else (3_003, 128)
    generator = torch.Generator().manual_seed(4)
    x = torch.randint(0, 7, (n,), generator=generator, dtype=torch.int32).to(device)
    counts = torch.zeros(7, dtype=torch.int32, device=device)
    kernels.count_values[(triton.cdiv(n, block),)](x, counts, n, BLOCK=block)
    assert torch.equal(counts.long(), torch.bincount(x.long(), minlength=7))
    return Result({"counts": counts}, {"x = tl.load": Seen(x), "tl.atomic_add": Seen(None, live=n)})


def _cube(device: str) -> Result:
    nx, ny, nz = (1_000, 70, 6) if large(device) else (100, 5, 4)
    x = normal(device, nz, ny, nx)
    x[3, 2, 90] = NAN
    out = torch.empty_like(x)
    kernels.cube[(triton.cdiv(nx, 64), ny, nz)](x, out, nx, ny, BLOCK=64)
    first = ((1, 2, 3), 0, 26)
    return Result(
        {"out": out},
        {
            "x = tl.load": Seen(x, first=first),
            "negated = -x": Seen(-x[1::2], first=first),
            "tl.store(out_ptr + at, negated": Seen(-x[1::2], first=first),
            "tl.store(out_ptr + at, x": Seen(x[0::2]),
        },
    )


def _fp8(device: str) -> list[Case]:
    pairs = [("fp8_e5m2", torch.float8_e5m2, torch.float8_e5m2)]
    if device != "cuda" or torch.cuda.get_device_capability() >= (8, 9):
        pairs.append(("fp8_e4m3", torch.float8_e4m3fn, torch.float8_e4m3fn))
    return [Case(name, _convert(source, target)) for name, source, target in pairs]


def cases(device: str) -> list[Case]:
    """Every case that the device can run."""
    return [
        Case("vector_add", _vector_add),
        Case("shared_slots", _vector_add, {"record_capacity": 16}),
        Case("softmax", _softmax),
        Case("layer_norm_fp32", _layer_norm(torch.float32)),
        Case("layer_norm_bf16", _layer_norm(torch.bfloat16)),
        Case("matmul_fp16", _matmul),
        Case("attention_fp16", _attention),
        Case("int8", _integers(torch.int8)),
        Case("uint8", _integers(torch.uint8)),
        Case("int32", _integers(torch.int32)),
        Case("int64", _integers(torch.int64)),
        Case("fp64", _convert(torch.float64, torch.float64, (1e150, -3e149, 5e-324))),
        Case("fp64_squares_overflow", _convert(torch.float64, torch.float64, (1e300, -3e299))),
        Case("fp32_to_bf16", _convert(torch.float32, torch.bfloat16)),
        Case("fp16_to_fp32", _convert(torch.float16, torch.float32)),
        *_fp8(device),
        Case("atomics", _atomics),
        Case("three_axes", _cube),
        Case("three_axes_shared_slots", _cube, {"record_capacity": 1}),
    ]


# Checks


def check_row(row: Row, seen: Seen) -> None:
    """Counts, extremes and first place exactly; mean and l2 within the rounding of their sums."""
    assert row.mask in ("live", "valid", "all"), f"{row.statement}: mask {row.mask}"
    if seen.values is None:
        assert row.live == seen.live, row.statement
        return
    check_statistics(row, seen.values, seen.repeats)
    if seen.first is not None and not _saturated(row):
        assert row.first_nonfinite == seen.first, f"{row.statement}: {row.first_nonfinite}"


def _saturated(row: Row) -> bool:
    return row.first_nonfinite is not None and row.first_nonfinite[1] is None


def check_statistics(row: Row, values: torch.Tensor, repeats: int = 1) -> None:
    """`row` against the statistics of `values`, each lane counted `repeats` times."""
    real = values.is_floating_point()
    wide = values.double() if real else values
    finite = wide[torch.isfinite(wide)] if real else wide
    wanted = {
        "live": values.numel(),
        "nan": int(wide.isnan().sum()) if real else 0,
        "posinf": int((wide == INF).sum()) if real else 0,
        "neginf": int((wide == -INF).sum()) if real else 0,
        "zero": int((wide == 0).sum()),
    }
    got = {name: getattr(row, name) for name in wanted}
    assert got == {name: n * repeats for name, n in wanted.items()}, row.statement
    if finite.numel() == 0:
        assert row.min is row.max is row.mean is row.l2 is None
        return
    assert (row.min, row.max) == (finite.min().item(), finite.max().item()), row.statement
    assert row.mean is not None and row.l2 is not None
    double = finite.double()
    slack = 1e-12 if values.dtype == torch.float64 or not real else 1e-5
    bound = slack * double.abs().mean().item()
    assert math.isclose(row.mean, double.mean().item(), rel_tol=slack, abs_tol=bound), (
        f"{row.statement}: mean {row.mean}, wanted {double.mean().item()}"
    )
    scale = max(double.abs().max().item(), 1e-300)
    near = max(slack, 1e-9) if real else 1e-6  # squares of integers are float32 per execution
    l2 = (double / scale).norm().item() * scale * math.sqrt(repeats)
    assert math.isclose(row.l2, l2, rel_tol=near), f"{row.statement}: l2 {row.l2}, {l2}"


def find(rows: Any, start: str) -> Row:
    """The row of the result of the only statement that begins with `start`; a load inside of a
    statement has a row without a variable."""
    found = [row for row in rows if row.statement.startswith(start)]
    found = [row for row in found if row.variable is not None] or found
    assert len(found) == 1, f"{start!r}: {[row.statement for row in rows]}"
    return found[0]


def check_case(case: Case, device: str) -> float:
    """Runs the case without and with a session and checks every row; the largest difference between
    the outputs of both."""
    plain = case.run(device)
    with flagprism_torch.debug(logdir=False, **case.options) as session:
        result = case.run(device)
    table = session.table()
    coverage = session.coverage.to_dict()
    assert coverage["launches"] == 1 and not coverage["not_instrumented"], str(session.coverage)
    assert not coverage["stepped_down"], str(session.coverage)
    for start, seen in result.seen.items():
        check_row(find(table, start), seen)
    return max(difference(plain.outputs[name], out) for name, out in result.outputs.items())


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest absolute difference; equal infinities and NaN in the same places count as equal, inf
    if the places of non-finite values differ."""
    a, b = a.double(), b.double()
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return INF
    gap = torch.where(a == b, 0.0, (a - b).abs())
    return gap.nan_to_num(0.0).max().item() if gap.numel() else 0.0
