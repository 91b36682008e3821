"""What a kernel's IR and the arguments of its launches tell without a probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Hint:
    """Something in the IR that can be wrong, depending on the launch (instrument.hints).

    `kind`: "reload" | "layout" | "inplace" | "unmasked". `arguments`: names of kernel arguments, as
    in TTIR; the first is the one in question. `details`: of JSON types.
    """

    kind: str
    op: str
    file: str
    line: int
    variable: str | None
    statement: str
    arguments: tuple[str, ...]
    details: Mapping[str, Any] = field(default_factory=dict)
