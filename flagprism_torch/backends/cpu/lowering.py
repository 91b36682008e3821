"""From ops to closures: the table of op rules, and the walk over regions.

A rule is a function `(op, lowering) -> step`, registered under the op's name; a step is a closure
over a Frame. Everything that can be decided from the text is decided once, here, not at launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...errors import UnsupportedOpError
from ...ir.module import Block, Module, Op, Value
from ...ir.pointers import Origins
from .frame import Frame
from .scalars import BINARY, BINARY_I1, UNARY, Function
from .statements import statement_of
from .types import ROUNDED, Array, round_to, supported

TERMINATORS = frozenset(
    {
        "scf.yield",
        "scf.condition",
        "tt.return",
        "tt.reduce.return",
        "tt.scan.return",
        "tt.map_elementwise.return",
        "ub.unreachable",
    }
)

Step = Callable[[Frame], None]
Rule = Callable[[Op, "Lowering"], Step]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the ops `names`."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


@dataclass(frozen=True)
class Body:
    """An executable region. `captured`: values it reads from outside; `branches`: whether it has
    control flow of its own, so that its values must be one scalar per program."""

    run: Callable[[Frame, Sequence[Array]], list[Array]]
    captured: frozenset[Value]
    branches: bool


class Lowering:
    """Builds the steps of one kernel."""

    def __init__(self, module: Module, kernel: str) -> None:
        self.module = module
        self.kernel = kernel
        self.origins = Origins(module)
        self._functions: dict[str, Body] = {}

    def statement(self, op: Op) -> str:
        return statement_of(self.module, op)

    def unsupported(self, op: Op, detail: str = "") -> UnsupportedOpError:
        return UnsupportedOpError(
            f"{op.name} ({detail})" if detail else op.name, self.statement(op)
        )

    def function(self, name: str) -> Body:
        """The body of a tt.func, lowered once."""
        if name not in self._functions:
            self._functions[name] = self.region(self.module.functions[name].blocks)
        return self._functions[name]

    def region(self, blocks: list[Block]) -> Body:
        from .control import graph  # the only rule that needs several blocks

        return graph(blocks, self) if len(blocks) > 1 else self.block(blocks[0])

    def block(self, block: Block) -> Body:
        """A block whose terminator's operands are its results (a cf terminator has none)."""
        steps: list[Step] = []
        results: list[Value] = []
        defined = set(block.arguments)
        used: set[Value] = set()
        branches = False
        for op in block.ops:
            used.update(read_by(op))
            if op.name in TERMINATORS:
                results = op.operands
            elif op.name not in ("cf.br", "cf.cond_br"):
                steps.append(self.step(op))
                used |= self.captured(op)
                branches |= op.name.startswith("scf.")
            defined.update(op.results)
        args = list(block.arguments)

        def run(frame: Frame, values: Sequence[Array]) -> list[Array]:
            for arg, value in zip(args, values, strict=True):
                frame[arg] = value
            for step in steps:
                step(frame)
            return [frame[result] for result in results]

        return Body(run, frozenset(used - defined), branches)

    def captured(self, op: Op) -> set[Value]:
        """Values that the regions of `op` read from outside."""
        used: set[Value] = set()
        defined: set[Value] = set()
        for region in op.regions:
            for block in region:
                defined.update(block.arguments)
                for inner in block.ops:
                    used.update(read_by(inner))
                    used |= self.captured(inner)
                    defined.update(inner.results)
        return used - defined

    def step(self, op: Op) -> Step:
        for kind in op.operand_types + op.result_types:
            if not supported(kind.element):
                raise self.unsupported(op, f"type {kind.element}")
        found = RULES.get(op.name)
        if found is not None:
            return found(op, self)
        function = binary_function(op)
        if function is not None and len(op.operands) == 2:
            return _binary(op, function)
        if op.name in UNARY and len(op.operands) == 1:
            return _unary(op)
        raise self.unsupported(op)


def read_by(op: Op) -> Iterator[Value]:
    """Operands of an op and the values it passes to other blocks."""
    yield from op.operands
    for _, passed in op.successors:
        yield from passed


def integer(op: Op, name: str) -> int:
    """An integer attribute that the op must have; ValueError without it."""
    found = op.int_attr(name)
    if found is None:
        raise ValueError(f"{op.name} has no attribute {name}: {op.head}")
    return found


def binary_function(op: Op) -> Function | None:
    """The NumPy function of a two-operand elementwise op, None if it is not one."""
    table = BINARY_I1 if op.result_types and op.result_types[0].element == "i1" else BINARY
    return table.get(op.name)


def _binary(op: Op, f: Function) -> Step:
    (a, b), out, elem = op.operands, op.results[0], op.result_types[0].element
    if elem in ROUNDED:

        def rounded(frame: Frame) -> None:
            frame[out] = round_to(f(frame[a], frame[b]), elem)

        return rounded

    def plain(frame: Frame) -> None:
        frame[out] = f(frame[a], frame[b])

    return plain


def _unary(op: Op) -> Step:
    f, a, out, elem = UNARY[op.name], op.operands[0], op.results[0], op.result_types[0].element
    if elem in ROUNDED:

        def rounded(frame: Frame) -> None:
            frame[out] = round_to(f(frame[a]), elem)

        return rounded

    def plain(frame: Frame) -> None:
        frame[out] = f(frame[a])

    return plain
