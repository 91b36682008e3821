"""A launch that did not end, as an anomaly: where its programs stood."""

from __future__ import annotations

from types import MappingProxyType

from ..provenance import callsites
from ..records.findings import place_of
from ..records.model import TracePoint
from ..records.survivors import Crash
from .anomalies import First, anomaly
from .chains import Chain

LISTED = 16  # statements of one crash


def crash_chain(crash: Crash) -> Chain:
    """The anomaly of a crash. Its statement is the one that most of the stopped programs did not
    get past; `program` is the first of these."""
    launch, site = crash.launch, crash.launch.site
    stopped = {point: found for point, found in crash.reached.items() if point and not point.is_end}
    order = sorted(stopped, key=lambda point: (-stopped[point][0], point.line))
    point = order[0] if order else TracePoint(launch.table.file, launch.table.line, "", "")
    at = callsites.owner(site.origin, None, None, point.statement)
    place = place_of((stopped[point][1], 0, 0), launch, ()) if order else None
    ended = sum(n for p, (n, _) in crash.reached.items() if p is not None and p.is_end)
    details = {
        "programs": launch.programs,
        "ended": ended,
        "not_begun": crash.reached.get(None, (0, 0))[0],
        "reached": tuple(
            MappingProxyType({"statement": p.statement, "line": p.line, "op": p.op,
                              "programs": stopped[p][0]})
            for p in order[:LISTED]
        ),
    }  # fmt: skip
    found = anomaly(
        launch.step,
        site.key,
        launch.table.kernel,
        point,
        at,
        First(launch.number, place[0] if place is not None else None, None, 0),
        kind="crash",
        severity="error",
        cause=crash.reason,
        details=details,
    )
    return Chain(found, (-1, launch.number, 0, found.kernel, found.site))
