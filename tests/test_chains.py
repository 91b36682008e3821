"""Chains across kernels: loaded values and their producers, by a log of launches and tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from graph_blocks import SIZE, Run, Step, kernel, load, store

from flagprism_torch.analysis.producers import SEARCHES
from flagprism_torch.analysis.verdicts import AnomalyLog
from flagprism_torch.records.model import (
    StatementOrigin,
)
from flagprism_torch.records.tensor_log import TensorLog

NAN, INF = np.nan, np.inf
BAD, FINE = [NAN, 1.0], [1.0, 2.0]
BORN, QUIET, OVER = (1, 0, 0, 0), (0, 0, 0, 0), (0, 1, 0, 0)


def births(values: Any = BAD, born: Any = BORN, rule: str = "log", bits: int = 0) -> list[Step]:
    return [load(FINE), Step(f"math.{rule}", values, (0,), born, bits, rule=rule), store(1, values)]


PASSES = [load(BAD), Step("math.exp", BAD, (0,), QUIET), store(1, BAD)]


def test_a_loaded_nan_belongs_to_the_kernel_that_made_it() -> None:
    run = Run()
    run.launch("one", births(), "layers.0", in_ptr0=0, out_ptr0=1)
    run.launch("two", PASSES, "layers.1", in_ptr0=1, out_ptr0=2)
    run.launch("three", PASSES, "head", in_ptr0=2, out_ptr0=3)
    one = run.only()
    assert (one.verdict, one.kernel, one.op, one.severity) == ("born", "one", "math.log", "error")
    assert [b.kernel for b in one.births] == ["one"]
    passed = [(entry["kernel"], entry["module"], entry["role"]) for entry in one.details["passed"]]
    assert passed == [
        ("one", "layers.0", "store"), ("two", "layers.1", "store"), ("three", "head", "store"),
    ]  # fmt: skip
    assert one.details["visible"]["kernel"] == "three"


def test_without_a_log_each_kernel_stands_for_itself() -> None:
    log = AnomalyLog()
    log.add(0, [kernel(births(), kernel="one"), kernel(PASSES, kernel="two", launch=1)])
    assert [(a.kernel, a.verdict, a.cause) for a in log.anomalies()] == [
        ("one", "born", "log of a negative value"),
        ("two", "loaded", "loaded through in_ptr0"),
    ]


def test_the_latest_writer_counts() -> None:
    """Memory is used again: what an earlier kernel left there is gone."""
    run = Run()
    run.launch("one", births(), in_ptr0=0, out_ptr0=1)
    run.launch("two", births(), in_ptr0=0, out_ptr0=1)
    run.launch("three", PASSES, in_ptr0=1, out_ptr0=2)
    first, second = run.anomalies()
    assert [entry["kernel"] for entry in first.details["passed"]] == ["one"]
    assert [entry["kernel"] for entry in second.details["passed"]] == ["two", "three"]


def test_a_tensor_that_was_written_in_parts() -> None:
    run = Run()
    run.launch("one", births(), in_ptr0=0, out_ptr0=1)
    run.launch("two", births(FINE, QUIET), in_ptr0=0, out_ptr0=2)  # its half is clean
    run.launch("three", PASSES, in_ptr0=(1, 3), out_ptr0=3)
    one = run.only()
    assert [entry["kernel"] for entry in one.details["passed"]] == ["one", "three"]


def test_a_later_launch_of_the_same_call_site_explains_nothing() -> None:
    """The producer stored its first NaN after the load: the loaded one came from elsewhere."""
    run = Run()
    block = kernel(births(), launch=2, kernel="one")
    run.again(block, in_ptr0=0, out_ptr0=1)  # 0: clean
    run.launch("two", PASSES, in_ptr0=1, out_ptr0=2)  # 1
    run.again(block, in_ptr0=0, out_ptr0=5)  # 2: the birth
    run.blocks.append(dataclasses.replace(block, launches=2, first_launch=0))
    found = {one.kernel: one for one in run.anomalies()}
    assert found["two"].verdict == "loaded"
    assert found["two"].cause == "loaded through in_ptr0"
    assert [entry["kernel"] for entry in found["one"].details["passed"]] == ["one"]


def test_a_nan_later_than_an_infinity_of_the_same_store_explains_nothing() -> None:
    """The store held an infinity first, its NaN was born after the load."""
    run = Run()
    block = kernel(births([NAN, INF]), launch=0, kernel="one")
    late = dataclasses.replace(block.found[0], first_nan=(2, (0, 0, 0), 0, 0, 0))
    run.again(block, in_ptr0=0, out_ptr0=1)  # 0: an infinity
    run.launch("two", PASSES, in_ptr0=1, out_ptr0=2)  # 1
    run.again(block, in_ptr0=0, out_ptr0=5)  # 2: the birth
    run.blocks.append(dataclasses.replace(block, launches=2, found={0: late}))
    assert {one.kernel: one.verdict for one in run.anomalies()} == {"one": "born", "two": "loaded"}


@pytest.mark.parametrize("first", [0, 2])
def test_a_later_infinity_explains_nothing(first: int) -> None:
    """A call site stored its first infinity in launch `first`; a NaN is born of one in launch 1."""
    inf = [INF, 1.0]
    run = Run()
    block = kernel(births(inf, OVER, "exp"), launch=first, kernel="one")
    run.again(block, in_ptr0=0, out_ptr0=1)  # launch 0
    consumer = [load(inf), Step("arith.subf", BAD, (0,), BORN, 2, rule="sub"), store(1, BAD)]
    run.launch("two", consumer, in_ptr0=1, out_ptr0=3)
    run.blocks.append(dataclasses.replace(block, first_launch=0, launches=2))
    assert len(run.anomalies()) == (1 if first == 0 else 2)


def test_a_later_infinity_is_not_followed_further() -> None:
    """A kernel that hands infinities on did so in launch 3; the NaN was born in launch 2."""
    inf = [INF, 1.0]
    run = Run()
    run.launch("one", births(inf, OVER, "exp"), in_ptr0=0, out_ptr0=1)
    block = kernel([load(inf), store(0, inf)], launch=3, kernel="between")
    run.again(block, in_ptr0=1, out_ptr0=2)
    consumer = [load(inf), Step("arith.subf", BAD, (0,), BORN, 2, rule="sub"), store(1, BAD)]
    run.launch("two", consumer, in_ptr0=2, out_ptr0=3)
    run.blocks.append(dataclasses.replace(block, first_launch=1, launches=2))
    assert len(run.anomalies()) == 2


def test_memory_that_no_launch_wrote() -> None:
    run = Run()
    run.name_of = {7 * SIZE: "layers.0.weight"}.get
    run.launch("one", PASSES, in_ptr0=7, out_ptr0=1)
    run.launch("two", PASSES, in_ptr0=8, out_ptr0=2, inputs={"in_ptr0": "batch['x']"})
    run.launch("three", PASSES, in_ptr0=9, out_ptr0=3)
    causes = {one.kernel: (one.verdict, one.cause) for one in run.anomalies()}
    assert causes == {
        "one": ("loaded", "produced outside Triton: argument in_ptr0 (layers.0.weight)"),
        "two": ("loaded", "produced outside Triton: argument in_ptr0 (batch['x'])"),
        "three": ("loaded", "produced outside Triton: argument in_ptr0"),
    }
    first = run.anomalies_log.anomalies()[0]
    assert (first.details["argument"], first.details["name"]) == ("in_ptr0", "layers.0.weight")


def test_writers_of_which_little_is_known() -> None:
    run = Run()
    run.extern("extern_kernels.mm", BAD, recorded=False, in0=0, out=1)
    run.launch("one", PASSES, in_ptr0=1, out_ptr0=2)
    run.unseen("mystery", x=3)
    run.launch("two", PASSES, in_ptr0=3, out_ptr0=4)
    one, two = run.anomalies()
    assert (one.verdict, one.cause) == ("loaded", "produced by extern_kernels.mm")
    assert one.details["producer"] == "extern_kernels.mm"
    assert (two.verdict, two.cause) == (
        "loaded", "loaded through in_ptr0, which mystery may have written",
    )  # fmt: skip
    assert "producer" not in two.details


def test_a_kernel_that_may_have_stored_more_than_its_rows_show() -> None:
    run = Run()
    block = kernel(births(FINE, QUIET), kernel="calls")
    table = dataclasses.replace(block.table, left_out={"noinline call": 1})
    block = dataclasses.replace(block, table=table)
    run.blocks.append(block)
    run.again(block, in_ptr0=0, out_ptr0=5, other=1)
    run.launch("two", PASSES, in_ptr0=1, out_ptr0=2)
    assert run.only().cause == "loaded through in_ptr0, which calls may have written"


def test_a_launch_that_did_not_fit_into_the_log() -> None:
    """It was noted after the load, by another thread, and may be the producer."""
    run = Run()
    run.log = TensorLog(capacity=1)
    run.number = 1
    run.launch("two", PASSES, in_ptr0=1, out_ptr0=2)
    assert run.log.launch(0, 1) is not None
    run.number = 0
    run.again(kernel(births(), kernel="one"), in_ptr0=0, out_ptr0=1)
    assert run.only().cause == "loaded through in_ptr0"


def test_a_log_that_lost_launches_claims_nothing() -> None:
    run = Run()
    run.log = TensorLog(capacity=1)
    run.launch("one", births(FINE, QUIET), in_ptr0=0, out_ptr0=5)
    run.launch("two", births(FINE, QUIET), in_ptr0=0, out_ptr0=6)
    run.launch("three", PASSES, in_ptr0=7, out_ptr0=1)
    assert run.only().cause == "loaded through in_ptr0"


# -- infinities


def test_a_nan_that_is_born_of_a_stored_infinity() -> None:
    """An overflow in one kernel, inf - inf in another: one chain, also through a third that hands
    the infinity on."""
    inf = [INF, 1.0]
    consumer = [load(inf), Step("arith.subf", BAD, (0,), BORN, 2, rule="sub"), store(1, BAD)]
    between = [load(inf), store(0, inf)]
    for through in (False, True):
        run = Run()
        run.launch("one", births(inf, OVER, "exp"), "blocks.1", in_ptr0=0, out_ptr0=1)
        if through:
            run.launch("between", between, in_ptr0=1, out_ptr0=2)
        run.launch("two", consumer, "blocks.2", in_ptr0=1 + through, out_ptr0=3)
        one = run.only()
        assert (one.kind, one.module, one.severity) == ("inf", "blocks.1", "error")
        assert [(b.kind, b.module, b.cause) for b in one.births] == [
            ("inf", "blocks.1", "exp overflows fp32"),
            ("nan", "blocks.2", "inf - inf"),
        ]
        assert one.details["visible"]["kernel"] == "two"


def test_an_infinity_that_has_no_part_in_it() -> None:
    """0 / 0 has no infinite operand, so a loaded infinity is not behind it."""
    inf = [INF, 0.0]
    consumer = [load(inf), Step("arith.divf", BAD, (0,), BORN, 1, rule="div"), store(1, BAD)]
    run = Run()
    run.launch("one", births(inf, OVER, "exp"), in_ptr0=0, out_ptr0=1)
    run.launch("two", consumer, in_ptr0=1, out_ptr0=2)
    nan, inf_one = run.anomalies()
    assert (nan.kernel, inf_one.kernel, nan.cause) == ("two", "one", "0 / 0")


def test_a_stored_mask_value_is_no_origin() -> None:
    scores = [-INF, 1.0]
    run = Run()
    run.launch("one", [load(FINE), store(0, scores)], in_ptr0=0, out_ptr0=1)
    consumer = [load(scores), Step("arith.subf", BAD, (0,), BORN, 2, rule="sub"), store(1, BAD)]
    run.launch("two", consumer, in_ptr0=1, out_ptr0=2)
    one = run.only()
    assert (one.kernel, one.kind, len(one.births)) == ("two", "nan", 1)


# -- extern calls


def test_a_nan_passes_an_extern_call() -> None:
    run = Run()
    run.launch("one", births(), in_ptr0=0, out_ptr0=1)
    run.extern("extern_kernels.mm", BAD, in0=1, in1=9, out=2)
    run.launch("two", PASSES, in_ptr0=2, out_ptr0=3)
    one = run.only()
    assert [entry["kernel"] for entry in one.details["passed"]] == [
        "one", "extern_kernels.mm", "two",
    ]  # fmt: skip


def test_a_nan_that_an_extern_call_made() -> None:
    run = Run()
    run.launch("one", births(FINE, QUIET), in_ptr0=0, out_ptr0=1)
    run.extern("extern_kernels.mm", BAD, in0=1, in1=1, out=2)
    run.launch("two", PASSES, in_ptr0=2, out_ptr0=3)
    one = run.only()
    assert (one.verdict, one.op, one.statement) == ("born", "extern", "extern_kernels.mm")
    assert (one.severity, one.module) == ("error", "linear")
    assert one.cause == "extern_kernels.mm of finite values gives NaN"
    assert [b.op for b in one.births] == ["extern"]
    assert [entry["kernel"] for entry in one.details["passed"]] == ["extern_kernels.mm", "two"]


def test_an_extern_call_with_an_input_that_nobody_saw() -> None:
    """A weight may have held the NaN: seen, not born."""
    run = Run()
    run.launch("one", births(FINE, QUIET), in_ptr0=0, out_ptr0=1)
    run.extern("extern_kernels.mm", BAD, in0=1, in1=9, out=2)
    one = run.only()
    assert (one.verdict, one.severity, one.births) == ("seen", "error", ())
    assert one.cause == "in a result of extern_kernels.mm"


@pytest.mark.parametrize(("first", "wanted"), [(1, (1, 3)), ((1, 3), 1), ((1, 3), (1, 3))])
def test_an_input_that_was_written_in_part(first: Any, wanted: Any) -> None:
    """Two values were stored; the tensor that was written, or that is read, has four."""
    run = Run()
    run.launch("one", births(FINE, QUIET), in_ptr0=0, out_ptr0=first)
    run.extern("extern_kernels.mm", BAD, in0=wanted, out=5)
    assert run.only().verdict == "seen"


def test_an_infinity_of_an_extern_call() -> None:
    inf = [INF, 1.0]
    run = Run()
    run.launch("one", births(FINE, QUIET), in_ptr0=0, out_ptr0=1)
    run.extern("extern_kernels.mm", inf, in0=1, out=2)
    consumer = [load(inf), Step("arith.subf", BAD, (0,), BORN, 2, rule="sub"), store(1, BAD)]
    run.launch("two", consumer, in_ptr0=2, out_ptr0=3)
    one = run.only()
    assert [(b.op, b.kind) for b in one.births] == [("extern", "inf"), ("arith.subf", "nan")]
    assert one.cause == "extern_kernels.mm overflows fp32"
    # with an input that nobody saw, or one with an infinity: silence
    for first in (FINE, inf):
        run = Run()
        run.launch("one", [load(first), store(0, first)], in_ptr0=0, out_ptr0=1)
        run.extern("extern_kernels.mm", inf, in0=1, in1=1 if first is inf else 9, out=2)
        assert run.anomalies() == ()


def test_an_extern_call_makes_a_nan_of_infinities() -> None:
    inf = [INF, 1.0]
    run = Run()
    run.launch("one", births(inf, OVER, "exp"), in_ptr0=0, out_ptr0=1)
    run.extern("extern_kernels.mm", BAD, in0=1, out=2)
    one = run.only()
    assert [(b.op, b.kind) for b in one.births] == [("math.exp", "inf"), ("extern", "nan")]
    assert one.births[1].cause == "made by extern_kernels.mm"


# -- from step to step


def test_a_parameter_that_an_earlier_step_wrote() -> None:
    """An optimizer stores NaN into a parameter; the next steps load it. Nothing new."""
    run = Run()
    run.launch("grad", births(), in_ptr0=0, out_ptr0=1)
    run.launch("adam", PASSES, "optimizer", in_ptr0=1, out_ptr0=7)
    assert run.only().kernel == "grad"
    for _ in range(3):
        run.launch("forward", PASSES, in_ptr0=7, out_ptr0=1)
        run.launch("adam", PASSES, "optimizer", in_ptr0=1, out_ptr0=7)
        one = run.only()
    assert (one.kernel, one.step, one.last_step, one.occurrences) == ("grad", 0, 3, 4)


def test_a_parameter_that_an_earlier_step_wrote_without_a_nan() -> None:
    run = Run()
    run.launch("adam", births(FINE, QUIET), in_ptr0=0, out_ptr0=7)
    run.end_step()
    run.launch("forward", PASSES, in_ptr0=7, out_ptr0=1)
    one = run.only()
    assert (one.verdict, one.cause) == ("loaded", "loaded through in_ptr0")


def test_a_parameter_that_was_well_again() -> None:
    """Its NaN of step 0 was overwritten in step 1 by the same kernel; that of step 2 is new."""
    run = Run()
    adam = kernel(births(), kernel="adam")
    run.blocks.append(adam)
    run.again(adam, in_ptr0=0, out_ptr0=7)
    run.end_step()
    clean = kernel(births(FINE, QUIET), kernel="adam", launch=1)
    run.blocks.append(dataclasses.replace(clean, table=adam.table))
    run.again(adam, in_ptr0=0, out_ptr0=7)
    run.end_step()
    run.launch("forward", PASSES, in_ptr0=7, out_ptr0=1)
    assert [one.kernel for one in run.anomalies()] == ["adam", "forward"]


def test_module_of_a_parts_of_a_chain() -> None:
    """A passed store names the module of its own statement."""
    run = Run()
    run.launch("one", births(), "a", in_ptr0=0, out_ptr0=1)
    run.launch("two", PASSES, "b", in_ptr0=1, out_ptr0=2)
    block = run.blocks[1]
    owner = StatementOrigin("b.inner", ("b.inner",))
    origin = dataclasses.replace(block.site.origin, statements={"out_ptr0": owner})
    run.blocks[1] = dataclasses.replace(block, site=dataclasses.replace(block.site, origin=origin))
    assert [entry["module"] for entry in run.only().details["passed"]] == ["a", "b.inner"]


def test_a_chain_of_many_kernels() -> None:
    run = Run()
    run.launch("k0", births(), in_ptr0=0, out_ptr0=1)
    for number in range(1, 400):
        run.launch(f"k{number}", PASSES, in_ptr0=number, out_ptr0=number + 1)
    one = run.only()
    assert one.details["left_out"] == 400 - 64
    assert one.details["visible"]["kernel"] == "k399"


def test_searches_in_vain_are_limited() -> None:
    """Each kernel loads a parameter of its own, and one that all of them load."""
    run = Run()
    for number in range(SEARCHES + 3):
        run.launch(f"k{number}", PASSES, in_ptr0=number, out_ptr0=1000)
    for number in range(3):
        run.launch(f"again{number}", PASSES, in_ptr0=0, out_ptr0=1000)
    causes = [one.cause for one in run.anomalies()]
    outside = "produced outside Triton: argument in_ptr0"
    assert causes == [outside] * SEARCHES + ["loaded through in_ptr0"] * 3 + [outside] * 3


@pytest.mark.parametrize("launches", [1, 2])
def test_a_row_with_both_may_have_had_its_nan_later(launches: int) -> None:
    """The first non-finite launch of a block may be one with infinities only."""
    run = Run()
    both = [load([NAN, INF]), store(0, [NAN, INF])]
    run.launch("one", both, in_ptr0=7, out_ptr0=1)
    run.blocks[0] = dataclasses.replace(run.blocks[0], launches=launches)
    outside = "produced outside Triton: argument in_ptr0"
    assert run.only().cause == (outside if launches == 1 else "loaded through in_ptr0")
