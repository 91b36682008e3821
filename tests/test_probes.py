"""The probes alone: small kernels call them, their records are compared with the NumPy oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from oracle import histogram_of, record_of

from flagprism_torch.backends.cpu import register, unregister
from flagprism_torch.instrument import histograms, tiles, values, whole, words
from flagprism_torch.records import layout
from flagprism_torch.records.layout import RECORD_DTYPE, RECORD_WORDS, lane_bits

FLOATS = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}
INTS = {
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
}
N = 64
EXACT = ("executions", "live", "nan", "posinf", "neginf", "zero", "first", "flags")


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    registered = register("probes")  # False beside a GPU: the same kernels run there
    yield
    if registered:
        unregister("probes")


@triton.jit(do_not_specialize=["iteration"])
def float_once(x_ptr, mask_ptr, records, iteration, N: tl.constexpr, MASKED: tl.constexpr,
               T: tl.constexpr, BITS: tl.constexpr, SLOTS: tl.constexpr,
               MODE: tl.constexpr):  # fmt: skip
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i)
    mask = tl.load(mask_ptr + i) != 0
    base, program = words.slot(records, 0, 1, SLOTS)
    live = tl.full([], N, tl.int64)
    if MASKED:
        live = values.mask_count(mask, T)
    partials = values.float_partials(x, mask, mask, MASKED, False, T)
    zero, low, high, total, squares = tl.reduce(partials, 0, values.merge_partials)
    flags = tl.full([], 0, tl.int32)
    flags = values.float_flags(x, low, high, squares, low, high, flags, 4)
    values.put_usual(zero, low, high, total, squares, flags, live, base, 0, 4, MODE)
    RARE: tl.constexpr = MODE if MODE != 0 else 1
    values.rare_execution(
        x, mask, flags, iteration.to(tl.int64), base, program, 0, 4, RARE, MASKED, T, BITS
    )


@triton.jit
def float_loop(x_ptr, mask_ptr, records, iterations, N: tl.constexpr, T: tl.constexpr,
               BITS: tl.constexpr):  # fmt: skip
    base, program = words.slot(records, 0, 1, 0)
    zero = tl.zeros([T], tl.int32)
    live = tl.zeros([T], tl.int64)
    if x_ptr.dtype.element_ty == tl.float64:
        low = tl.full([T], float("nan"), tl.float64)
    else:
        low = tl.full([T], float("nan"), tl.float32)
    high = low
    total = tl.zeros([T], tl.float64)
    squares = total
    executions = tl.full([], 0, tl.int64)
    seen = tl.full([], 0, tl.int32)
    for step in range(iterations):
        i = step * N + tl.arange(0, N)
        x = tl.load(x_ptr + i)
        mask = tl.load(mask_ptr + i) != 0
        live = values.mask_accumulate(mask, live, T)
        parts = values.float_partials(x, mask, mask, True, False, T)
        flags = tl.zeros([T], tl.int32)
        flags = values.any_flags(
            values.float_flags(x, parts[1], parts[2], parts[4], low, high, flags, 2)
        )
        zero, low, high, total, squares = values.float_merge(
            parts[0], parts[1], parts[2], parts[3], parts[4], zero, low, high, total, squares,
            flags, 2)  # fmt: skip
        values.rare_execution(x, mask, flags, executions, base, program, 0, 2, 1, True, T, BITS)
        seen |= flags
        executions += 1
    values.float_total(zero, low, high, total, squares, values.mask_total(live), executions, base,
                       0, seen, 0, 2)  # fmt: skip


@triton.jit
def int_once(x_ptr, mask_ptr, records, N: tl.constexpr, MASKED: tl.constexpr, T: tl.constexpr,
             SLOTS: tl.constexpr, MODE: tl.constexpr, TRUTH: tl.constexpr):  # fmt: skip
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i)
    mask = tl.load(mask_ptr + i) != 0
    base, _ = words.slot(records, 0, 1, SLOTS)
    live = tl.full([], N, tl.int64)
    if MASKED:
        live = values.mask_count(mask, T)
    if TRUTH:
        true = tl.reduce(whole.true_partials(x != 0, mask, MASKED, T), 0, tiles.added)
        whole.put_true(true, live, base, 0, MODE)
    else:
        partials = whole.int_partials(x, mask, MASKED, T)
        zero, low, high, total, squares = tl.reduce(partials, 0, values.merge_partials)
        whole.put_int(zero, low, high, total, squares, live, base, 0, MODE)


@triton.jit
def int_loop(x_ptr, mask_ptr, records, iterations, N: tl.constexpr, T: tl.constexpr,
             LONG: tl.constexpr, TRUTH: tl.constexpr):  # fmt: skip
    base, _ = words.slot(records, 0, 1, 0)
    zero = tl.zeros([T], tl.int32)
    if LONG:
        low = tl.full([T], 0x7FFFFFFFFFFFFFFF, tl.int64)
    else:
        low = tl.full([T], 0x7FFFFFFF, tl.int32)
    high = -1 - low
    if x_ptr.dtype.element_ty.primitive_bitwidth == 64:
        total = tl.zeros([T], tl.float64)
    else:
        total = tl.zeros([T], tl.int64)
    squares = tl.zeros([T], tl.float64)
    live = tl.zeros([T], tl.int64)
    executions = tl.full([], 0, tl.int64)
    true = tl.zeros([T], tl.int32)
    for step in range(iterations):
        i = step * N + tl.arange(0, N)
        x = tl.load(x_ptr + i)
        mask = tl.load(mask_ptr + i) != 0
        live = values.mask_accumulate(mask, live, T)
        if TRUTH:
            true = whole.true_accumulate(x != 0, mask, true, True, T)
        else:
            zero, low, high, total, squares = whole.int_accumulate(
                x, mask, zero, low, high, total, squares, True, T
            )
        executions += 1
    if TRUTH:
        whole.true_total(true, values.mask_total(live), executions, base, 0, 0)
    else:
        whole.int_total(
            zero, low, high, total, squares, values.mask_total(live), executions, base, 0, 0
        )


@triton.jit
def count_binades(x_ptr, mask_ptr, records, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    mask = tl.load(mask_ptr + i) != 0
    program = tl.program_id(0).to(tl.int64)
    histograms.histogram(tl.load(x_ptr + i), mask, records, program, 1, 2, 4, True)


def numbers(x: torch.Tensor) -> np.ndarray:
    """The tensor as an array that holds its values exactly."""
    if x.is_floating_point():
        return x.double().cpu().numpy()
    return x.cpu().numpy()


def new_records(device: str, slots: int = 1) -> torch.Tensor:
    return torch.zeros(slots * RECORD_WORDS, dtype=torch.int32, device=device)


def decoded(records: torch.Tensor) -> np.ndarray:
    return np.frombuffer(records.cpu().numpy().tobytes(), RECORD_DTYPE)


def check(found: Any, expected: Any, dtype: str, scale: float) -> None:
    """Counters and extremes exactly; sums to 1e-5, with `scale` the largest possible sum."""
    for name in EXACT:
        assert found[name] == expected[name], name
    if expected["live"] == expected["nan"] + expected["posinf"] + expected["neginf"]:
        # no finite lane: below the key of any finite value, so that merging ignores it
        largest = 0x000FFFFFFFFFFFFF if layout.is_float(dtype) else 0
        assert max(found["min_key"], found["max_key"]) <= largest
    else:
        for key, value in (("min_key", layout.min_of_key), ("max_key", layout.value_of_key)):
            assert value(found[key], dtype) == value(expected[key], dtype), key
    if np.isinf(expected["sum"]):
        assert np.isinf(found["sum"])
    else:
        assert found["sum"] == pytest.approx(expected["sum"], rel=1e-5, abs=1e-6 * scale)
    squares = [float(r["sumsq"]) * 4.0 ** int(r["scale"]) for r in (found, expected)]
    assert squares[0] == pytest.approx(squares[1], rel=1e-5)


def scale_of(values_: np.ndarray, mask: np.ndarray) -> float:
    kept = np.abs(values_.astype(np.float64)[mask])
    return float(kept[np.isfinite(kept)].sum())


def run_floats(
    x: torch.Tensor, mask: np.ndarray | None, dtype: str, threads: int, device: str,
    iteration: int = 0,
) -> None:  # fmt: skip
    records = new_records(device)
    live = np.ones(x.numel(), bool) if mask is None else mask
    float_once[(1,)](
        x.to(device), torch.tensor(live.astype(np.int8), device=device), records, iteration,
        N=x.numel(), MASKED=mask is not None, T=threads, BITS=lane_bits(x.numel()), SLOTS=0, MODE=0,
    )  # fmt: skip
    expected = record_of(numbers(x), dtype, mask, iteration=iteration)
    check(decoded(records)[0], expected, dtype, scale_of(numbers(x), live))


def hard_values(dtype: str) -> torch.Tensor:
    """Extremes, denormals, signed zeros, infinities and NaN payloads, then noise."""
    kind = FLOATS[dtype]
    info = torch.finfo(kind)
    special = [0.0, -0.0, info.tiny, -info.tiny, info.smallest_normal / 2, info.eps]
    # fp64 extremes are a test of their own: their squares leave float64's range
    if dtype != "fp64":
        special += [info.max, info.min, info.max / 2]
    x = torch.cat([torch.tensor(special, dtype=torch.float64), torch.randn(N, dtype=torch.float64)])
    x = x[:N].to(kind)
    if dtype == "fp8e4nv":  # has no infinity
        x[20], x[21] = float("nan"), -float("nan")
    else:
        x[20], x[21], x[22], x[23] = float("nan"), float("inf"), float("-inf"), float("inf")
    payloads = {
        "fp64": [0x7FF0000000000001, -1, 0x7FF8DEADBEEF0000],
        "fp32": [0x7F800001, -1, 0x7FC0BEEF],
        "fp16": [0x7C01, -1, 0x7E42],
        "bf16": [0x7F81, -1, 0x7FC2],
        "fp8e4nv": [0x7F, -1],
        "fp8e5": [0x7D, -1, 0x7F],
    }[dtype]
    width = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[x.element_size()]
    x[30 : 30 + len(payloads)] = torch.tensor(payloads, dtype=width).view(kind)
    return x


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("threads", [1, 16])
def test_hard_floats(dtype: str, threads: int, device: str) -> None:
    x = hard_values(dtype)
    mask = np.random.default_rng(1).random(N) < 0.6
    mask[:6] = True
    mask[20] = False  # the first NaN is padding
    run_floats(x, mask, dtype, threads, device, iteration=5)
    run_floats(x, None, dtype, threads, device)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
@pytest.mark.parametrize("magnitude", [1e30, 1e-30, 3e38, 1e-44])
def test_magnitudes(dtype: str, magnitude: float, device: str) -> None:
    """Neither sum overflows or vanishes, whatever the magnitude."""
    x = (torch.rand(256, dtype=torch.float64) * 2 - 1) * magnitude
    run_floats(x.to(FLOATS[dtype]), None, dtype, 16, device)


def test_mixed_magnitudes(device: str) -> None:
    x = torch.full((256,), 1e-20)
    x[3], x[200] = 1e25, -1e25
    run_floats(x, None, "fp32", 16, device)


def test_fp64_extremes(device: str) -> None:
    """Counts and extremes are exact over the whole range; there the sums may overflow."""
    big = torch.finfo(torch.float64).max
    x = torch.tensor(
        [big, -big, 5e-324, -5e-324, 0.0, 1.0, float("nan"), -0.0], dtype=torch.float64
    )
    records = new_records(device)
    float_once[(1,)](
        x.to(device), torch.ones(8, dtype=torch.int8, device=device), records, 0,
        N=8, MASKED=False, T=4, BITS=3, SLOTS=0, MODE=0,
    )  # fmt: skip
    (found,), expected = decoded(records), record_of(x.numpy(), "fp64")
    for name in EXACT:
        assert found[name] == expected[name], name
    assert layout.min_of_key(found["min_key"], "fp64") == -big
    assert layout.value_of_key(found["max_key"], "fp64") == big


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.0, -0.0])
def test_uniform(value: float, device: str) -> None:
    """No finite lane at all, and zeros alone."""
    run_floats(torch.full((N,), value), None, "fp32", 16, device)


def test_nothing_live(device: str) -> None:
    run_floats(torch.full((N,), float("nan")), np.zeros(N, bool), "fp32", 16, device)


@pytest.mark.parametrize(
    ("numel", "threads"),
    [(1, 1), (2, 1), (256, 1), (4096, 8), (32768, 128), (65536, 128), (65536, 1)],
)
def test_sizes(numel: int, threads: int, device: str) -> None:
    """Counters are packed where few lanes share one; no number of lanes may overflow them."""
    x = torch.randn(numel)
    x[::3] = 0
    x[numel // 2 :: 5] = float("nan")
    x[numel // 3 :: 7] = float("-inf")
    run_floats(x, None, "fp32", threads, device)
    run_floats(torch.full((numel,), float("inf")), None, "fp32", threads, device)
    run_floats(torch.zeros(numel), None, "fp32", threads, device)


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "bf16"])
@pytest.mark.parametrize("iterations", [0, 3])
def test_float_loop(dtype: str, iterations: int, device: str) -> None:
    x = torch.stack([hard_values(dtype).roll(7 * k) for k in range(4)])
    mask = np.random.default_rng(2).random((4, N)) < 0.5
    mask[0] &= np.isfinite(numbers(x[0]))  # the first place is in a later iteration
    records = new_records(device)
    float_loop[(1,)](x.to(device), torch.tensor(mask.astype(np.int8), device=device), records,
                     iterations, N=N, T=16, BITS=lane_bits(N))  # fmt: skip
    used, live = numbers(x[:iterations]), mask[:iterations]
    expected = record_of(used, dtype, live, executions=iterations)
    for step in range(iterations):
        bad = np.flatnonzero(live[step] & ~np.isfinite(used[step]))
        if len(bad):
            expected["first"] = layout.pack_first(0, step, int(bad[0]), N)
            break
    check(decoded(records)[0], expected, dtype, scale_of(used, live))


def hard_ints(dtype: str) -> torch.Tensor:
    info = torch.iinfo(INTS[dtype])
    chosen = [info.min, info.max, 0, 1, info.max - 1, info.min + 1, info.max // 2 + 1]
    some = np.random.default_rng(3).integers(info.min, info.max, N, np.dtype(dtype), endpoint=True)
    some[: len(chosen)] = np.array(chosen, dtype)
    return torch.from_numpy(some)


@pytest.mark.parametrize("dtype", INTS)
def test_ints(dtype: str, device: str) -> None:
    """Extremes exactly, also of 64-bit and unsigned values above 2**53."""
    x, mask = hard_ints(dtype), np.random.default_rng(4).random(N) < 0.5
    mask[:7] = [False, True, True, False, True, True, True]
    for live, threads in ((mask, 16), (None, 1), (np.zeros(N, bool), 16)):
        records = new_records(device)
        full = np.ones(N, bool) if live is None else live
        int_once[(1,)](x.to(device), torch.tensor(full.astype(np.int8), device=device), records,
                       N=N, MASKED=live is not None, T=threads, SLOTS=0, MODE=0,
                       TRUTH=False)  # fmt: skip
        check(decoded(records)[0], record_of(numbers(x), dtype, live), dtype,
              scale_of(numbers(x), full))  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("iterations", [0, 3])
def test_int_loop(dtype: str, iterations: int, device: str) -> None:
    x = torch.stack([hard_ints(dtype).view(torch.uint8).roll(16 * k).view(INTS[dtype])
                     for k in range(4)])  # fmt: skip
    mask = np.random.default_rng(5).random((4, N)) < 0.5
    records = new_records(device)
    int_loop[(1,)](x.to(device), torch.tensor(mask.astype(np.int8), device=device), records,
                   iterations, N=N, T=16, LONG=dtype != "int8", TRUTH=False)  # fmt: skip
    used, live = numbers(x[:iterations]), mask[:iterations]
    expected = record_of(used, dtype, live, executions=iterations)
    check(decoded(records)[0], expected, dtype, scale_of(used, live))


@pytest.mark.parametrize("mode", [words.MERGE, words.ATOMIC])
def test_several_executions_into_one_record(mode: int, device: str) -> None:
    """Merging in memory: one program after the other, or many that share slots."""
    programs, slots = 7, 3
    x = torch.randn(programs * N, dtype=torch.float64)
    x[4 * N + 9], x[2 * N + 5], x[5 * N + 1] = float("nan"), float("inf"), float("-inf")
    x[6 * N] = 0
    mask = np.random.default_rng(6).random(programs * N) < 0.7
    mask[[4 * N + 9, 2 * N + 5, 5 * N + 1, 6 * N]] = True
    lanes = torch.tensor(mask.astype(np.int8), device=device)
    records = torch.zeros(slots * RECORD_WORDS, dtype=torch.int32, device=device)
    used = x.float()
    if mode == words.ATOMIC:
        float_once[(programs,)](used.to(device), lanes, records, 0, N=N, MASKED=True, T=16,
                                BITS=6, SLOTS=slots, MODE=mode)  # fmt: skip
    else:
        for k in range(programs):  # program 0 each time; iteration k
            part = slice(k * N, (k + 1) * N)
            slot = records[k % slots * RECORD_WORDS :][:RECORD_WORDS]
            float_once[(1,)](used[part].to(device), lanes[part], slot, k, N=N, MASKED=True,
                             T=16, BITS=6, SLOTS=0, MODE=mode)  # fmt: skip
    found = decoded(records)
    for slot in range(slots):
        mine = range(slot, programs, slots)
        parts = np.stack([numbers(used[k * N : (k + 1) * N]) for k in mine])
        live = np.stack([mask[k * N : (k + 1) * N] for k in mine])
        expected = record_of(parts, "fp32", live, executions=len(mine))
        place = 0
        for index, k in enumerate(mine):
            bad = np.flatnonzero(live[index] & ~np.isfinite(parts[index]))
            if len(bad):
                program, iteration = (k, 0) if mode == words.ATOMIC else (0, k)
                place = layout.pack_first(program, iteration, int(bad[0]), N)
                break
        expected["first"] = place
        check(found[slot], expected, "fp32", scale_of(parts, live))


@pytest.mark.parametrize("iterations", [None, 0, 3])
@pytest.mark.parametrize("kind", ["some", "all", "none"])
def test_truth_values(kind: str, iterations: int | None, device: str) -> None:
    """Everything follows from how many are true: once, and in a loop."""
    rows = 1 if iterations is None else iterations
    rng = np.random.default_rng(8)
    x = {
        "some": rng.random((4, N)) < 0.3,
        "all": np.ones((4, N), bool),
        "none": np.zeros((4, N), bool),
    }
    data = torch.tensor(x[kind].astype(np.int8), device=device)
    mask = rng.random((4, N)) < 0.6
    lanes, records = torch.tensor(mask.astype(np.int8), device=device), new_records(device)
    if iterations is None:
        int_once[(1,)](data, lanes, records, N=N, MASKED=True, T=16, SLOTS=0, MODE=0, TRUTH=True)
    else:
        int_loop[(1,)](data, lanes, records, iterations, N=N, T=16, LONG=False, TRUTH=True)
    used, live = x[kind][:rows].astype(np.int8), mask[:rows]
    check(decoded(records)[0], record_of(used, "int8", live, executions=rows), "int8", float(N))


def test_ints_share_slots(device: str) -> None:
    x = torch.stack([hard_ints("int64").roll(k) for k in range(4)])
    x[1:, :2] = 7  # only the first program holds both limits, where it is live
    records = torch.zeros(2 * RECORD_WORDS, dtype=torch.int32, device=device)
    mask = torch.ones(4 * N, dtype=torch.int8, device=device)
    int_once[(4,)](x.to(device), mask, records, N=N, MASKED=True, T=16, SLOTS=2, MODE=2,
                   TRUTH=False)  # fmt: skip
    for slot, found in enumerate(decoded(records)):
        part = numbers(x[slot::2])
        expected = record_of(part, "int64", executions=2)
        check(found, expected, "int64", scale_of(part, np.ones_like(part, bool)))


def test_place_saturates(device: str) -> None:
    """An iteration beyond the bits that are left reads as unknown, the program and lane stay."""
    x = torch.zeros(N)
    x[17] = float("nan")
    limit = (1 << layout.iteration_bits(N)) - 1
    for iteration, expected in ((limit - 1, limit - 1), (limit, None), (limit + 5, None)):
        records = new_records(device)
        mask = torch.ones(N, dtype=torch.int8, device=device)
        float_once[(1,)](x.to(device), mask, records, iteration, N=N, MASKED=False, T=1, BITS=6,
                         SLOTS=0, MODE=0)  # fmt: skip
        first = int(decoded(records)[0]["first"])
        assert layout.unpack_first(first, N) == (0, expected, 17)


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "bf16", "fp8e5"])
def test_histogram(dtype: str, device: str) -> None:
    programs, shards, blocks = 6, 4, 2
    exponents = torch.arange(programs * N, dtype=torch.float64) % 45 - 32
    sign = torch.where(torch.arange(programs * N) % 3 == 0, -1.0, 1.0)
    x = (sign * 2**exponents * (1 + torch.rand(programs * N, dtype=torch.float64) / 2)).to(
        FLOATS[dtype]
    )
    x[5], x[6], x[7], x[8] = float("nan"), float("inf"), 0.0, -0.0
    mask = np.random.default_rng(7).random(programs * N) < 0.8
    counts = torch.zeros(shards * blocks * 64, dtype=torch.int64, device=device)
    count_binades[(programs,)](x.to(device), torch.tensor(mask.astype(np.int8), device=device),
                               counts.view(torch.int32), N=N)  # fmt: skip
    found = counts.view(shards, blocks, 64).cpu().numpy()
    assert np.array_equal(found[:, 1].sum(0), histogram_of(numbers(x), mask))
    assert not found[:, 0].any()
    for shard in range(shards):  # program % shards
        mine = np.arange(programs * N) // N % shards == shard
        assert np.array_equal(found[shard, 1], histogram_of(numbers(x), mask & mine))
