"""Records of whole tensors on the device, and of the results of extern calls."""

from __future__ import annotations

import math

import numpy as np
import pytest
import test_outputs as cpu
import torch
from session_rows import check, row_of

import flagprism_torch
from flagprism_torch.records import native, outputs
from flagprism_torch.records.layout import RECORD_DTYPE, RECORD_WORDS


@pytest.mark.parametrize("dtype", cpu.DTYPES, ids=str)
def test_equals_the_oracle(device: str, dtype: torch.dtype):
    stream = torch.cuda.current_stream().cuda_stream if device.startswith("cuda") else 0
    for tensor in cpu.tensors(dtype).values():
        there = tensor.to(device)
        for view in (there, there[1:] if there.numel() > 1 else there):  # also unaligned
            programs = outputs.programs_of(view)
            for _ in range(2):  # compiled, then launched directly
                scratch = torch.zeros(programs * RECORD_WORDS, dtype=torch.int32, device=device)
                outputs.write(view, scratch, stream)
                merged = torch.zeros(RECORD_WORDS, dtype=torch.int32)
                native.fold(scratch.cpu(), merged, programs, 1)
                record = np.frombuffer(merged.numpy().tobytes(), RECORD_DTYPE)[0]
                cpu.check(record, view.cpu(), rel=1e-6)


def test_a_large_result_has_the_row_of_its_values(device: str):
    # without a bias: on a GPU Inductor adds one in the kernel after the product, not in the call
    model = torch.nn.Linear(512, 3000, bias=False, device=device)
    x = torch.randn(700, 512, device=device)
    x[600, 3] = math.nan
    with torch.no_grad():
        wanted = model(x)
        with flagprism_torch.debug(logdir=False, model=model) as session:
            torch.compile(lambda x: torch.relu(model(x)))(x)
    row = row_of(session.table(), op="extern")
    check(row, wanted, executions=1, values_rel=1e-3, rel=1e-3)
    assert row.first_nonfinite == ((0, 0, 0), 0, (600, 0)) and row.nan == 3000
