"""Errors a user can meet. Each class is one failure; its message says what to do about it."""

from __future__ import annotations


class FlagPrismError(Exception):
    """Base class of every error that flagprism_torch raises on its own account."""


class NestedSessionError(FlagPrismError, RuntimeError):
    """`debug()` was entered while another session is active in this process."""

    def __init__(self) -> None:
        super().__init__(
            "flagprism_torch.debug() is already active in this process (launch hooks are "
            "process-wide, because backward kernels run in autograd's threads); leave it before "
            "entering another"
        )


class ExtensionMissingError(FlagPrismError, ImportError):
    """The compiled C++ extension cannot be loaded."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"the C++ extension of flagprism_torch cannot be loaded ({detail}); "
            "build it with: pip install -e . --no-build-isolation"
        )


class UnsupportedOpError(FlagPrismError, NotImplementedError):
    """The CPU backend met a TTIR operation that it cannot execute."""

    def __init__(self, op: str, statement: str) -> None:
        super().__init__(f"the CPU backend cannot execute {op} (statement: {statement})")
        self.op = op
        self.statement = statement


class InvalidPointerError(FlagPrismError, IndexError):
    """A kernel on the CPU backend used an address outside every tensor argument's storage."""


class InstrumentationError(FlagPrismError, RuntimeError):
    """A kernel cannot be instrumented; the launch runs the original and the coverage says why."""


class PatchConflictWarning(RuntimeWarning):
    """Another tool replaced an attribute that flagprism_torch had patched."""


class NoKernelWarning(RuntimeWarning):
    """A `debug()` block ended without a single Triton launch."""
