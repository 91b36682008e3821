"""The instrumented text of one small kernel, as a whole: a change of the rewriter shows here.

Only for the pinned Triton, whose spelling it is. After a wanted change: FLAGPRISM_ACCEPT=1.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.compiler.compiler import make_backend
from ttir_text import CUDA, ttir

from flagprism_torch.instrument.codegen import ProbeText, parse_module
from flagprism_torch.instrument.plan import make_plan
from flagprism_torch.instrument.rewrite import HIDDEN, instrument
from flagprism_torch.ir.module import Module

GOLDEN = Path(__file__).parent / "golden" / "instrumented_kernel.ttir"
PINNED = (Path(__file__).parent.parent / "requirements" / "triton.txt").read_text()


@triton.jit
def sample(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < n, other=0.0)
        acc += x
    if n > 3:
        total = tl.sum(acc, 0)
        tl.store(o_ptr, total)
    tl.store(o_ptr + tl.arange(0, BLOCK), acc)


def instrumented(threads: int, slots: int) -> str:
    signature = {"x_ptr": "*fp32", "o_ptr": "*fp32", "n": "i32"}
    module = Module(ttir(sample, signature, {"BLOCK": 64}))
    backend = make_backend(CUDA)
    probes = ProbeText(backend, backend.parse_options({}))
    plan = make_plan(module, signature, 64, True)
    return instrument(module, plan, probes, threads=threads, slots=slots)


def without_locations(text: str) -> str:
    lines = [line for line in text.split("\n") if not line.startswith("#loc")]
    return "\n".join(re.sub(r" loc\((?:[^()\"]|\"[^\"]*\"|\([^()]*\))*\)", "", s) for s in lines)


@pytest.mark.parametrize(("threads", "slots"), [(32, 0), (32, 8), (1, 0)])
def test_it_is_a_valid_module(threads: int, slots: int) -> None:
    context = ir.context()
    ir.load_dialects(context)
    make_backend(CUDA).load_dialects(context)
    text = instrumented(threads, slots)
    assert parse_module(text, context).verify()
    entry = Module(text).entry
    assert [a.name for a in entry.arguments] == ["%x_ptr", "%o_ptr", "%n", f"%{HIDDEN}"]
    assert entry.arguments[-1].type.text == "!tt.ptr<i32>"


@pytest.mark.skipif(f"triton=={triton.__version__}" not in PINNED, reason="not the pinned Triton")
def test_golden() -> None:
    text = without_locations(instrumented(32, 0))
    kernel = text[: text.index("  tt.func private")]  # the probes are tested by what they compute
    if os.environ.get("FLAGPRISM_ACCEPT") == "1":
        GOLDEN.write_text(kernel)
    assert kernel == GOLDEN.read_text()
