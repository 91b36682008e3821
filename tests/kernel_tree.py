"""A tiny syntax tree of small kernels, and its Triton source.

A kernel works on one tile per program, [C] or [R, C]. Every statement stands in a line of its own
and is one operation, so that a line tells it from all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

INF = float("inf")
ROWS, COLUMNS = 4, 8
FLOATS = ("fp32", "fp64", "fp16", "bf16")
_TYPE = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64",
         "int32": "int32"}  # fmt: skip
_SYMBOL = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_CALL = {"max": "tl.maximum", "min": "tl.minimum", "abs": "tl.abs", "sqrt": "tl.sqrt",
         "exp": "tl.exp", "log": "tl.log", "rsqrt": "tl.rsqrt"}  # fmt: skip
CASTS = {"fp32": ("fp16", "bf16", "fp64"), "fp64": ("fp32", "fp16"), "fp16": ("fp32", "fp64"),
          "bf16": ("fp32",), "int32": ("fp32", "fp16", "fp64")}  # fmt: skip
INEXACT = {"exp", "log", "rsqrt", "sum"}  # of floats: NumPy may round the last bit differently


@dataclass(eq=False)
class Value:
    """`kind`: "tile", "rows" [R], "columns" [C] or "one". `exact`: every bit is known. `moves`:
    whether it changes from iteration to iteration."""

    name: str
    dtype: str
    kind: str = "tile"
    exact: bool = True
    moves: bool = False


@dataclass(eq=False)
class Mask:
    """Lanes of a tile, or of its rows or columns, that are in bounds. `moves`: in a loop only."""

    name: str
    kind: str = "tile"
    moves: bool = False


@dataclass(eq=False)
class Statement:
    """`out` = `op`(`args`). A "where" has (left, right, yes, no) and the comparison `symbol`; a
    "store" its value; "load" and "store" a mask and the number of their pointer."""

    op: str
    args: tuple[Any, ...]
    out: Value | None = None
    mask: Mask | None = None
    other: float | int | None = None
    axis: int = 0
    symbol: str = ""
    pointer: int = -1
    line: int = 0


@dataclass(eq=False)
class Branch:
    """`if condition > 0` (a scalar), or on the parity of the program and the iteration. `joined`:
    (result, value of the first side, of the second)."""

    condition: Value | None
    yes: list[Any]
    no: list[Any]
    joined: tuple[Value, Value, Value] | None = None


@dataclass(eq=False)
class Carried:
    """An accumulator: `start` in every lane, `before` and `after` an iteration, `result`."""

    start: float | int
    before: Value
    after: Value
    result: Value


@dataclass(eq=False)
class Loop:
    carried: list[Carried]
    body: list[Any]


@dataclass(repr=False)
class Program:
    """`inputs`, `outputs`: (dtype, kind) per pointer."""

    rank: int
    body: list[Any] = field(default_factory=list)
    inputs: list[tuple[str, str]] = field(default_factory=list)
    outputs: list[tuple[str, str]] = field(default_factory=list)

    def __repr__(self) -> str:
        return "\n" + source(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # what hypothesis shows
        printer.text(repr(self))

    def shape(self, kind: str) -> tuple[int, ...]:
        tile = (COLUMNS,) if self.rank == 1 else (ROWS, COLUMNS)
        return {"tile": tile, "rows": tile[:1], "columns": tile[-1:], "one": ()}[kind]

    def lane_kinds(self) -> tuple[str, ...]:
        return ("tile", "one") if self.rank == 1 else ("tile", "rows", "columns", "one")

    @property
    def has_infinities(self) -> bool:
        """Whether the program has infinities of its own (sentinels)."""
        starts = [c.start for n in walk(self.body) if isinstance(n, Loop) for c in n.carried]
        given = [x for s in statements(self.body) for x in (*s.args, s.other)]
        return any(isinstance(x, float) and abs(x) == INF for x in starts + given)


def walk(block: list[Any]) -> Iterator[Any]:
    for node in block:
        yield node
        for part in parts(node):
            yield from walk(part)


def parts(node: Any) -> list[list[Any]]:
    """The blocks inside of a node."""
    if isinstance(node, Loop):
        return [node.body]
    return [node.yes, node.no] if isinstance(node, Branch) else []


def statements(block: list[Any]) -> Iterator[Statement]:
    return (node for node in walk(block) if isinstance(node, Statement))


def repeated_by_chance(program: Program) -> set[Statement]:
    """Statements in a branch inside of a loop."""
    loops = [node.body for node in walk(program.body) if isinstance(node, Loop)]
    branches = [node for body in loops for node in walk(body) if isinstance(node, Branch)]
    return {one for node in branches for part in parts(node) for one in statements(part)}


def inside(program: Program) -> set[Statement]:
    """Statements in a loop or a branch."""
    blocks = [part for node in program.body for part in parts(node)]
    return {one for block in blocks for one in statements(block)}


def names(arguments: tuple[Any, ...]) -> list[Value]:
    return [a for a in arguments if isinstance(a, Value)]


def prune(program: Program) -> None:
    """Drop what no store and no branch depends on; Triton would."""
    used: set[Value] = set()
    while True:
        before = len(used)
        for node in walk(program.body):
            if isinstance(node, Statement):
                if node.op == "store" or node.out in used:
                    used |= set(names(node.args))
            elif isinstance(node, Branch):
                used |= {node.condition} if node.condition is not None else set()
                if node.joined is not None and node.joined[0] in used:
                    used |= set(node.joined[1:])
            else:
                for c in node.carried:
                    if {c.result, c.before} & used:
                        used.add(c.after)
        if len(used) == before:
            break

    def kept(block: list[Any]) -> list[Any]:
        result = []
        for node in block:
            if isinstance(node, Statement):
                if node.op != "store" and node.out not in used:
                    continue
            elif isinstance(node, Branch):
                node.yes, node.no = kept(node.yes), kept(node.no)
                if node.joined is not None and node.joined[0] not in used:
                    node.joined = None
            else:
                node.carried = [c for c in node.carried if c.after in used]
                node.body = kept(node.body)
                if not node.body:
                    continue
            result.append(node)
        return result

    program.body = kept(program.body)


# -- source


def source(program: Program) -> str:
    """The module with the kernel; notes the line of every statement."""
    pointers = [f"x{i}" for i in range(len(program.inputs))]
    pointers += [f"o{i}" for i in range(len(program.outputs))]
    integers = ["n", "w", "h", "total", "trips"]
    lines = [
        "import triton",
        "import triton.language as tl",
        "",
        "",
        f"@triton.jit(do_not_specialize={integers})",
        f"def kernel({', '.join(pointers + integers)}, R: tl.constexpr, C: tl.constexpr):",
        "    p = tl.program_id(0)",
        "    c = tl.arange(0, C)",
    ]
    if program.rank == 1:
        lines += ["    at = c", "    m0 = c < n", "    m1 = c < w"]
    else:
        lines += [
            "    r = tl.arange(0, R)",
            "    at = r[:, None] * C + c[None, :]",
            "    mr = r < h",
            "    mc = c < n",
            "    m0 = mr[:, None] & mc[None, :]",
            "    m1 = at < w",
        ]
    _print(program, program.body, "    ", False, lines)
    return "\n".join(lines) + "\n"


def _print(program: Program, block: list[Any], indent: str, loop: bool, lines: list[str]) -> None:
    for node in block:
        if isinstance(node, Statement):
            lines.append(indent + _text(program, node, loop))
            node.line = len(lines)
        elif isinstance(node, Branch):
            parity = "(p + k) % 2 == 0" if loop else "p % 2 == 0"
            lines.append(
                f"{indent}if {f'{node.condition.name} > 0' if node.condition else parity}:"
            )
            _print(program, node.yes, indent + "    ", loop, lines)
            if node.no:
                lines.append(f"{indent}else:")
                _print(program, node.no, indent + "    ", loop, lines)
        else:
            tile = "[C]" if program.rank == 1 else "[R, C]"
            for one in node.carried:
                dtype = _TYPE[one.before.dtype]
                start = _operand(program, one.start, "")
                lines.append(f"{indent}{one.before.name} = tl.full({tile}, {start}, tl.{dtype})")
            lines.append(f"{indent}for k in range(0, trips):")
            if any(s.mask is not None and s.mask.moves for s in statements(node.body)):
                lines.append(
                    f"{indent}    mk = k * {'C' if program.rank == 1 else 'R * C'} + at < total"
                )
            _print(program, node.body, indent + "    ", True, lines)


def _operand(program: Program, one: Any, kind: str) -> str:
    if not isinstance(one, Value):
        return f'float("{one}")' if isinstance(one, float) and abs(one) == INF else str(one)
    if kind == "tile" and one.kind in ("rows", "columns"):
        return f"{one.name}[{':, None' if one.kind == 'rows' else 'None, :'}]"
    return one.name


def _text(program: Program, one: Statement, loop: bool) -> str:
    size = {"tile": "C" if program.rank == 1 else "R * C", "rows": "R", "columns": "C"}
    kind = one.out.kind if one.out is not None else one.args[0].kind
    offset = "p * trips + k" if loop else "p"
    if kind != "one":
        lanes = {"tile": "at", "rows": "r", "columns": "c"}[kind]
        offset = f"({offset}) * ({size[kind]}) + {lanes}"
    mask = "" if one.mask is None else f", mask={one.mask.name}"
    if one.op == "load":
        other = "" if one.other is None else f", other={_operand(program, one.other, '')}"
        right = f"tl.load(x{one.pointer} + {offset}{mask}{other})"
    elif one.op == "store":
        return f"tl.store(o{one.pointer} + {offset}, {one.args[0].name}{mask})"
    elif one.op == "cast":
        right = f"{one.args[0].name}.to(tl.{_TYPE[one.out.dtype]})" if one.out else ""
    elif one.op in ("sum", "top"):
        right = f"tl.{'sum' if one.op == 'sum' else 'max'}({one.args[0].name}, {one.axis})"
    else:
        args = [_operand(program, a, kind) for a in one.args]
        if one.op == "where":
            right = f"tl.where({args[0]} {one.symbol} {args[1]}, {args[2]}, {args[3]})"
        elif one.op in _SYMBOL:
            right = f"{args[0]} {_SYMBOL[one.op]} {args[1]}"
        else:
            right = f"{_CALL[one.op]}({', '.join(args)})"
    assert one.out is not None
    return f"{one.out.name} = {right}"
