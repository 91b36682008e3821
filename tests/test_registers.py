"""benchmarks/registers.py: what probes cost in registers and shared memory."""

from __future__ import annotations

import pytest

from benchmarks.registers import KERNELS, RECIPES, Usage, usage


@pytest.mark.parametrize(
    "registers,shared,threads,programs",
    [
        (32, 0, 128, 16),  # 2048 threads
        (33, 0, 128, 12),  # 65536 registers, 40 a thread
        (255, 0, 256, 1),
        (16, 0, 32, 32),  # the most programs there may be
        (32, 98304, 256, 2),  # 228 KiB
    ],
)
def test_programs_that_fit(registers: int, shared: int, threads: int, programs: int) -> None:
    assert Usage(0, registers, 0, shared, 1, threads).programs == programs


@pytest.mark.slow
def test_probes_cost_something() -> None:
    plain, twin = (usage("vector add", RECIPES[name]) for name in ("plain", "all"))
    assert (plain.records, plain.shared, plain.stack) == (0, 0, 0)
    assert twin.records == 3  # x, y and what is stored
    assert plain.threads == twin.threads == KERNELS["vector add"][3] * 32
    # 1024 loads and stores by 128 threads, 4 elements wide: 6 instructions at the least
    assert 6 <= plain.instructions < twin.instructions
    assert 8 <= plain.registers < twin.registers <= 255
