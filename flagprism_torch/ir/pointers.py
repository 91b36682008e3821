"""Which kernel arguments a pointer may be derived from, found in the text once per kernel."""

from __future__ import annotations

from collections.abc import Collection

from flagprism_torch.ir.module import Block, Module, Op, Value
from flagprism_torch.ir.text import symbol

_SAME = frozenset(
    {
        "tt.splat",
        "tt.unsplat",
        "tt.broadcast",
        "tt.expand_dims",
        "tt.reshape",
        "tt.trans",
        "tt.join",
        "tt.cat",
        "tt.split",
        "tt.gather",
    }
)


class Origins:
    """Answers questions about the pointers among the SSA values of a module."""

    def __init__(self, module: Module) -> None:
        self._sources: dict[Value, list[Value]] = {}  # block argument -> values it may take
        entry = module.entry
        self._labels = dict(zip(entry.arguments, entry.labels, strict=True))
        calls: dict[str, list[Op]] = {}
        for function in module.functions.values():
            for op in function.walk():
                self._block_arguments(op)
                if op.name == "tt.call":
                    calls.setdefault(symbol(op.head), []).append(op)
            self._branches(function.blocks)
        for function in module.functions.values():
            if function is not entry:
                for k, argument in enumerate(function.arguments):
                    self._add(argument, [op.operands[k] for op in calls.get(function.name, ())])

    def _block_arguments(self, op: Op) -> None:
        if op.name == "scf.for":
            (body,) = op.regions[0]
            for k, argument in enumerate(body.arguments[1:]):
                self._add(argument, [op.operands[3 + k], body.ops[-1].operands[k]])
        elif op.name == "scf.while":
            (before,), (after,) = op.regions
            for k, argument in enumerate(before.arguments):
                self._add(argument, [op.operands[k], after.ops[-1].operands[k]])
            passed = before.ops[-1].operands[1:]
            for argument, value in zip(after.arguments, passed, strict=False):
                self._add(argument, [value])
        else:
            for region in op.regions:
                self._branches(region)

    def _branches(self, region: list[Block]) -> None:
        by_label = {block.label: block for block in region}
        for block in region:
            for label, values in block.ops[-1].successors if block.ops else ():
                for argument, value in zip(by_label[label].arguments, values, strict=True):
                    self._add(argument, [value])

    def _add(self, argument: Value, values: list[Value]) -> None:
        self._sources.setdefault(argument, []).extend(values)

    def of(self, value: Value) -> frozenset[str | None]:
        """Python names of the arguments; None among them: also from somewhere else (memory, an
        integer, or not traceable)."""
        return frozenset(
            None if one is None else self._labels[one] for one in self._arguments(value)
        )

    def arguments(self, value: Value) -> tuple[Value, ...]:
        """The arguments of the kernel, in their order; none if it may come from somewhere else."""
        found = self._arguments(value)
        return () if None in found else tuple(one for one in self._labels if one in found)

    def _arguments(self, value: Value) -> set[Value | None]:
        found: set[Value | None] = set()
        self._follow(value, found, set())
        return found

    def behind(self, value: Value, last: Collection[str] = ()) -> list[Op]:
        """The operations that a value depends on, in program order, through regions and calls; not
        those behind an operation whose name is in `last`."""
        found: dict[Op, None] = {}
        waiting, seen = [value], {value}
        while waiting:
            one = waiting.pop()
            sources = list(self._sources.get(one, ()))
            if one.op is not None and one.op not in found:
                found[one.op] = None
                sources += () if one.op.name in last else one.op.operands
                for region in one.op.regions:
                    for block in region:
                        if block.ops:
                            sources += block.ops[-1].operands
            waiting += [source for source in sources if source not in seen]
            seen.update(sources)
        return sorted(found, key=lambda op: op.line)

    def same_type(self, value: Value) -> bool:
        """Whether the pointer keeps its argument's element type, so that it is aligned to it."""
        seen: set[Value] = set()
        return None not in self.of(value) and self._follow(value, set(), seen)

    def _follow_all(self, values: list[Value], found: set[Value | None], seen: set[Value]) -> bool:
        """Follows every value, also after one whose type changed."""
        kept = [self._follow(value, found, seen) for value in values]
        return all(kept)

    def _follow(self, value: Value, found: set[Value | None], seen: set[Value]) -> bool:
        if value in seen:
            return True
        seen.add(value)
        if value in self._labels:
            found.add(value)
            return True
        if value in self._sources:
            return self._follow_all(self._sources[value], found, seen)
        op = value.op
        if op is None:
            found.add(None)
            return False
        if op.name == "tt.addptr":
            return self._follow(op.operands[0], found, seen)
        if op.name in ("tt.bitcast", "arith.bitcast"):
            self._follow(op.operands[0], found, seen)
            return False
        if op.name == "arith.select":
            return self._follow_all(op.operands[1:], found, seen)
        if op.name in _SAME:
            sources = op.operands[:1] if op.name == "tt.gather" else op.operands
            return self._follow_all(sources, found, seen)
        if op.name in ("scf.if", "scf.for", "scf.while"):
            k = value.index
            ends = [region[0].ops[-1].operands for region in op.regions]
            sources = {
                "scf.if": lambda: [end[k] for end in ends],
                "scf.for": lambda: [ends[0][k], op.operands[3 + k]],
                "scf.while": lambda: [ends[0][1 + k]],
            }[op.name]()
            return self._follow_all(sources, found, seen)
        found.add(None)
        return False
