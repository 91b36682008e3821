"""Lanes that left their tensor, as anomalies.

Note [Out of bounds]
An access may go to the bytes from the first element of its argument's tensor to the end of the last
one, not further, even if the memory behind the tensor reaches further: a view of a larger buffer
shows the same mistake as a tensor that ends with its allocation, only silently. Gaps between the
rows of a view lie inside. A NaN that was loaded from outside is part of the same finding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ..records.address_model import AccessEntry
from ..records.model import Anomaly, Block, Outside
from .anomalies import First, anomaly
from .chains import Chain
from .places import index_of, layout_of
from .reach import owner

_VERBS = {"load": "reads", "store": "writes", "atomic": "updates"}


def outside(step: int, block: Block) -> Iterator[Chain]:
    """The anomalies of a block's accesses, in their order."""
    for number, found in block.outside.items():
        access = block.table.accesses[number]
        one = _anomaly(step, block, access, found)
        order = (2, one.launch, number, one.kernel, one.site)
        yield Chain(one, order, block.table.bounds(number))


def explains(found: Chain, loaded: Chain) -> bool:
    """Whether what a load brought came from lanes outside."""
    one, other = found.anomaly, loaded.anomaly
    same = (one.site, one.kernel, one.op_id) == (other.site, other.kernel, other.op_id)
    nan = other.counts["nan"]
    return same and other.verdict == "loaded" and nan <= one.details["oob_lanes"]


def with_loaded(found: Chain, loaded: Chain) -> Chain:
    """The finding with what became of the values that it brought."""
    kept = {name: loaded.anomaly.details[name] for name in ("passed", "visible", "stored_nan")
            if name in loaded.anomaly.details}  # fmt: skip
    counts = {**found.anomaly.counts, "nan": loaded.anomaly.counts["nan"]}
    whole = dataclasses.replace(
        found.anomaly,
        counts=MappingProxyType(counts),
        details=MappingProxyType({**found.anomaly.details, **kept}),
    )
    return dataclasses.replace(loaded, anomaly=whole, check=found.check, hidden=False)


def _anomaly(step: int, block: Block, access: AccessEntry, found: Outside) -> Anomaly:
    record, details = block.access_records[access.number], _details(access, found)
    return anomaly(
        step,
        block.site.key,
        block.table.kernel,
        access,
        owner(block, access),
        First(found.launch.number, found.program, found.iteration, found.lane),
        kind="oob",
        severity="error",
        op_id=access.op_id,
        variable=access.variable,
        counts={
            "lanes": int(record["executions"]) * access.numel,
            "live": int(record["live"]),
        },
        cause=_cause(access, details),
        details=details,
    )


def _details(access: AccessEntry, found: Outside) -> dict[str, Any]:
    """What `Anomaly.details` says of an access outside (docs/contract.md)."""
    details: dict[str, Any] = {
        "oob_lanes": found.lanes,
        "argument": access.arguments[0] if len(access.arguments) == 1 else access.arguments,
        "index_range": (found.low // access.itemsize, found.high // access.itemsize),
    }
    if access.indexed_by:
        details["indexed_by"] = access.indexed_by
    tensor = layout_of(found.launch, access.arguments[0])
    if len(access.arguments) > 1 or tensor is None:
        return details
    details |= {
        "shape": tensor.shape,
        "strides": tensor.strides,
        "extent": (0, tensor.nbytes // access.itemsize),
    }
    if found.offset is None:
        return details
    low, high = found.offset, found.offset + access.itemsize
    before = low < 0
    details["bytes_beyond"] = -low if before else high - tensor.nbytes
    details["side"] = "before" if before else "behind"
    start, end = tensor.storage
    details["in_storage"] = start <= low and high <= end
    if tensor.itemsize == access.itemsize:
        element, rest = divmod(low, access.itemsize)
        index = None if rest else index_of(element, tensor.shape, tensor.strides)
        if index is not None:
            details["index"] = index
    return details


def _cause(access: AccessEntry, details: Mapping[str, Any]) -> str:
    verb = _VERBS[access.role]
    if "bytes_beyond" not in details:
        names = details["argument"]
        low, high = details["index_range"]
        where = names if isinstance(names, str) else ", ".join(names)
        return f"{verb} outside of {where}, elements {low} to {high}"
    index = f"[{', '.join(map(str, details['index']))}]" if "index" in details else ""
    where = "start" if details["side"] == "before" else "end"
    storage = "inside" if details["in_storage"] else "outside"
    return (
        f"{verb} {details['argument']}{index} of shape {details['shape']}, "
        f"{details['bytes_beyond']} bytes {details['side']} its {where}, {storage} its storage"
    )
