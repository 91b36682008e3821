"""SSA names that sibling regions share are different values to the CPU backend's executor."""

from __future__ import annotations

import numpy as np
import torch

from flagprism_torch.backends.cpu.kernel import Kernel
from flagprism_torch.ir.module import Module
from flagprism_torch.ir.pointers import Origins

HEADER = "module {\ntt.func public @k(%o: !tt.ptr<i32>) {\n%p = tt.get_program_id x : i32\n"
FOOTER = """%at = tt.addptr %o, %p : !tt.ptr<i32>, i32
tt.store %at, %r : !tt.ptr<i32>
tt.return
}
}"""


def run(body: str, programs: int = 12) -> list[int]:
    """`body` computes the i32 %r of each program from its number %p."""
    out = torch.full((programs,), -1, dtype=torch.int32)
    Kernel(HEADER + body + FOOTER)((programs, 1, 1), [out])
    return [int(x) for x in out]


def test_branches_that_use_the_same_names() -> None:
    """Divergent programs, nested, with values captured from two levels up; %v again afterwards."""
    body = """
%c3 = arith.constant 3 : i32
%c8 = arith.constant 8 : i32
%k = arith.muli %p, %c3 : i32
%low = arith.cmpi slt, %p, %c8 : i32
%s = scf.if %low -> (i32) {
  %v = arith.addi %k, %c8 : i32
  %few = arith.cmpi slt, %p, %c3 : i32
  %t = scf.if %few -> (i32) {
    %w = arith.muli %v, %k : i32
    scf.yield %w : i32
  } else {
    %w = arith.subi %v, %p : i32
    scf.yield %w : i32
  }
  %w = arith.addi %t, %v : i32
  scf.yield %w : i32
} else {
  %v = arith.subi %k, %c8 : i32
  %t = arith.muli %v, %v : i32
  scf.yield %t : i32
}
%v = arith.addi %s, %k : i32
%r = arith.addi %v, %v : i32
"""
    expected = []
    for p in range(12):
        k = 3 * p
        if p < 8:
            v = k + 8
            s = (v * k if p < 3 else v - p) + v
        else:
            s = (k - 8) ** 2
        expected.append(2 * (s + k))
    assert run(body) == expected


def test_loops_that_use_the_same_names() -> None:
    """Trip counts differ by program; all loops name their step alike, two their counter and sum."""
    body = """
%c0 = arith.constant 0 : i32
%c1 = arith.constant 1 : i32
%c2 = arith.constant 2 : i32
%a = scf.for %i = %c0 to %p step %c1 iter_args(%sum = %c0) -> (i32) : i32 {
  %step = arith.addi %sum, %i : i32
  scf.yield %step : i32
}
%b = scf.for %i = %c0 to %a step %c2 iter_args(%sum = %p) -> (i32) : i32 {
  %inner = scf.for %j = %c0 to %i step %c1 iter_args(%x = %sum) -> (i32) : i32 {
    %step = arith.addi %x, %a : i32
    scf.yield %step : i32
  }
  %step = arith.subi %inner, %i : i32
  scf.yield %step : i32
}
%r = arith.addi %a, %b : i32
"""
    expected = []
    for p in range(12):
        a, b = sum(range(p)), p
        for i in range(0, a, 2):
            b += i * a - i
        expected.append(a + b)
    assert run(body) == expected


def test_combine_regions_that_use_the_same_names() -> None:
    """One sum, one product with a captured addend; both regions have %x, %y and %z."""
    body = """
%c1 = arith.constant 1 : i32
%lanes = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
%q = tt.splat %p : i32 -> tensor<4xi32>
%n = arith.addi %lanes, %q : tensor<4xi32>
%a = "tt.reduce"(%n) <{axis = 0 : i32}> ({
^bb0(%x: i32, %y: i32):
  %z = arith.addi %x, %y : i32
  tt.reduce.return %z : i32
}) : (tensor<4xi32>) -> i32
%b = "tt.reduce"(%n) <{axis = 0 : i32}> ({
^bb0(%x: i32, %y: i32):
  %w = arith.muli %x, %y : i32
  %z = arith.addi %w, %c1 : i32
  tt.reduce.return %z : i32
}) : (tensor<4xi32>) -> i32
%r = arith.subi %b, %a : i32
"""
    expected = []
    for p in range(12):
        n = np.arange(4) + p
        # the backend combines halves: (n0, n2) and (n1, n3), then both
        b = (n[0] * n[2] + 1) * (n[1] * n[3] + 1) + 1
        expected.append(int(b - n.sum()))
    assert run(body) == expected


def test_pointers_that_use_the_same_names() -> None:
    """Each loop's %q, and each function's %x, comes from an argument of its own."""
    module = Module("""module {
tt.func public @k(%x: !tt.ptr<i32>, %y: !tt.ptr<i32>, %n: i32) {
%c0 = arith.constant 0 : i32
%c1 = arith.constant 1 : i32
%a = scf.for %i = %c0 to %n step %c1 iter_args(%q = %x) -> (!tt.ptr<i32>) : i32 {
  %v = tt.load %q : !tt.ptr<i32>
  %next = tt.addptr %q, %v : !tt.ptr<i32>, i32
  scf.yield %next : !tt.ptr<i32>
}
%b = scf.for %i = %c0 to %n step %c1 iter_args(%q = %y) -> (!tt.ptr<i32>) : i32 {
  %v = tt.load %q : !tt.ptr<i32>
  %next = tt.addptr %q, %v : !tt.ptr<i32>, i32
  scf.yield %next : !tt.ptr<i32>
}
%r = tt.call @f(%b) : (!tt.ptr<i32>) -> i32
tt.return
}
tt.func private @f(%x: !tt.ptr<i32>) -> i32 {
%v = tt.load %x : !tt.ptr<i32>
tt.return %v : i32
}
}""")
    origins = Origins(module)
    loads = [op for f in module.functions.values() for op in f.walk() if op.name == "tt.load"]
    assert [origins.of(load.operands[0]) for load in loads] == [{"x"}, {"y"}, {"y"}]
    assert all(origins.same_type(load.operands[0]) for load in loads)
