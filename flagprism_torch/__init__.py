"""flagprism_torch: look inside the Triton kernels of a PyTorch program while it runs.

```python
with flagprism_torch.debug(level=1, model=model) as session:
    loss = model(batch); loss.backward()
print(session.report())
```
"""

from __future__ import annotations

from flagprism_torch.backends.cpu import disable_cpu, enable_cpu
from flagprism_torch.errors import (
    ExtensionMissingError,
    FlagPrismError,
    InvalidPointerError,
    NestedSessionError,
    NoKernelWarning,
    PatchConflictWarning,
    UnsupportedOpError,
)
from flagprism_torch.hooks import provenance_patches
from flagprism_torch.session import Session, debug

__version__ = "0.1.0"
__all__ = [
    "ExtensionMissingError",
    "FlagPrismError",
    "InvalidPointerError",
    "NestedSessionError",
    "NoKernelWarning",
    "PatchConflictWarning",
    "Session",
    "UnsupportedOpError",
    "debug",
    "disable_cpu",
    "enable_cpu",
]

provenance_patches.install()
