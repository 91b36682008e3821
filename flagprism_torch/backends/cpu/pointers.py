"""Which kernel arguments a pointer may be derived from, found in the text once per kernel."""

from __future__ import annotations

from .parse import SYMBOL, Module, Op, Region

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


def callee(call: Op) -> str:
    """The function name of a tt.call."""
    found = SYMBOL.search(call.head)
    assert found is not None
    return found.group(1) or found.group(2)


class Origins:
    """Answers `of(name)` and `aligned(name)` for the SSA values of a module."""

    def __init__(self, module: Module) -> None:
        self._makers: dict[str, Op] = {}
        self._sources: dict[str, list[str]] = {}  # block argument -> values it may take
        self._labels: dict[str, str] = {}  # entry argument -> Python name
        entry = module.entry
        calls: dict[str, list[Op]] = {}
        for function in module.functions.values():
            for op in function.body.walk():
                for name in op.results:
                    self._makers[name] = op
                self._block_arguments(op)
                if op.name == "tt.call":
                    calls.setdefault(callee(op), []).append(op)
            self._branches(function.body)
        for name, label in zip(entry.body.args, entry.arg_names, strict=True):
            self._labels[name] = label
        for function in module.functions.values():
            if function is entry:
                continue
            for k, name in enumerate(function.body.args):
                passed = [op.operands[k] for op in calls.get(function.name, ())]
                self._sources.setdefault(name, []).extend(passed)

    def _block_arguments(self, op: Op) -> None:
        if op.name == "scf.for":
            body = op.regions[0]
            yielded = body.blocks[0].ops[-1].operands
            for k, name in enumerate(body.args[1:]):
                self._add(name, [op.operands[3 + k], yielded[k]])
        elif op.name == "scf.while":
            before, after = op.regions
            yielded = after.blocks[0].ops[-1].operands
            for k, name in enumerate(before.args):
                self._add(name, [op.operands[k], yielded[k]])
            passed = before.blocks[0].ops[-1].operands[1:]
            for name, value in zip(after.args, passed, strict=False):
                self._add(name, [value])
        else:
            for region in op.regions:
                self._branches(region)

    def _branches(self, region: Region) -> None:
        by_label = {block.label: block for block in region.blocks}
        for block in region.blocks:
            for label, values in block.targets:
                for name, value in zip(by_label[label].args, values, strict=True):
                    self._add(name, [value])

    def _add(self, name: str, values: list[str]) -> None:
        self._sources.setdefault(name, []).extend(values)

    def of(self, name: str) -> frozenset[str | None]:
        """Python names of the arguments; None among them: also from somewhere else (memory, an
        integer, or not traceable)."""
        found: set[str | None] = set()
        self._follow(name, found, set())
        return frozenset(found)

    def same_type(self, name: str) -> bool:
        """Whether the pointer keeps its argument's element type, so that it is aligned to it."""
        seen: set[str] = set()
        return None not in self.of(name) and self._follow(name, set(), seen)

    def _follow_all(self, names: list[str], found: set[str | None], seen: set[str]) -> bool:
        """Follows every name, also after one that changed its type."""
        kept = [self._follow(name, found, seen) for name in names]
        return all(kept)

    def _follow(self, name: str, found: set[str | None], seen: set[str]) -> bool:
        if name in seen:
            return True
        seen.add(name)
        if name in self._labels:
            found.add(self._labels[name])
            return True
        if name in self._sources:
            return self._follow_all(self._sources[name], found, seen)
        op = self._makers.get(name)
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
            k = op.results.index(name)
            ends = [region.blocks[0].ops[-1].operands for region in op.regions]
            sources = {
                "scf.if": lambda: [end[k] for end in ends],
                "scf.for": lambda: [ends[0][k], op.operands[3 + k]],
                "scf.while": lambda: [ends[0][1 + k]],
            }[op.name]()
            return self._follow_all(sources, found, seen)
        found.add(None)
        return False
