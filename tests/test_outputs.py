"""The record of a whole tensor: NumPy's way and the kernel's, against the oracle of records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flagprism_torch.backends.cpu import register, unregister
from flagprism_torch.records import layout, native, outputs
from flagprism_torch.records.layout import RECORD_DTYPE, RECORD_WORDS

INF, NAN = math.inf, math.nan
DTYPES = list(outputs.DTYPES)
VALUES = {
    "one": [2.5],
    "zeros": [0.0, -0.0, 0.0],
    "nothing finite": [NAN, INF, -INF, NAN],
    "one finite": [INF, -3.0, NAN],
    "signs": [-1.0, 2.0, -0.0, 0.5],
    "small": [6e-8, -6e-8, 0.0],  # a denormal of fp16
}


@pytest.fixture(autouse=True)
def _driver() -> Iterator[None]:
    register("test_outputs")
    yield
    unregister("test_outputs")


def tensors(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    made = {name: torch.tensor(values).to(dtype) for name, values in VALUES.items()}
    long = torch.randn(70, 77).to(dtype)
    long[40, 3], long[69, 76], long[50, 0] = INF, NAN, -INF
    long[10] = 0
    made["long"] = long
    made["bad at the end"] = torch.ones(2049).to(dtype).index_fill_(0, torch.tensor(2048), NAN)
    largest = torch.finfo(dtype).max
    tiny = torch.finfo(dtype).smallest_normal
    made["tiny"] = torch.tensor([tiny, -tiny, 0.0, tiny * 2], dtype=dtype)
    made["large"] = torch.tensor([largest, largest / 2, -largest / 4], dtype=dtype)
    return made


def check(record: Any, tensor: torch.Tensor, rel: float = 1e-12) -> None:
    """rel: of the sums, the plain one to the sum of magnitudes."""
    wanted = oracle.record_of(tensor.double().numpy(), outputs.DTYPES[tensor.dtype])
    for name in RECORD_DTYPE.names:
        if name in ("min_key", "max_key") and wanted["min_key"]:  # zeros of both signs are equal
            value = layout.min_of_key if name == "min_key" else layout.value_of_key
            assert value(record[name], "fp64") == value(wanted[name], "fp64"), name
        elif name not in ("sum", "sumsq", "scale"):
            assert record[name] == wanted[name], name
    magnitudes = tensor.double().abs()
    scale = float(magnitudes[magnitudes.isfinite()].sum())
    assert record["sum"] == pytest.approx(wanted["sum"], rel=rel, abs=rel * scale)
    try:
        squares = math.ldexp(float(wanted["sumsq"]), 2 * int(wanted["scale"]))
    except OverflowError:
        squares = INF
    assert record["scale"] == 0
    assert record["sumsq"] == pytest.approx(squares, rel=rel)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy(dtype: torch.dtype):
    for tensor in tensors(dtype).values():
        scratch = torch.zeros(2 * RECORD_WORDS, dtype=torch.int32)
        outputs.write(tensor, scratch, 0)
        first, second = np.frombuffer(scratch.numpy().tobytes(), RECORD_DTYPE)
        check(first, tensor)
        assert not second["live"] and outputs.programs_of(tensor) == 1


@pytest.mark.parametrize("programs", [1, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernel(dtype: torch.dtype, programs: int):
    """The records of all programs, merged as by the fold."""
    for tensor in tensors(dtype).values():
        records = torch.zeros(programs * RECORD_WORDS // 2, dtype=torch.int64)
        outputs.record_kernel[(programs,)](
            tensor, records, tensor.numel(), BLOCK=512, CHUNK=1024, DOUBLE=dtype == torch.float64
        )
        merged = torch.zeros(RECORD_WORDS, dtype=torch.int32)
        native.fold(records.view(torch.int32), merged, programs, 1)
        check(np.frombuffer(merged.numpy().tobytes(), RECORD_DTYPE)[0], tensor, rel=1e-6)


def test_lanes_are_those_of_the_shape_not_of_memory():
    tensor = torch.zeros(3, 5)
    tensor[1, 4] = NAN
    for view in (tensor, tensor.t(), tensor[:, 1:], tensor[1:, ::2]):
        scratch = torch.zeros(RECORD_WORDS, dtype=torch.int32)
        outputs.write(view, scratch, 0)
        check(np.frombuffer(scratch.numpy().tobytes(), RECORD_DTYPE)[0], view)


def test_a_tensor_that_needs_a_gradient():
    scratch = torch.zeros(RECORD_WORDS, dtype=torch.int32)
    tensor = torch.ones(4, 4, requires_grad=True).t() * 2
    outputs.write(tensor, scratch, 0)
    check(np.frombuffer(scratch.numpy().tobytes(), RECORD_DTYPE)[0], tensor.detach())


@pytest.mark.parametrize(
    ("tensor", "recordable"),
    [
        (torch.ones(3), True),
        (torch.ones(()), True),
        (torch.ones(3, dtype=torch.int32), False),
        (torch.ones(3, dtype=torch.complex64), False),
        (torch.ones(3).to(torch.float8_e5m2), False),
        (torch.ones(0), False),
        (torch.eye(3).to_sparse(), False),
        (torch.nn.Parameter(torch.ones(3)), False),
    ],
    ids=str,
)
def test_recordable(tensor: torch.Tensor, recordable: bool):
    assert outputs.recordable(tensor) is recordable


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_compiles_for_sm90(dtype: torch.dtype):
    signature = {"values": f"*{outputs.DTYPES[dtype]}", "records": "*i64", "numel": "i32",
                 "BLOCK": "constexpr", "CHUNK": "constexpr", "DOUBLE": "constexpr"}  # fmt: skip
    constants: dict[Any, Any] = {(3,): 1024, (4,): 8192, (5,): dtype == torch.float64}
    source = ASTSource(outputs.record_kernel, signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert compiled.asm["cubin"] and compiled.metadata.shared <= 48 << 10
