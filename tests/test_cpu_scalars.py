"""Elementwise TTIR ops one by one, from TTIR text: edge cases where C, NumPy and a GPU differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flagprism_torch.backends.cpu.kernel import Kernel
from flagprism_torch.errors import UnsupportedOpError

LANES = 8
NUMPY = {"i1": "?", "i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8", "f32": "f4", "f64": "f8"}
NAN, INF = float("nan"), float("inf")


def run(line: str, inputs: list[tuple[str, list[Any]]], outputs: list[str]) -> list[list[Any]]:
    """Execute one statement on tiles of 8 lanes. It reads %0, %1, ... and defines %r or %r0, %r1.

    `inputs`: (element type, values, repeated to 8); the results come back as lists.
    """
    arrays = [np.resize(np.array(values, dtype=NUMPY[elem]), LANES) for elem, values in inputs] + [
        np.zeros(LANES, NUMPY[elem]) for elem in outputs
    ]
    elems = [elem for elem, _ in inputs] + outputs
    args = ", ".join(f"%p{k}: !tt.ptr<{elem}>" for k, elem in enumerate(elems))
    body = ["%lanes = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>"]

    def pointer(k: int) -> str:
        kind = f"tensor<8x!tt.ptr<{elems[k]}>>"
        body.append(f"%s{k} = tt.splat %p{k} : !tt.ptr<{elems[k]}> -> {kind}")
        body.append(f"%a{k} = tt.addptr %s{k}, %lanes : {kind}, tensor<8xi32>")
        return kind

    for k in range(len(inputs)):
        kind = pointer(k)
        body.append(f"%{k} = tt.load %a{k} : {kind}")
    body.append(line)
    for j in range(len(outputs)):
        k = len(inputs) + j
        kind = pointer(k)
        name = "%r" if len(outputs) == 1 else f"%r{j}"
        body.append(f"tt.store %a{k}, {name} : {kind}")
    text = "\n".join(["module {", f"tt.func public @k({args}) {{", *body, "tt.return", "}", "}"])
    Kernel(text)((1, 1, 1), [torch.from_numpy(a) for a in arrays])
    return [a.tolist() for a in arrays[len(inputs) :]]


def one(op: str, elem: str, *columns: list[Any], out: str | None = None) -> list[Any]:
    """A plain op `op %0, %1 : tensor<8xelem>`; the first lanes of its result."""
    names = ", ".join(f"%{k}" for k in range(len(columns)))
    line = f"%r = {op} {names} : tensor<8x{elem}>"
    result = run(line, [(elem, c) for c in columns], [out or elem])[0]
    return result[: len(columns[0])]


LOW = -(2**31)


@pytest.mark.parametrize(
    "op,a,b,want",
    [
        ("arith.addi", [2**31 - 1, 5], [1, -7], [LOW, -2]),
        ("arith.divsi", [-7, 7, 7, LOW], [2, -2, 2, -1], [-3, -3, 3, LOW]),
        ("arith.remsi", [-7, 7, 7, LOW], [2, -2, 2, -1], [-1, 1, 1, 0]),
        ("arith.floordivsi", [-7, 7, 7], [2, -2, 2], [-4, -4, 3]),
        ("arith.ceildivsi", [-7, 7, 7], [2, -2, 2], [-3, -3, 4]),
        ("arith.ceildivui", [7, 8, -1], [2, 2, 2], [4, 4, LOW]),
        ("arith.divui", [-2, 7], [2, 2], [2**31 - 1, 3]),
        ("arith.remui", [-1, 7], [10, 4], [5, 3]),
        ("arith.shli", [1, 1, 3], [31, 32, 1], [LOW, 0, 6]),
        ("arith.shrsi", [-8, -8, 8], [1, 40, 40], [-4, -1, 0]),
        ("arith.shrui", [-1, -1, 8], [28, 32, 1], [15, 0, 4]),
        ("arith.maxui", [-1, 3], [5, 4], [-1, 4]),
        ("arith.minsi", [-1, 3], [5, 4], [-1, 3]),
        ("tt.mulhiui", [-1, 1 << 20], [-1, 1 << 20], [-2, 256]),
        ("math.ipowi", [3, -2], [4, 3], [81, -8]),
    ],
)
def test_integer_ops(op: str, a: list[int], b: list[int], want: list[int]) -> None:
    assert one(op, "i32", a, b) == want


@pytest.mark.parametrize("op", ["arith.divsi", "arith.remsi", "arith.divui", "arith.remui"])
@pytest.mark.parametrize("elem", ["i8", "i16", "i32", "i64"])
def test_division_by_zero_does_not_trap(op: str, elem: str) -> None:
    assert len(one(op, elem, [1, -1, 0], [0, 0, 0])) == 3


def test_wide_products() -> None:
    a, b = [-3, 2**62, -(2**63), 12345678901], [5, 2**62, -1, -98765432109]
    for name, read in (("mulsi", 0), ("mului", 1)):
        line = f"%r0, %r1 = arith.{name}_extended %0, %1 : tensor<8xi64>"
        low, high = run(line, [("i64", a), ("i64", b)], ["i64", "i64"])
        for x, y, lo, hi in zip(a, b, low, high, strict=False):
            left, right = (x % 2**64, y % 2**64) if read else (x, y)
            assert (left * right) % 2**128 == (lo % 2**64 + (hi << 64)) % 2**128


def test_carry_and_borrow() -> None:
    line = "%r0, %r1 = arith.{} %0, %1 : tensor<8xi32>, tensor<8xi1>"
    columns = [("i32", [-1, 5]), ("i32", [1, 6])]
    total, carry = run(line.format("addui_extended"), columns, ["i32", "i1"])
    assert (total[:2], carry[:2]) == ([0, 11], [True, False])
    rest, borrow = run(line.format("subui_extended"), columns, ["i32", "i1"])
    assert (rest[:2], borrow[:2]) == ([-2, -1], [False, True])


def test_bit_counts() -> None:
    x = [0, 1, -1, 1 << 20, LOW]
    assert one("math.ctlz", "i32", x) == [32, 31, 0, 11, 0]
    assert one("math.cttz", "i32", x) == [32, 0, 0, 20, 31]
    assert one("math.ctpop", "i32", x) == [0, 1, 32, 1, 1]


def test_flags() -> None:
    a, b = [False, False, True, True], [False, True, False, True]
    assert one("arith.addi", "i1", a, b) == [False, True, True, False]
    assert one("arith.subi", "i1", a, b) == [False, True, True, False]
    assert one("arith.muli", "i1", a, b) == [False, False, False, True]
    assert one("arith.maxsi", "i1", a, b) == [False, False, False, True]  # true is -1
    assert one("arith.maxui", "i1", a, b) == [False, True, True, True]
    for predicate, want in (
        ("slt", [False, False, True, False]),
        ("ult", [False, True, False, False]),
    ):
        line = f"%r = arith.cmpi {predicate}, %0, %1 : tensor<8xi1>"
        assert run(line, [("i1", a), ("i1", b)], ["i1"])[0][:4] == want
    cast = run("%r = arith.extsi %0 : tensor<8xi1> to tensor<8xi32>", [("i1", a)], ["i32"])[0]
    assert cast[:4] == [0, 0, -1, -1]
    cast = run("%r = arith.uitofp %0 : tensor<8xi1> to tensor<8xf32>", [("i1", a)], ["f32"])[0]
    assert cast[:4] == [0, 0, 1, 1]


def same(got: list[float], want: list[float]) -> bool:
    return np.array_equal(np.array(got), np.array(want), equal_nan=True)


def test_nan_in_extremes() -> None:
    a, b = [NAN, 1.0, NAN, -INF], [2.0, NAN, NAN, INF]
    assert same(one("arith.maxnumf", "f32", a, b), [2, 1, NAN, INF])
    assert same(one("arith.minnumf", "f32", a, b), [2, 1, NAN, -INF])
    assert same(one("arith.maximumf", "f32", a, b), [NAN, NAN, NAN, INF])
    assert same(one("arith.minimumf", "f32", a, b), [NAN, NAN, NAN, -INF])
    for flag, want in (("none", [0, 1, 0]), ("all", [NAN, 1, 0.5])):
        line = f"%r = tt.clampf %0, %1, %2, propagateNan = {flag} : tensor<8xf32>"
        x, low = ("f32", [NAN, 7.0, 0.5]), ("f32", [0.0, 0.0, 0.0])
        got = run(line, [x, low, ("f32", [1.0, 1.0, 1.0])], ["f32"])[0][:3]
        assert same(got, [want[0], want[1], 0.5])


@pytest.mark.parametrize(
    "predicate,want",
    [
        ("oeq", [0, 1, 0]), ("one", [1, 0, 0]), ("olt", [1, 0, 0]), ("ord", [1, 1, 0]),
        ("ueq", [0, 1, 1]), ("une", [1, 0, 1]), ("ult", [1, 0, 1]), ("uge", [0, 1, 1]),
        ("ugt", [0, 0, 1]), ("ule", [1, 1, 1]), ("uno", [0, 0, 1]),
    ],
)  # fmt: skip
def test_float_comparisons(predicate: str, want: list[int]) -> None:
    line = f"%r = arith.cmpf {predicate}, %0, %1 : tensor<8xf32>"
    got = run(line, [("f32", [1.0, 2.0, NAN]), ("f32", [2.0, 2.0, 1.0])], ["i1"])[0]
    assert got[:3] == [bool(w) for w in want]


@pytest.mark.parametrize(
    "op,elem,x,want",
    [
        ("fptosi", "i32", [-1.9, 1e20, -1e20, NAN], [-1, 2**31 - 1, LOW, 0]),
        ("fptosi", "i64", [-1.9, 1e20, -1e20, 3.5], [-1, 2**63 - 1, -(2**63), 3]),
        ("fptoui", "i32", [3.9, 4e9, -5.0, 1e20], [3, 4_000_000_000 - 2**32, 0, -1]),
        ("fptosi", "i8", [-3.7, 200.0, 127.0, NAN], [-3, -56, 127, 0]),
    ],
)
def test_float_to_integer_saturates(op: str, elem: str, x: list[float], want: list[int]) -> None:
    line = f"%r = arith.{op} %0 : tensor<8xf32> to tensor<8x{elem}>"
    assert run(line, [("f32", x)], [elem])[0][:4] == want


def test_narrow_floats_round_to_nearest() -> None:
    x = torch.tensor([1.00390625, 1.01171875, 3.4e38, NAN, INF, 1e-40, -2.7, 0.1])
    line = (
        "%n = arith.truncf %0 : tensor<8xf32> to tensor<8xbf16>\n"
        "%r = arith.extf %n : tensor<8xbf16> to tensor<8xf32>"
    )
    got = run(line, [("f32", x.tolist())], ["f32"])[0]
    assert same(got, x.bfloat16().float().tolist())
    line = (
        "%n = tt.fp_to_fp %0, rounding = rtz : tensor<8xf32> -> tensor<8xbf16>\n"
        "%r = tt.bitcast %n : tensor<8xbf16> -> tensor<8xi16>"
    )
    got = run(line, [("f32", [1.01171875, -1.01171875, INF, 2.0])], ["i16"])[0]
    assert got[:4] == [0x3F81, 0x3F81 - 0x8000, 0x7F80, 0x4000]


def test_fp8_saturates() -> None:
    line = (
        "%n = tt.fp_to_fp %0, rounding = rtne : tensor<8xf32> -> tensor<8xf8{kind}>\n"
        "%r = tt.fp_to_fp %n : tensor<8xf8{kind}> -> tensor<8xf32>"
    )
    x = [1.0, 1000.0, -INF, NAN, 17.0]
    got = run(line.format(kind="E4M3FN"), [("f32", x)], ["f32"])[0][:5]
    assert same(got, [1.0, 448.0, -448.0, NAN, 16.0])
    got = run(line.format(kind="E5M2"), [("f32", [1e9, 3.2])], ["f32"])[0][:2]
    assert got == [57344.0, 3.0]


def test_scalar_condition_selects_tensors() -> None:
    line = "%c = arith.constant true\n%r = arith.select %c, %0, %1 : tensor<8xi32>"
    assert run(line, [("i32", [1, 2]), ("i32", [3, 4])], ["i32"])[0][:2] == [1, 2]


@pytest.mark.parametrize(
    "literal,elem,want",
    [
        ("dense<-7>", "i32", [-7] * 8),
        ("dense<true>", "i1", [True] * 8),
        ("dense<0x7FC00000>", "f32", [NAN] * 8),
        ("dense<0xFF800000>", "f32", [-INF] * 8),
        ("dense<[1, 2, 3, 4, 5, 6, 7, 8]>", "i64", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("dense<2.500000e-01>", "f64", [0.25] * 8),
        ('dense<"0x0100000002000000030000000400000005000000060000000700000008000000">', "i32",
         [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)  # fmt: skip
def test_constants(literal: str, elem: str, want: list[Any]) -> None:
    got = run(f"%r = arith.constant {literal} : tensor<8x{elem}>", [], [elem])[0]
    assert same(got, want)


@pytest.mark.parametrize(
    "symbol,x,want",
    [
        ("__nv_erff", [0.5, -1.0], [0.5204999, -0.8427008]),
        ("__nv_rsqrtf", [4.0, 0.0], [0.5, INF]),
        ("__nv_fast_expf", [1.0, 0.0], [2.7182817, 1.0]),
        ("__nv_roundf", [2.5, -2.5], [3.0, -3.0]),
        ("__nv_logbf", [8.0, 0.0], [3.0, -INF]),
        ("__nv_tgammaf", [5.0, 0.5], [24.0, 1.7724539]),
    ],
)
def test_libdevice(symbol: str, x: list[float], want: list[float]) -> None:
    attributes = f'{{libname = "", libpath = "", pure = true, symbol = "{symbol}"}}'
    line = f"%r = tt.extern_elementwise %0 {attributes} : (tensor<8xf32>) -> tensor<8xf32>"
    got = run(line, [("f32", x)], ["f32"])[0][:2]
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    "line,op",
    [
        ("%r = tt.dance %0 : tensor<8xf32>", "tt.dance"),
        ('%r = tt.extern_elementwise %0 {symbol = "__nv_none"} : (tensor<8xf32>) -> tensor<8xf32>',
         "tt.extern_elementwise (__nv_none)"),
        ("%r = arith.truncf %0 : tensor<8xf32> to tensor<8xf4E2M1FN>",
         "arith.truncf (type f4E2M1FN)"),
    ],
)  # fmt: skip
def test_unknown_ops_show_their_text(line: str, op: str) -> None:
    with pytest.raises(UnsupportedOpError) as caught:
        run(line, [("f32", [1.0])], ["f32"])
    assert caught.value.op == op
    assert caught.value.statement == line
