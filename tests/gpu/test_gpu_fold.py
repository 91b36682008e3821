"""The fold kernel on the device against the fold of the C++ extension."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flagprism_torch.records import fold, native
from flagprism_torch.records.layout import CHECK_WORDS, RECORD_DTYPE, RECORD_WORDS


def _records(slots: int, ops: int) -> np.ndarray:
    """Records with values in every field; sums are small integers, so order does not matter."""
    random = np.random.default_rng(slots * 1000 + ops)
    made = np.zeros((slots, ops), RECORD_DTYPE)
    for name in ("executions", "live", "nan", "posinf", "neginf", "zero"):
        made[name] = random.integers(0, 1 << 40, made.shape)
    for name in ("min_key", "max_key", "first"):
        made[name] = random.integers(0, np.iinfo(np.uint64).max, made.shape, np.uint64)
    made["sum"] = random.integers(-(1 << 20), 1 << 20, made.shape)
    made["sumsq"] = random.integers(0, 1 << 20, made.shape)
    made[random.random(made.shape) < 0.2] = 0  # programs that did not come by
    return made


@pytest.mark.parametrize("slots", [1, 2, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 5000, 65536])
@pytest.mark.parametrize(("ops", "checks"), [(1, 0), (5, 1), (5, 50)])
def test_equals_the_native_fold(device: str, slots: int, ops: int, checks: int):
    """Records are folded as on the CPU; check records, of which there is one set, are moved behind
    them. What was read is zero after it, and so are the tickets."""
    scratch = torch.from_numpy(_records(slots, ops).view(np.int32).reshape(-1))
    folded = torch.zeros(ops * RECORD_WORDS, dtype=torch.int32)
    native.fold(scratch, folded, slots, ops)
    found = torch.arange(1, checks * CHECK_WORDS + 1, dtype=torch.int32)
    wanted = torch.cat((folded, found))

    stream = torch.cuda.current_stream().cuda_stream if device.startswith("cuda") else 0
    chunks = fold.chunks_of(slots)
    partial = torch.zeros(ops * chunks * RECORD_WORDS, dtype=torch.int32, device=device)
    tickets = torch.zeros(ops + chunks, dtype=torch.int32, device=device)
    for _ in range(2):  # compiled, then launched directly
        out = torch.full((wanted.numel(),), -1, dtype=torch.int32, device=device)
        records, moved = scratch.to(device, copy=True), found.to(device, copy=True)
        fold.launch(
            records.view(torch.int64),
            partial.view(torch.int64),
            tickets,
            out.view(torch.int64),
            slots,
            ops,
            moved.view(torch.int64),
            stream,
        )
        assert torch.equal(out.cpu(), wanted)
        assert not records.any() and not moved.any()  # zeroed for the next launch
        assert not tickets.any()
