"""Numbers that GPU tests report: printed together at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_LINES: list[str] = []


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Adds a line to the summary, under the name of the test."""

    def add(text: str) -> None:
        _LINES.append(f"{request.node.name}: {text}")

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _LINES:
        return
    import torch
    import triton

    device = torch.accelerator.current_accelerator(check_available=True)
    name = torch.get_device_module(device).get_device_name() if device is not None else "CPU"
    terminalreporter.section("what the GPU tests measured")
    terminalreporter.write_line(f"{name}, torch {torch.__version__}, triton {triton.__version__}")
    for line in _LINES:
        terminalreporter.write_line(line)
