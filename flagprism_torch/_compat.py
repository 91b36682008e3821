"""The only file that compares versions of torch and Triton."""

from __future__ import annotations

import re
from importlib import metadata


def version_of(package: str) -> tuple[int, ...]:
    """(major, minor, patch) of an installed package, () if it is not installed."""
    try:
        text = metadata.version(package)
    except metadata.PackageNotFoundError:
        return ()
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
