"""What a session saw of the program and what it did not: counted, never silent."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

EXTERNS_IN_LINE = 5
SOURCES = ("recorded", "stale", "comments", "frames", "none")  # records.model.Origin.source


class Coverage:
    """Counts kernels by name, launches by number. Every method may be called from any thread.

    A kernel is *seen* once a launch of it reached the session in a way that can be recorded, and
    *known* once any method named it: a kernel whose launches all passed through is known, not seen.
    Reports of the same fact about a kernel count once, launches and extern calls add up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, None] = {}
        self._instrumented: dict[str, None] = {}
        self._stepped_down: dict[str, str] = {}
        self._not_instrumented: dict[str, str] = {}
        self._passed: Counter[tuple[str, str]] = Counter()
        self._left_out: dict[tuple[str, str], int] = {}
        self._externs: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._launches = 0
        self._notes: dict[str, None] = {}

    def saw(self, kernel: str) -> None:
        """A launch of `kernel` reached the session."""
        if kernel not in self._seen:  # called at every launch; the lock is for the first only
            with self._lock:
                self._seen[kernel] = None

    def instrumented(self, kernel: str) -> None:
        """A twin of `kernel` was built; it may have fewer probes than planned (`stepped_down`)."""
        with self._lock:
            self._instrumented[kernel] = None

    def stepped_down(self, kernel: str, reason: str) -> None:
        """The twin of `kernel` has fewer probes than planned; the last reason is kept."""
        with self._lock:
            self._stepped_down[kernel] = reason

    def not_instrumented(self, kernel: str, reason: str) -> None:
        """No twin could be had: the original of `kernel` runs; the last reason is kept."""
        with self._lock:
            self._not_instrumented[kernel] = reason

    def passed(self, kernel: str, reason: str) -> None:
        """One launch of `kernel` passed through unrecorded (benchmark, warmup, capture, ...)."""
        with self._lock:
            self._passed[kernel, reason] += 1

    def left_out(self, kernel: str, reason: str, n: int) -> None:
        """`n` values of `kernel` have no probe; of several reports the largest holds."""
        with self._lock:
            self._left_out[kernel, reason] = max(n, self._left_out.get((kernel, reason), 0))

    def extern(self, name: str, n: int = 1) -> None:
        """`n` calls of something that is no Triton kernel, such as `aten.addmm`."""
        with self._lock:
            self._externs[name] += n

    def provenance(self, source: str, n: int = 1) -> None:
        """The origin of `n` call sites was found in `source` (one of `SOURCES`)."""
        with self._lock:
            self._sources[source] += n

    def launches(self, n: int = 1) -> None:
        """`n` launches were recorded."""
        with self._lock:
            self._launches += n

    def note(self, text: str) -> None:
        """A remark for the reader; the same remark is kept once."""
        with self._lock:
            self._notes[text] = None

    def line(self) -> str:
        """The coverage in one line.

        `41 of 44 Triton kernels seen, 41 instrumented, 0 stepped down; 3 not instrumented; extern
        calls not visible: aten.addmm x12, aten.bmm x4`; parts that would be 0 are left out, except
        those of the first clause.
        """
        now = self.to_dict()
        parts = [
            f"{now['seen']} of {now['kernels']} Triton kernels seen, "
            f"{now['instrumented']} instrumented, {len(now['stepped_down'])} stepped down"
        ]
        if now["not_instrumented"]:
            parts.append(f"{len(now['not_instrumented'])} not instrumented")
        passed = sum(entry["launches"] for entry in now["passed"])
        if passed:
            parts.append(f"{_plural(passed, 'launch', 'launches')} passed through unrecorded")
        left_out = sum(entry["values"] for entry in now["left_out"])
        if left_out:
            parts.append(f"{_plural(left_out, 'value', 'values')} left out")
        if now["extern"]:
            parts.append(f"extern calls not visible: {_externs(now['extern'])}")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON types, in a fixed order; see docs/report-schema.md."""
        with self._lock:
            known = {
                *self._seen,
                *self._instrumented,
                *self._stepped_down,
                *self._not_instrumented,
                *(kernel for kernel, _ in self._passed),
                *(kernel for kernel, _ in self._left_out),
            }
            return {
                "kernels": len(known),
                "seen": len(self._seen),
                "instrumented": len(self._instrumented),
                "launches": self._launches,
                "stepped_down": dict(sorted(self._stepped_down.items())),
                "not_instrumented": dict(sorted(self._not_instrumented.items())),
                "passed": [
                    {"kernel": kernel, "reason": reason, "launches": n}
                    for (kernel, reason), n in sorted(self._passed.items())
                ],
                "left_out": [
                    {"kernel": kernel, "reason": reason, "values": n}
                    for (kernel, reason), n in sorted(self._left_out.items())
                ],
                "extern": dict(_by_count(self._externs)),
                "provenance": {
                    **{source: self._sources[source] for source in SOURCES},
                    **{s: n for s, n in sorted(self._sources.items()) if s not in SOURCES},
                },
                "notes": list(self._notes),
            }

    def __str__(self) -> str:
        """`line()` and below it, indented, one line per reason, with the kernels it concerns."""
        now = self.to_dict()
        lines = [self.line(), f"  launches recorded: {now['launches']}"]
        if any(now["provenance"].values()):
            found = ", ".join(f"{source} {n}" for source, n in now["provenance"].items() if n)
            lines.append(f"  provenance of call sites: {found}")
        for kernel, reason in now["stepped_down"].items():
            lines.append(f"  stepped down: {kernel}: {reason}")
        for kernel, reason in now["not_instrumented"].items():
            lines.append(f"  not instrumented: {kernel}: {reason}")
        for entry in now["passed"]:
            lines.append(f"  passed: {entry['kernel']} x{entry['launches']}: {entry['reason']}")
        reasons: dict[str, list[dict[str, Any]]] = {}
        for entry in now["left_out"]:
            reasons.setdefault(entry["reason"], []).append(entry)
        for reason, entries in reasons.items():
            values = _plural(sum(entry["values"] for entry in entries), "value", "values")
            where = entries[0]["kernel"] if len(entries) == 1 else f"{len(entries)} kernels"
            lines.append(f"  left out: {values} of {where}: {reason}")
        if len(now["extern"]) > EXTERNS_IN_LINE:
            listed = ", ".join(f"{name} x{n}" for name, n in now["extern"].items())
            lines.append(f"  extern calls: {listed}")
        lines += [f"  note: {text}" for text in now["notes"]]
        return "\n".join(lines)


def _plural(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _externs(counts: Mapping[str, int]) -> str:
    shown: Iterable[str] = [f"{name} x{n}" for name, n in list(counts.items())[:EXTERNS_IN_LINE]]
    more = len(counts) - EXTERNS_IN_LINE
    return ", ".join([*shown, *([f"and {more} more"] if more > 0 else [])])
