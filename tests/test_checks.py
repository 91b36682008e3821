"""Which operations are checked, which probe watches for them, and what the table says."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra import libdevice
from ttir_text import ttir

from flagprism_torch.instrument.checks import bearing
from flagprism_torch.instrument.plan import Plan, make_plan
from flagprism_torch.ir.module import Module

TYPES = {"x_ptr": "*fp32", "y_ptr": "*fp32", "o_ptr": "*fp32", "n": "i32"}


@triton.jit
def operations(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    add = x + y
    sub = add - y
    mul = sub * y
    div = mul / y
    negated = -div
    top = tl.maximum(negated, y)
    chosen = tl.where(top > 0, top, x)
    power = libdevice.pow(chosen, y)
    log = tl.log(power)
    inverse = tl.rsqrt(log)
    sine = tl.sin(inverse)
    narrow = sine.to(tl.float16)
    wide = narrow.to(tl.float32)
    total = tl.sum(wide, axis=0)
    highest = tl.max(wide, axis=0)
    running = tl.cumsum(wide, axis=0)
    whole = (running > 0).to(tl.float32)
    tl.store(o_ptr + i, whole + running * highest / total)


@triton.jit
def two_shapes(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)[:, None]
    x = tl.load(x_ptr + rows * BLOCK + tl.arange(0, BLOCK)[None, :])
    y = tl.load(y_ptr + tl.arange(0, BLOCK))
    soft = tl.exp(x - y[None, :])
    weight = tl.sum(soft / (x * x), axis=1)
    tl.store(o_ptr + tl.arange(0, BLOCK), weight)


def plan_of(kernel: Any, **constants: Any) -> tuple[Module, Plan]:
    module = Module(ttir(kernel, TYPES, constants))
    return module, make_plan(module, TYPES, 64, False)


def test_rules() -> None:
    module, plan = plan_of(operations, BLOCK=64)
    ops = [op for op in module.entry.walk() if op.block.parent is None]
    rules = [(rule, op.frames[0].name) for rule, op, _ in bearing(ops)]
    assert rules == [
        ("add", "add"),
        ("sub", "sub"),
        ("mul", "mul"),
        ("div", "div"),
        ("pow", "power"),
        ("log", "log"),
        ("rsqrt", "inverse"),
        ("trig", "sine"),
        ("cast", "narrow"),
        ("sum", "total"),
        ("scan", "running"),
        ("mul", None),
        ("div", None),
        ("add", None),
    ]
    assert [(c.rule, c.variable) for c in plan.table.checks] == rules


def test_every_check_has_one_host() -> None:
    for kernel in (operations, two_shapes):
        _, plan = plan_of(kernel, BLOCK=16)
        hosts = [number for r in (*plan.records, *plan.watches) for number in r.checks]
        assert sorted(hosts) == list(range(len(plan.checks)))


def test_hosts() -> None:
    """A record of the same statement and shape watches; a product that is summed up needs a watch
    of its own."""
    module, plan = plan_of(two_shapes, BLOCK=16)
    rules = [check.rule for check in plan.checks]
    assert rules == ["sub", "exp", "mul", "div", "sum"]
    names = {record.op.name: record for record in plan.records}
    assert names["math.exp"].checks == (0, 1)
    assert [v.op.name for v in names["math.exp"].others if v.op] == ["arith.subf"]
    assert names["tt.reduce"].checks == (4,)
    (watch,) = plan.watches
    assert watch.checks == (2, 3)
    assert watch.op.name == "arith.divf"
    assert [v.op.name for v in watch.others if v.op] == ["arith.mulf"]
    assert watch.line == next(op.end for op in module.entry.walk() if op.name == "arith.divf")


def test_the_table_knows_where_values_go() -> None:
    _, plan = plan_of(two_shapes, BLOCK=16)
    table = plan.table
    rows = {entry.variable or entry.role: entry.op_id for entry in table.ops}
    soft = table.checks[1]
    assert (soft.statement, soft.op_id) == ("soft = tl.exp(x - y[None, :])", rows["soft"])
    assert soft.reaches == (rows["soft"], rows["weight"], rows["store"])
    assert soft.leads == (3, 4)
    assert [(o.name, o.record) for o in table.checks[0].operands] == [
        ("x", rows["x"]),
        ("y", rows["y"]),
    ]
    assert table.ops[rows["y"]].leads == (0, 1, 3, 4)
    assert table.ops[rows["x"]].reaches == tuple(
        rows[name] for name in ("x", "soft", "weight", "store")
    )


def test_what_is_left_out_is_not_checked() -> None:
    module = Module(ttir(operations, TYPES, {"BLOCK": 64}))
    plan = make_plan(module, TYPES, 3, False)
    statements = {entry.statement for entry in plan.table.ops}
    assert {check.statement for check in plan.table.checks} <= statements
    assert plan.table.left_out["births not checked"] == 14 - len(plan.checks) > 0
    stores = make_plan(Module(ttir(operations, TYPES, {"BLOCK": 64})), TYPES, 64, False, True)
    assert stores.checks == stores.watches == ()
