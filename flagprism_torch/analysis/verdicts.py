"""The log of anomalies: what the chains and the silent checks of each step found, kept once.

Note [Verdicts]
born: a check saw a non-finite result of operands that do not explain it, in lanes that are needed.
loaded: a NaN came from memory, from a producer that is not known to have made it.
found: a check for trouble that shows no NaN saw some (analysis.silent).
seen: a NaN that nothing explains, or lanes of which nobody knows whether they matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any

from ..records.model import COUNTED, Anomaly, Block
from ..records.remarks import Remark
from ..records.survivors import Crash
from ..records.tensor_log import TensorLog
from .bounds import explains, outside, with_loaded
from .chains import Chain, Store, chains
from .configuration import configuration
from .crash import crash_chain
from .silent import silent
from .watch import watch

CAPACITY = 4096  # distinct anomalies a log keeps; hidden ones are counted apart
_SEVERITIES = ("error", "warning", "info")
_Key = tuple[Any, ...]


class AnomalyLog:
    """Anomalies of a session, one per (call site, operation, kind), in bounded memory.

    What a later step adds to a known anomaly: `last_step`, `occurrences`, a worse `severity`.
    Everything else is that of the first step with it.

    `capacity`: distinct anomalies kept, and as many hidden ones; `left_out` counts the sightings of
    others.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.left_out = 0
        self._kept: dict[_Key, Chain] = {}
        self._hidden: dict[_Key, Chain] = {}
        self._stored: dict[Store, int] = {}  # a NaN was stored there -> last such step
        self._behind: dict[Store, _Key] = {}  # -> the anomaly it belongs to

    def __len__(self) -> int:
        return len(self._kept)

    def copy(self) -> AnomalyLog:
        """An independent log with the same anomalies."""
        other = AnomalyLog(self.capacity)
        other.left_out = self.left_out
        other._kept, other._hidden = dict(self._kept), dict(self._hidden)
        other._stored, other._behind = dict(self._stored), dict(self._behind)
        return other

    def add(
        self,
        step: int,
        blocks: Iterable[Block],
        tensors: TensorLog | None = None,
        name_of: Callable[[int], str | None] = lambda address: None,
        remarks: Iterable[Remark] = (),
    ) -> None:
        """Takes in the findings of `blocks`, which hold launches of `step` not added before.

        A step may come in several calls: counts of the first step with an anomaly add up, and each
        block that has one as its head is one occurrence. Values are followed from kernel to kernel
        within one call.

        Args:
            tensors: the log of launches; None: no value is followed to another kernel.
            name_of: name of the parameter or buffer at an address.
            remarks: what the arguments of these launches told.
        """
        blocks = list(blocks)
        left = [chain for block in blocks for chain in outside(step, block)]
        for chain in chains(step, blocks, tensors, self._stored, name_of):
            why = next((one for one in left if explains(one, chain)), None)
            if why is not None:
                left.remove(why)
                chain = with_loaded(why, chain)
            key = self._known(chain)
            if key is None:
                key = _key(chain)
                self._put(key, chain)
            else:  # what an earlier step stored, once more
                self._kept[key] = _again(self._kept[key], chain.anomaly)
            for store in chain.stores:
                if store in self._stored or len(self._stored) < self.capacity:
                    self._stored[store] = step
                    self._behind.setdefault(store, key)
        for chain in left:
            self._put(_key(chain), chain)
        for block in blocks:
            for chain in silent(step, block):
                self._put(_key(chain), chain)
        nan_before = any(chain.anomaly.kind == "nan" for chain in self._kept.values())
        for chain in watch(step, blocks, nan_before):
            self._put(_key(chain), chain)
        for chain, about in configuration(step, blocks, remarks):
            self._put((*_key(chain), *about), chain)

    def add_crash(self, crash: Crash) -> None:
        """Takes in a launch that did not end."""
        chain = crash_chain(crash)
        self._put(_key(chain), chain)

    def anomalies(self) -> tuple[Anomaly, ...]:
        """Crashes first, then chains with a NaN, then infinities, then other kinds; each by first
        launch, then by order of the values in the kernel."""
        return _sorted(self._kept)

    def hidden(self) -> tuple[Anomaly, ...]:
        """Chains that did not leave their kernel, in the same order."""
        return _sorted(self._hidden)

    def kernels(self) -> set[str]:
        """Kernels with an anomaly."""
        return {chain.anomaly.kernel for chain in self._kept.values()}

    def values(self) -> frozenset[Store]:
        """(site, kernel, op id) of the values with an anomaly."""
        found = [one for chain in self._kept.values() for one in (chain.anomaly,
                 *chain.anomaly.births)]  # fmt: skip
        return frozenset((one.site, one.kernel, one.op_id) for one in found)

    def _known(self, chain: Chain) -> _Key | None:
        """The anomaly of an earlier step whose stored NaN is all that a chain is."""
        key = None if chain.earlier is None else self._behind.get(chain.earlier)
        return key if key in self._kept else None

    def _put(self, key: _Key, new: Chain) -> None:
        kept = self._hidden if new.hidden else self._kept
        old = kept.get(key)
        if old is not None:
            kept[key] = _again(old, new.anomaly, new.anomaly.step == old.anomaly.step)
        elif len(kept) < self.capacity:
            kept[key] = new
        else:
            self.left_out += 1


def _key(chain: Chain) -> _Key:
    one = chain.anomaly
    return (one.site, one.kernel, chain.check, one.op_id, one.op, one.line, one.variable, one.kind)


def _again(old: Chain, new: Anomaly, same_step: bool = False) -> Chain:
    known = old.anomaly
    counts, details = known.counts, known.details
    if same_step:
        counts = MappingProxyType({name: n + new.counts[name] for name, n in counts.items()})
        more = {name: details[name] + new.details[name] for name in COUNTED if name in details}
        details = MappingProxyType({**details, **more})
    anomaly = dataclasses.replace(
        known,
        last_step=max(known.last_step, new.step),
        occurrences=known.occurrences + 1,
        severity=min(known.severity, new.severity, key=_SEVERITIES.index),
        counts=counts,
        details=details,
    )
    return dataclasses.replace(old, anomaly=anomaly)


def _sorted(kept: dict[_Key, Chain]) -> tuple[Anomaly, ...]:
    return tuple(chain.anomaly for chain in sorted(kept.values(), key=lambda chain: chain.order))
