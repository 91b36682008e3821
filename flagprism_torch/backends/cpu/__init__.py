"""A Triton backend `cpu`: the stock TTIR passes, then the TTIR is executed with NumPy.

It lets plain Triton kernels, and those that torch.compile generates, run on a machine without a
GPU: compiler.py and driver.py are what Triton asks of a backend, kernel.py runs a launch,
lowering.py turns TTIR ops into closures by the rules in memory.py, tensors.py, control.py ...
Importing this package imports neither Triton nor torch.
"""

from .registration import disable_cpu, enable_cpu, is_registered, register, unregister

__all__ = ["disable_cpu", "enable_cpu", "is_registered", "register", "unregister"]
