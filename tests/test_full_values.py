"""`debug(level=2)`: every lane against NumPy and torch, and tensors put together from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import flagprism_torch
from flagprism_torch.backends.cpu import register, unregister
from flagprism_torch.records.full_values import FullValue, FullValues
from flagprism_torch.session import Session

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "uint8": torch.uint8,
}


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    registered = register("full values")  # False beside a GPU
    yield
    if registered:
        unregister("full values")


def session_of(launch: Callable[[], Any], **options: Any) -> Session:
    with flagprism_torch.debug(level=2, logdir=False, **options) as session:
        launch()
    assert not session.coverage.to_dict()["not_instrumented"]
    assert not session.coverage.to_dict()["stepped_down"]
    return session


def recorded(launch: Callable[[], Any], **options: Any) -> FullValues:
    return session_of(launch, **options).full_values


def one(values: FullValues, variable: str | None = None, **conditions: Any) -> FullValue:
    if variable is not None:
        conditions["variable"] = variable
    found = values.where(**conditions)
    assert len(found) == 1, (conditions, list(values))
    return found[0]


def bits(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's bits as integers."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    plain = tensor.detach().cpu().contiguous()
    return plain.view(kinds[tensor.itemsize]).numpy().view(f"u{tensor.itemsize}")


def same_bits(array: np.ndarray, tensor: torch.Tensor) -> bool:
    kept = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    return np.array_equal(kept, bits(tensor))


@triton.jit
def copy(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside)
    tl.store(o_ptr + i, x, mask=inside)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_of_every_type(dtype: str, device: str) -> None:
    """All bit patterns of 8 and 16 bits, random ones of the others; NaN payloads included."""
    kind, size = DTYPES[dtype], DTYPES[dtype].itemsize
    if size <= 2:
        raw = np.arange(1 << (8 * size), dtype=f"u{size}")
    else:
        raw = np.random.default_rng(0).integers(0, 1 << 32, 300 * size // 4, np.uint32)
    x = torch.from_numpy(raw.view(f"i{size}") if size > 1 else raw).view(kind).to(device)
    n, block = x.numel(), 128
    o = torch.empty_like(x)
    programs = triton.cdiv(n, block)
    copy[(programs,)](x, o, n, BLOCK=block)
    kept = bits(o) == bits(x)  # the CPU backend has one NaN for bf16 and fp8 in registers
    assert kept.all() or (device == "cpu" and x.isnan().cpu().numpy()[~kept].all())
    o.zero_()
    values = recorded(lambda: copy[(programs,)](x, o, n, BLOCK=block))
    load, store = one(values, "x"), one(values, role="store")
    for value in (load, store):
        assert value.array.shape == value.mask.shape == (programs, 1, block)
        assert (value.dtype, value.mask_kind, value.complete) == (dtype, "live", True)
        assert np.array_equal(value.mask.reshape(-1)[:n], np.ones(n, bool))
        assert not value.mask.reshape(-1)[n:].any()
        assert same_bits(value.array.reshape(-1)[:n], o)
        assert value.tensor().dtype == kind and value.tensor().shape == (programs, 1, block)
        assert same_bits(value.array, value.tensor())
        assert np.array_equal(value.executions, np.ones(programs, np.int64))
        assert np.array_equal(value.programs, np.arange(programs))
    assert np.array_equal(bits(o)[kept], bits(x)[kept])
    made = store.global_tensor()
    assert made.values is not None and made.written is not None
    assert same_bits(made.values, o) and made.written.all()


@triton.jit
def mixed(x_ptr, o_ptr, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=7.0)
    y = x * scale
    positive = y > 0
    largest = tl.max(y, 0)
    kept = tl.where(positive, y, largest)
    tl.store(o_ptr + i, kept, mask=i < n)


def test_values_masks_and_scalars(device: str) -> None:
    n, block = 100, 64
    x = torch.randn(n, device=device)
    o = torch.zeros(n, device=device)
    values = recorded(lambda: mixed[(2,)](x, o, n, 3.0, BLOCK=block))
    whole = torch.full((2, 1, block), 7.0)
    whole.view(-1)[:n] = x.cpu()
    assert same_bits(one(values, "x").array, whole)  # lanes outside of the mask too
    y = whole * 3.0
    assert same_bits(one(values, "y").array, y)
    assert np.array_equal(one(values, "positive").array, (y > 0).numpy())
    assert one(values, "positive").dtype == "int1"
    largest = one(values, "largest")
    assert largest.array.shape == largest.mask.shape == (2, 1) and largest.mask.all()
    assert same_bits(largest.array, y.amax(2))
    kept = torch.where(y > 0, y, y.amax(2, keepdim=True))
    store = one(values, role="store")
    assert same_bits(store.array, kept)
    lanes = np.arange(2 * block).reshape(2, 1, block)
    assert np.array_equal(store.mask, lanes < n)
    assert store.offsets is not None and store.active is not None
    assert store.argument == "o_ptr"
    assert np.array_equal(store.offsets, 4 * lanes)
    assert np.array_equal(store.active, lanes < n)
    assert one(values, "x").offsets is None


def test_addresses_of_everything(device: str) -> None:
    x, o = torch.randn(100, device=device), torch.zeros(100, device=device)
    values = recorded(lambda: mixed[(2,)](x, o, 100, 3.0, BLOCK=64), addr_level=2)
    load = one(values, "x")
    assert load.offsets is not None and load.active is not None
    assert np.array_equal(load.offsets.reshape(-1), 4 * np.arange(128))
    assert np.array_equal(load.active.reshape(-1), np.arange(128) < 100)
    made = load.global_tensor()
    assert made.values is not None and same_bits(made.values, x)
    assert one(values, "y").offsets is None
    assert "is no access" in one(values, "y").global_tensor().reason


@triton.jit
def accumulate(x_ptr, o_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + i, mask=i < columns, other=0.0)
        total += x
        tl.store(o_ptr + row * columns + i, total, mask=i < columns)


def test_loop_with_a_known_end(device: str) -> None:
    rows, columns, block = 5, 75, 16
    x = torch.randn(rows, columns, device=device)
    o = torch.zeros(rows, columns, device=device)
    values = recorded(lambda: accumulate[(rows,)](x, o, columns, BLOCK=block))
    padded = torch.zeros(rows, 80)
    padded[:, :columns] = x.cpu()
    load = one(values, "x")
    assert load.capacity == 5
    assert same_bits(load.array, padded.view(rows, 5, block))
    assert np.array_equal(load.executions, np.full(rows, 5))
    running = torch.stack([padded.view(rows, 5, block)[:, : k + 1].sum(1) for k in range(5)], 1)
    store = one(values, role="store")
    np.testing.assert_allclose(store.array, running.numpy(), rtol=1e-5)
    made = store.global_tensor()
    assert made.values is not None and same_bits(made.values, o)


@triton.jit
def triangle(x_ptr, o_ptr, count_ptr, STEPS: tl.constexpr):
    """Loops whose ends depend on the program, on memory, and on a loop around."""
    row = tl.program_id(0)
    for k in range(row):
        near = tl.load(x_ptr + k) + 1.0
        tl.store(o_ptr, near)
    for k in range(tl.load(count_ptr + row)):
        far = tl.load(x_ptr + k) + 2.0
        tl.store(o_ptr, far)
    for outer in range(STEPS):
        for inner in range(outer):
            deep = tl.load(x_ptr + inner) * 2.0
            tl.store(o_ptr, deep)


def test_loops_of_different_lengths(device: str) -> None:
    x, o = torch.randn(8, device=device), torch.zeros(1, device=device)
    counts = torch.tensor([3, 0, 5, 1], device=device)
    values = recorded(lambda: triangle[(4,)](x, o, counts, STEPS=4))
    host = x.cpu()
    near, far, deep = (one(values, name) for name in ("near", "far", "deep"))
    assert near.capacity == 3  # the longest of all programs, from their ids
    assert np.array_equal(near.executions, [0, 1, 2, 3])
    assert np.array_equal(far.executions, [3, 0, 5, 1])
    assert np.array_equal(deep.executions, [6, 6, 6, 6])
    assert near.complete and far.complete and deep.complete
    assert far.array.shape == (4, 5) and deep.array.shape == (4, 6)
    for program, count in enumerate([3, 0, 5, 1]):
        wanted = torch.zeros(5)
        wanted[:count] = host[:count] + 2.0
        assert same_bits(far.array[program], wanted)  # zero behind the last execution
        assert np.array_equal(far.mask[program], np.arange(5) < count)
    for program in range(4):
        assert same_bits(near.array[program, :program], host[:program] + 1.0)
        assert same_bits(deep.array[program], host[[0, 0, 1, 0, 1, 2]] * 2.0)
    made = one(values, statement="tl.store(o_ptr, near)").global_tensor()
    assert made.values is None and "disagree" in made.reason


@triton.jit
def halving(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    size = tl.max(x, 0)
    while size > 1:
        x = x * 0.5
        size = tl.max(x, 0)
    if size > 0.75:
        big = x + 10.0
        tl.store(o_ptr + i, big)


def test_while_and_if(device: str) -> None:
    x = torch.tensor([[1.0, 0.5], [6.0, 1.0], [1.9, 1.0], [64.0, 2.0]], device=device)
    o = torch.zeros(4, 2, device=device)
    values = recorded(lambda: halving[(4,)](x, o, BLOCK=2))
    halved = one(values, "x", role="value")
    assert np.array_equal(halved.executions, [0, 3, 1, 6]) and halved.complete
    expected = torch.zeros(4, 6, 2)
    for program, count in enumerate([0, 3, 1, 6]):
        for k in range(count):
            expected[program, k] = x.cpu()[program] * 0.5 ** (k + 1)
    assert same_bits(halved.array, expected)
    big = one(values, "big")
    last = x.cpu() * torch.tensor([1.0, 0.125, 0.5, 2.0**-6])[:, None]
    taken = last.amax(1) > 0.75
    assert np.array_equal(big.executions, taken.int().numpy())
    made = one(values, role="store").global_tensor()
    assert made.values is not None and made.written is not None
    assert np.array_equal(made.written, taken[:, None].expand(4, 2).numpy())
    assert same_bits(made.values, o)


def test_more_executions_than_room(device: str) -> None:
    """A loop of unknown length gets part of what is left, and says when that was not enough."""
    x = torch.full((1, 4), 2.0**20, device=device)
    o = torch.zeros(4, device=device)
    options = {"statements": "x = x * 0.5", "full_value_budget": 1500}
    session = session_of(lambda: halving[(1,)](x, o, BLOCK=4), **options)
    halved = one(session.full_values, "x", role="value")
    assert halved.executions.tolist() == [20]
    assert 0 < halved.capacity < 20 and not halved.complete
    assert "INCOMPLETE" in repr(halved)
    wanted = torch.stack([2.0 ** (20 - k) * torch.ones(4) for k in range(1, halved.capacity + 1)])
    assert same_bits(halved.array[0], wanted)
    text = (
        "full values of halving are INCOMPLETE: `x = x * 0.5` ran up to 20 times in a program, "
        f"{halved.capacity} of them are kept"
    )
    assert text in session.coverage.to_dict()["notes"] and text in session.report()


@triton.jit
def plane(x_ptr, o_ptr, rows, columns, sr, sc, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    c = tl.program_id(1) * C + tl.arange(0, C)[None, :]
    inside = (r < rows) & (c < columns)
    x = tl.load(x_ptr + r * columns + c, mask=inside)
    tl.store(o_ptr + r * sr + c * sc, x, mask=inside)


LAYOUTS: dict[str, Callable[[str], torch.Tensor]] = {
    "contiguous": lambda device: torch.zeros(13, 21, device=device),
    "transposed": lambda device: torch.zeros(21, 13, device=device).T,
    "strided": lambda device: torch.zeros(13, 45, device=device)[:, 1:43:2],
    "padded rows": lambda device: torch.zeros(13, 32, device=device)[:, :21],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_global_tensor(layout: str, device: str) -> None:
    x, o = torch.randn(13, 21, device=device), LAYOUTS[layout](device)
    values = recorded(
        lambda: plane[(4, 3)](x, o, 13, 21, *o.stride(), R=4, C=8), statements="tl.store*"
    )
    (store,) = values
    assert store.array.shape == (12, 1, 4, 8)
    made = store.global_tensor()
    assert made.values is not None and made.written is not None, made.reason
    assert made.values.shape == (13, 21)
    assert tuple(s // 4 for s in made.values.strides) == o.stride()
    assert same_bits(made.values, o) and same_bits(made.values, x)
    assert made.written.all()
    # programs one by one: what each wrote
    (part,) = recorded(
        lambda: plane[(4, 3)](x, o, 13, 21, *o.stride(), R=4, C=8),
        statements="tl.store*",
        programs=[(1, 2, 0), 4],
    )
    assert part.programs.tolist() == [4, 9]
    written = np.zeros((13, 21), bool)
    written[0:4, 8:16] = written[4:8, 16:21] = False
    written[0:4, 8:16] = True  # program 4 is (0, 1, 0)
    written[4:8, 16:21] = True  # program 9 is (1, 2, 0)
    made = part.global_tensor()
    assert made.values is not None and made.written is not None
    assert np.array_equal(made.written, written)
    assert same_bits(made.values, torch.where(torch.from_numpy(written), x.cpu(), 0.0))


@triton.jit
def scatter(x_ptr, at_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(at_ptr + i)
    tl.store(o_ptr + at, tl.load(x_ptr + i))


def test_scatter(device: str) -> None:
    x, o = torch.randn(64, device=device), torch.zeros(100, device=device)
    at = torch.randperm(100)[:64].to(device)
    values = recorded(lambda: scatter[(4,)](x, at, o, BLOCK=16))
    made = one(values, role="store").global_tensor()
    assert made.values is not None and made.written is not None
    assert same_bits(made.values, o)
    assert np.array_equal(np.flatnonzero(made.written), np.sort(at.cpu().numpy()))
    assert one(values, "at").dtype == "int64"


def test_lanes_that_disagree(device: str) -> None:
    at = torch.arange(64, device=device) % 60  # four elements get two values
    x, o = torch.randn(64, device=device), torch.zeros(100, device=device)
    made = one(recorded(lambda: scatter[(4,)](x, at, o, BLOCK=16)), role="store").global_tensor()
    assert (made.values, made.written, made.reason) == (
        None,
        None,
        "lanes disagree about an element",
    )
    x = torch.ones(64, device=device)  # two lanes, the same value
    made = one(recorded(lambda: scatter[(4,)](x, at, o, BLOCK=16)), role="store").global_tensor()
    assert made.values is not None and same_bits(made.values, o)


def test_lanes_outside(device: str) -> None:
    memory = torch.zeros(100, device=device)
    x, at = torch.randn(64, device=device), torch.arange(64, device=device)
    values = recorded(lambda: scatter[(4,)](x, at, memory[:60], BLOCK=16))
    made = one(values, role="store").global_tensor()
    assert made.values is None and made.reason == "lanes lie outside of the tensor"
    values = recorded(lambda: scatter[(4,)](x, at, memory[::2], BLOCK=16))
    made = one(values, role="store").global_tensor()
    assert made.values is None and "between the elements" in made.reason


@triton.jit
def count(x_ptr, total_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    before = tl.atomic_add(total_ptr + i % 4, tl.load(x_ptr + i))
    tl.store(x_ptr + i, before)


def test_atomics(device: str) -> None:
    x = torch.arange(32, device=device, dtype=torch.int32)
    start, total = x.cpu().clone(), torch.zeros(4, dtype=torch.int32, device=device)
    values = recorded(lambda: count[(2,)](x, total, BLOCK=16), addr_level=2)
    before = one(values, "before", role="atomic")
    assert before.array.reshape(-1).tolist() == x.tolist()
    assert before.offsets is not None
    assert before.offsets.reshape(-1).tolist() == [4 * (k % 4) for k in range(32)]
    assert before.global_tensor().values is None and "atomic" in before.global_tensor().reason
    assert [int(start[k::4].sum()) for k in range(4)] == total.tolist()


def test_level_1_is_complete_and_results_are_the_same(device: str) -> None:
    x = torch.randn(5, 75, device=device)
    outputs, tables = [], []
    for options in ({"level": 1}, {"level": 2}, {"level": 2, "statements": "x", "programs": 3}):
        o = torch.zeros_like(x)
        with flagprism_torch.debug(logdir=False, **options) as session:
            for _ in range(2):
                accumulate[(5,)](x, o, 75, BLOCK=16)
        outputs.append(o)
        tables.append(session.table().where(kernel="accumulate"))
    plain = torch.zeros_like(x)
    accumulate[(5,)](x, plain, 75, BLOCK=16)
    assert all(torch.equal(o, plain) for o in outputs)
    kept = [[(r.variable, r.op, r.live, r.min, r.max, r.mean, r.l2) for r in t] for t in tables]
    assert kept[0] == kept[1] == kept[2] and len(kept[0]) == 3


@triton.autotune(configs=[triton.Config({"BLOCK": n}) for n in (16, 32)], key=["n"])
@triton.jit
def tuned(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x_ptr + i, mask=i < n) + 1.0
    tl.store(o_ptr + i, y, mask=i < n)


def test_autotuned_kernels(device: str) -> None:
    """Benchmarks are not written down, only the launch of the user."""
    x, o = torch.randn(70, device=device), torch.zeros(70, device=device)
    values = recorded(lambda: tuned[lambda meta: (triton.cdiv(70, meta["BLOCK"]),)](x, o, 70))
    store = one(values, role="store")
    assert store.array.shape[-1] == tuned.best_config.kwargs["BLOCK"]
    made = store.global_tensor()
    assert made.values is not None and same_bits(made.values, x + 1.0)


def test_shared_slots(device: str) -> None:
    """More programs than slots: values do not share anything."""
    x, o = torch.randn(1000, device=device), torch.zeros(1000, device=device)
    values = recorded(lambda: copy[(63,)](x, o, 1000, BLOCK=16), record_capacity=8)
    made = one(values, role="store").global_tensor()
    assert made.values is not None and same_bits(made.values, x)


def test_with_a_guard(device: str) -> None:
    memory = torch.zeros(100, device=device)
    x, at = torch.randn(64, device=device), torch.arange(64, device=device)
    values = recorded(lambda: scatter[(4,)](x, at, memory[:60], BLOCK=16), guard=True, addr_level=2)
    store = one(values, role="store")
    assert same_bits(store.array.reshape(-1), x)
    assert not memory[60:].any()
    assert "outside" in store.global_tensor().reason
