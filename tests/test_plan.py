"""Which values get a record: Note [Chosen values], Note [Shared records], limits and reasons."""

from __future__ import annotations

from typing import Any

import ir_kernels
import triton
import triton.language as tl
from ttir_text import line_of, ttir

from flagprism_torch.instrument.plan import Plan, make_plan
from flagprism_torch.ir.module import Module
from flagprism_torch.records.model import OpEntry

TYPES = {
    "x_ptr": "*fp32",
    "y_ptr": "*fp32",
    "o_ptr": "*fp32",
    "n": "i32",
    "m": "i32",
    "scale": "fp32",
}


def plan_of(
    fn: Any, types: dict[str, str], max_values: int = 64, *, histograms: bool = False,
    stores_only: bool = False, **constants: Any,
) -> Plan:  # fmt: skip
    signature = {name: types[name] for name in fn.arg_names if name not in constants}
    module = Module(ttir(fn, signature, constants))
    return make_plan(module, signature, max_values, histograms, stores_only)


def listed(plan: Plan) -> list[tuple[str | None, str, str]]:
    return [(op.variable, op.op, op.role) for op in plan.table.ops]


def entry(plan: Plan, variable: str) -> OpEntry:
    (found,) = [op for op in plan.table.ops if op.variable == variable]
    return found


@triton.jit
def part(x, scale):
    half = x * 0.5
    return half * scale


@triton.jit
def statements(x_ptr, y_ptr, o_ptr, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside)
    y = (x + 1.0) * (x - 1.0)
    z = part(y, scale) + part(x, scale)
    column = tl.sum(z, 0)
    back = tl.expand_dims(y * 2.0, 1)
    y * 7.0
    tl.store(o_ptr + i, z * column, mask=inside)
    tl.store(y_ptr + i[:, None], back)
    tl.store(o_ptr, n * 1.0 + scale)


def test_one_value_per_statement() -> None:
    """What leaves the statement; nothing of addresses, constants, dead code or called functions."""
    plan = plan_of(statements, TYPES, BLOCK=64)
    assert listed(plan) == [
        ("x", "tt.load", "load"),
        ("y", "arith.mulf", "value"),
        ("z", "arith.addf", "value"),
        ("column", "tt.reduce", "value"),
        ("back", "arith.mulf", "value"),
        (None, "tt.store", "store"),
        (None, "tt.store", "store"),
        (None, "tt.store", "store"),
    ]
    assert plan.table.left_out == {"index arithmetic": 2}  # i and inside
    z = entry(plan, "z")
    assert (z.line, z.file) == (line_of(statements, "z = part"), __file__)
    assert z.statement == "z = part(y, scale) + part(x, scale)"
    assert (z.dtype, z.shape, z.mask, z.numel) == ("fp32", (64,), "live", 64)
    assert entry(plan, "column").shape == () and entry(plan, "column").mask == "all"
    pointers = [op.pointer for op in plan.table.ops]
    assert pointers == ["x_ptr", None, None, None, None, "o_ptr", "y_ptr", "o_ptr"]
    assert plan.table.kernel == "statements"
    assert [op.op_id for op in plan.table.ops] == list(range(8))


@triton.jit
def sharing(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    wide = x.to(tl.float32)
    y = wide * 2.0
    tl.store(o_ptr + i, y, mask=i < n)
    tl.store(o_ptr + i, y)
    if n > 5:
        tl.store(o_ptr + i, y, mask=i < n)


def test_shared_records() -> None:
    """An exact widening and a store under the same mask in the same block need no record."""
    plan = plan_of(sharing, {**TYPES, "x_ptr": "*bf16"}, BLOCK=64)
    shown = [(op.variable, op.role, op.record, op.mask, op.dtype) for op in plan.table.ops]
    assert shown == [
        ("x", "load", 0, "live", "bf16"),
        ("wide", "value", 0, "live", "fp32"),
        ("y", "value", 1, "live", "fp32"),
        (None, "store", 1, "live", "fp32"),
        (None, "store", 2, "all", "fp32"),
        (None, "store", 3, "live", "fp32"),
    ]
    assert len(plan.records) == plan.table.records == 4


def test_int_widening_is_no_exact_copy() -> None:
    """Only float widenings share: an integer's key has the width of its type."""
    plan = plan_of(ir_kernels.atomics, {"x_ptr": "*i32", "o_ptr": "*i32", "n": "i32"}, BLOCK=16)
    assert len({op.record for op in plan.table.ops}) == len(plan.records) == 4
    assert listed(plan) == [
        ("x", "tt.load", "load"),
        ("old", "tt.atomic_rmw", "atomic"),
        ("seen", "tt.atomic_cas", "atomic"),
        (None, "tt.store", "store"),
    ]
    assert [op.pointer for op in plan.table.ops] == ["x_ptr", "o_ptr", "o_ptr", "x_ptr"]


def test_max_values() -> None:
    """Stores are kept first, then loads; what is left out is counted."""
    whole = plan_of(statements, TYPES, BLOCK=64)
    assert "max_values" not in whole.table.left_out
    plan = plan_of(statements, TYPES, max_values=4, BLOCK=64)
    # the store of `back` shares the record of its statement's product
    assert listed(plan) == [
        ("x", "tt.load", "load"),
        (None, "tt.store", "store"),
        (None, "tt.store", "store"),
        (None, "tt.store", "store"),
    ]
    unchecked = plan.table.left_out.pop("births not checked")
    assert unchecked == len(whole.checks) - len(plan.checks) > 0
    assert plan.table.left_out == {"index arithmetic": 2, "max_values": 4}
    assert len(plan.records) == 4
    two = plan_of(statements, TYPES, max_values=2, BLOCK=64)
    assert [role for _, _, role in listed(two)] == ["store", "store"]
    assert two.table.left_out["max_values"] == 6


def test_stores_only() -> None:
    plan = plan_of(statements, TYPES, stores_only=True, BLOCK=64)
    assert {role for _, _, role in listed(plan)} == {"store"}
    assert plan.table.left_out["stored values only"] == 5


def test_histograms_of_stored_values() -> None:
    """One block per stored record; an entry that shares the record shares the block."""
    plan = plan_of(sharing, {**TYPES, "x_ptr": "*bf16"}, histograms=True, BLOCK=64)
    shown = [(op.role, op.record, op.histogram) for op in plan.table.ops]
    assert [h for *_, h in shown] == [-1, -1, 0, 0, 1, 2]
    assert plan.table.histograms == 3
    assert plan_of(sharing, {**TYPES, "x_ptr": "*bf16"}, BLOCK=64).table.histograms == 0


@triton.jit
def unsigned(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    a = x + 1
    b = y + 1
    c = a.to(tl.int64) * 3
    total = tl.sum(x, 0)
    for _ in range(n):
        a = a * x
    tl.store(o_ptr + i, a + total)
    tl.store(o_ptr + i, c.to(tl.uint32) >> 1)
    tl.store(y_ptr + i, b)


def test_signedness() -> None:
    """From pointer arguments, forward through operations, since TTIR types have none."""
    types = {"x_ptr": "*u32", "y_ptr": "*i32", "o_ptr": "*u32", "n": "i32"}
    plan = plan_of(unsigned, types, BLOCK=16)
    dtypes = {(op.variable, op.op, op.dtype) for op in plan.table.ops if op.variable}
    assert ("x", "tt.load", "uint32") in dtypes and ("y", "tt.load", "int32") in dtypes
    assert ("total", "tt.reduce", "uint32") in dtypes and ("b", "arith.addi", "int32") in dtypes
    assert {d for v, _, d in dtypes if v == "a"} == {"uint32"}
    assert {d for v, _, d in dtypes if v == "c"} == {"int64"}
    assert [op.dtype for op in plan.table.ops if op.role == "store"] == [
        "uint32",
        "uint32",
        "int32",
    ]


def test_noinline_calls() -> None:
    """The call's result is a value; what happens inside is counted as left out."""
    plan = plan_of(ir_kernels.nested, TYPES, BLOCK=16)
    assert listed(plan) == [
        ("x", "tt.load", "load"),
        ("y", "arith.addf", "value"),
        ("z", "arith.mulf", "value"),
        (None, "tt.store", "store"),
    ]
    assert plan.table.left_out == {"noinline call": 1}


def test_places() -> None:
    plan = plan_of(ir_kernels.loops, TYPES, BLOCK=16)
    places = {(r.op.name, len(r.place.loops)) for r in plan.records}
    assert {("tt.load", 1), ("arith.addf", 1), ("arith.mulf", 1), ("arith.addf", 2)} <= places
    assert ("tt.store", 0) in places
    assert not any(r.place.repeated for r in plan.records)
    plan = plan_of(ir_kernels.branches, TYPES, BLOCK=16)
    assert all(r.place.loops == () for r in plan.records)
    repeated = [r for r in plan.records if r.place.repeated]
    assert [r.op.name for r in repeated] == ["arith.mulf"]  # x in the while loop
    assert plan.table.left_out == {"index arithmetic": 2}  # step, and what the loop condition is


def test_descriptors_store_their_source() -> None:
    plan = plan_of(ir_kernels.descriptors, TYPES, ROWS=8, COLUMNS=16)
    assert listed(plan) == [
        ("x", "tt.descriptor_load", "load"),
        ("y", "arith.mulf", "value"),
        (None, "tt.descriptor_store", "store"),
    ]
    store = plan.table.ops[2]
    assert (store.dtype, store.shape, store.record) == ("fp32", (8, 16), plan.table.ops[1].record)
    assert [op.pointer for op in plan.table.ops] == ["x_ptr", None, "o_ptr"]


@triton.jit
def sorting(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    ordered = tl.sort(x)
    tl.store(o_ptr + i, ordered)


def test_library_code_is_one_statement() -> None:
    plan = plan_of(sorting, TYPES, BLOCK=64)
    assert listed(plan) == [
        ("x", "tt.load", "load"),
        ("ordered", "arith.select", "value"),
        (None, "tt.store", "store"),
    ]
    assert "max_values" not in plan.table.left_out
