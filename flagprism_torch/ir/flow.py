"""Where a value goes: the edges of the SSA graph, regions included, and what lies downstream."""

from __future__ import annotations

from collections.abc import Iterable

from flagprism_torch.ir.module import Op, Value

_TILES = ("tt.reduce", "tt.scan", "tt.map_elementwise")  # their regions see single lanes


def edges(op: Op) -> list[tuple[Value, Value]]:
    """(source, target) pairs of one operation, through regions too."""
    flows: list[tuple[Value, Value]] = []
    if op.name in ("scf.for", "scf.while"):
        skip = 3 if op.name == "scf.for" else 0
        body = op.regions[0][0].arguments[1 if skip else 0 :]
        flows += list(zip(op.operands[skip:], body, strict=False))
    if op.name in ("scf.yield", "scf.condition") and op.block.parent is not None:
        parent = op.block.parent
        passed = op.operands[1:] if op.name == "scf.condition" else op.operands
        if parent.name != "scf.while" or op.name == "scf.condition":
            flows += list(zip(passed, parent.results, strict=False))
        if parent.name == "scf.for":
            flows += list(zip(passed, parent.regions[0][0].arguments[1:], strict=False))
        elif parent.name == "scf.while":
            other = parent.regions[1 if op.name == "scf.condition" else 0][0]
            flows += list(zip(passed, other.arguments, strict=False))
        return flows
    if not op.regions or op.name in _TILES:
        flows += [(source, target) for source in op.operands for target in op.results]
    return flows


class Downstream:
    """Which of some marked values a value can enter, itself included, as bit sets (integers).

    Only edges between values that can hold a float count: a comparison ends the way of a NaN.

    Args:
        marks: (value, bit number).
    """

    def __init__(self, ops: Iterable[Op], marks: Iterable[tuple[Value, int]]) -> None:
        self._bits: dict[int, int] = {}
        for value, bit in marks:
            self._bits[id(value)] = self._bits.get(id(value), 0) | 1 << bit
        listed = list(ops)[::-1]
        ways = [(s, t) for op in listed for s, t in edges(op) if _carries(t) and _carries(s)]
        changed = True
        while changed:
            changed = False
            for source, target in ways:
                bits = self._bits.get(id(target), 0)
                known = self._bits.get(id(source), 0)
                if bits & ~known:
                    self._bits[id(source)] = known | bits
                    changed = True

    def of(self, value: Value) -> int:
        return self._bits.get(id(value), 0)


class Upstream:
    """Which values some marked values can enter, themselves included; edges as in Downstream."""

    def __init__(self, ops: Iterable[Op], marks: Iterable[Value]) -> None:
        self._entered = {id(value) for value in marks}
        ways = [(s, t) for op in ops for s, t in edges(op) if _carries(t) and _carries(s)]
        size = -1
        while size != len(self._entered):
            size = len(self._entered)
            self._entered |= {id(t) for s, t in ways if id(s) in self._entered}

    def of(self, value: Value) -> bool:
        return id(value) in self._entered


def _carries(value: Value) -> bool:
    """Whether a value can hold a float, be it as bits."""
    return not value.type.is_pointer and value.type.element not in ("i1", "index")


def members(bits: int) -> tuple[int, ...]:
    """The numbers of the set bits, ascending."""
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)
