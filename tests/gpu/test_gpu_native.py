"""Record buffers on an accelerator: stream order, pinned copies, no waiting."""

from __future__ import annotations

import pytest
import torch

from flagprism_torch.records import native


def test_new_buffer_is_zeroed_in_stream_order(device: str):
    stream = torch.Stream(device=device)
    with stream:
        dirty = torch.full((1 << 20,), -1, dtype=torch.int32, device=device)
        del dirty  # the same stream gets the same memory back
        buffer = native.new_buffer(1 << 20, device)
        total = buffer.sum()
    stream.synchronize()
    assert buffer.device.type == device and total.item() == 0


def test_copy_to_host_is_pinned_and_does_not_wait(device: str):
    work = torch.zeros(1 << 27, device=device)
    buffer = native.new_buffer(4096, device)
    native.copy_to_host(buffer)  # the first pinned allocation may wait
    done = torch.Event(device=device)
    torch.accelerator.synchronize()
    for _ in range(200):  # queued in front of the copy
        work.add_(1)
    buffer.fill_(7)
    host = native.copy_to_host(buffer)
    done.record(torch.accelerator.current_stream())
    assert not done.query()
    assert host.is_pinned() and host.device.type == "cpu"
    done.synchronize()
    assert host.eq(7).all()


def test_devices_are_checked(device: str):
    count = torch.accelerator.device_count()
    assert native.new_buffer(1, f"{device}:{count - 1}").device.index == count - 1
    with pytest.raises(ValueError, match=f"'{device}:{count}' is not available; allowed: cpu, "):
        native.new_buffer(1, f"{device}:{count}")


def test_folding_wants_host_memory(device: str):
    buffer = native.new_buffer(24, device)
    with pytest.raises(ValueError, match=r"scratch is on .* \(see copy_to_host\)"):
        native.fold(buffer, native.new_buffer(24, "cpu"), 1, 1)


def test_running_out_of_memory_is_an_error_and_no_crash(device: str):
    with pytest.raises(RuntimeError):
        native.new_buffer(1 << 45, device)
    assert not native.new_buffer(16, device).any()
