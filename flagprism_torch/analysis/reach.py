"""Where accesses went: rows of addresses from merged records and samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..provenance import callsites
from ..records import layout
from ..records.address_model import AccessEntry, AddressRow
from ..records.model import Block, Sample, StatementOrigin
from .places import layout_of

_LARGEST_ALIGNMENT = 256


def rows(step: int | None, blocks: Iterable[Block]) -> list[AddressRow]:
    """The rows of `blocks`, in block order and within a block in the order of its accesses."""
    return [
        _row(step, block, access, record, block.samples[access.number])
        for block in blocks
        for access, record in zip(block.table.accesses, block.access_records, strict=True)
    ]


def owner(block: Block, access: AccessEntry) -> StatementOrigin:
    """Who owns an access: what is written belongs to the owner of the written tensor."""
    pointer = access.arguments[0] if access.role != "load" and access.arguments else None
    return callsites.owner(block.site.origin, access.variable, pointer, access.statement)


def _row(
    step: int | None, block: Block, access: AccessEntry, record: Any, sample: Sample
) -> AddressRow:
    at, site = owner(block, access), block.site
    argument = access.arguments[0] if len(access.arguments) == 1 else None
    tensor = layout_of(sample.launch, argument)
    active = int(record["live"])
    found = block.outside.get(access.number)
    outside = None
    if access.arguments and all(layout_of(sample.launch, name) for name in access.arguments):
        outside = found.lanes if found is not None else 0
    base = tensor.address if tensor is not None else None if access.arguments else 0
    return AddressRow(
        step=step,
        site=site.key,
        call=site.index,
        module=at.module,
        phase=at.phase,
        kernel=site.kernel,
        file=access.file,
        line=access.line,
        variable=access.variable,
        statement=access.statement,
        op=access.op,
        access=access.number,
        role=access.role,
        dtype=access.dtype,
        itemsize=access.itemsize,
        argument=argument,
        arguments=access.arguments,
        shape=tensor.shape if tensor is not None else (),
        strides=tensor.strides if tensor is not None else (),
        launches=block.launches,
        executions=int(record["executions"]),
        lanes=int(record["executions"]) * access.numel,
        active=active,
        min=int(layout.min_of_key(int(record["min_key"]), "int64")) if active else None,
        max=int(layout.value_of_key(int(record["max_key"]), "int64")) if active else None,
        first=sample.first,
        last=sample.last,
        pattern=pattern(access, sample),
        lane_strides=sample.strides,
        alignment=None if base is None or sample.first is None else _alignment(base + sample.first),
        outside=outside,
        aten=at.aten,
        modules=at.modules,
        model_file=at.model_file,
        model_line=at.model_line,
    )


def pattern(access: AccessEntry, sample: Sample) -> str:
    """How the lanes of one execution lie to each other (records.model.AddressRow)."""
    if access.numel == 1:
        return "scalar"
    if sample.first is None or sample.strides is None:
        return "unknown"
    if not sample.even:
        return "scattered"
    extents = access.shape[-len(sample.strides) :]
    if not any(sample.strides):
        return "broadcast" if len(access.shape) <= len(extents) else "strided"
    step = access.itemsize
    for extent, stride in zip(extents[::-1], sample.strides[::-1], strict=True):
        if extent > 1 and stride != step:
            return "strided"
        step *= extent
    return "contiguous" if len(access.shape) <= len(extents) else "strided"


def _alignment(address: int) -> int:
    return min(address & -address, _LARGEST_ALIGNMENT) if address else _LARGEST_ALIGNMENT
