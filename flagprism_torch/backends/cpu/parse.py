"""Reads TTIR text (the pretty form that `str(module)` prints) into ops, regions and functions.

The text is the stable interface: Triton's Python bindings of operations differ between 3.6 and 3.9,
the printed form of the ops below does not (attributes are searched by name, not by position).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .types import Type

_VALUE = re.compile(r"%[A-Za-z0-9_$.\-]+(?:#\d+)?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
SYMBOL = re.compile(r'@(?:"([^"]+)"|([\w$.]+))')  # quoted where the name has other characters
_TAIL_LOC = re.compile(r" loc\((#loc\d*)\)$")
_LOC_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.*)>$")
_POINTER = re.compile(r"!tt\.ptr<(.*?)(?:, \d+)?>$")
_FOR = re.compile(
    r"\s*(?:unsigned )?(%[\w$.\-]+) = (\S+) to (\S+) step (\S+)\s*"
    r"(?:iter_args\((.*?)\) -> \((.*)\))?\s*(?:: (\w+))?\s*\{$"
)
_IF = re.compile(r"\s*(\S+)\s*(?:-> \((.*)\))?\s*\{$")
_WHILE = re.compile(r"\s*(?:\((.*?)\))?\s*: \((.*)\) -> (.*) \{$")
_BRANCH = re.compile(r"\^(\w+)(?:\((.*?)\))?")
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


@dataclass
class Op:
    """One operation. `head` is its text between the name and the type signature `sig`;
    `loc` is the raw text of its location."""

    name: str
    results: list[str]
    operands: list[str]
    head: str
    sig: str = ""
    regions: list[Region] = field(default_factory=list)
    in_types: list[Type] = field(default_factory=list)
    out_types: list[Type] = field(default_factory=list)
    loc: str = ""

    def integer(self, name: str, default: int | None = None) -> int:
        """Integer attribute `name = 3 : i32`."""
        found = re.search(rf"\b{name} = (-?\d+)", self.head)
        if found is None:
            if default is None:
                raise ValueError(f"{self.name} has no attribute {name}: {self.head}")
            return default
        return int(found.group(1))

    def string(self) -> str:
        """The first string literal, "" if there is none."""
        found = _STRING.search(self.head)
        return found.group(0)[1:-1] if found else ""


@dataclass
class Block:
    """A basic block. `targets` are (label, argument names) of its cf terminator, if it has one."""

    label: str
    args: list[str] = field(default_factory=list)
    arg_types: list[Type] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    targets: list[tuple[str, list[str]]] = field(default_factory=list)


@dataclass
class Region:
    """A region: usually one block; several after an early `return`."""

    blocks: list[Block]

    @property
    def args(self) -> list[str]:
        return self.blocks[0].args

    @property
    def ops(self) -> Iterator[Op]:
        """The ops of all its blocks, nested regions not included."""
        for block in self.blocks:
            yield from block.ops

    def walk(self) -> Iterator[Op]:
        """All ops, outer before inner."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()


@dataclass
class Function:
    """A tt.func. `arg_names` are the Python names where the text has them."""

    name: str
    public: bool
    body: Region
    arg_names: list[str]


@dataclass
class Module:
    """`locations`: alias (#loc12) -> raw text inside loc(...)."""

    functions: dict[str, Function]
    locations: dict[str, str]

    @property
    def entry(self) -> Function:
        return next(f for f in self.functions.values() if f.public)


def parse_module(text: str) -> Module:
    """Parse the text of one TTIR module. Raises ValueError on text it cannot read.

    MLIR prints the same name for different values of sibling regions; here every name is unique.
    """
    module = _Parser(text).module()
    seen: set[str] = set()
    for function in module.functions.values():
        _make_unique(function.body, {}, seen)
    return module


def _make_unique(region: Region, outer: dict[str, str], seen: set[str]) -> None:
    """Rename what `region` defines and `seen` already holds; `outer` are renamings in scope."""
    names = dict(outer)

    def define(name: str) -> str:
        if name in seen:
            names[name] = f"{name}~{len(seen)}"
        seen.add(names.get(name, name))
        return names.get(name, name)

    for block in region.blocks:
        block.args = [define(name) for name in block.args]
        for op in block.ops:
            op.results = [define(name) for name in op.results]
    for block in region.blocks:
        block.targets = [(to, [names.get(n, n) for n in passed]) for to, passed in block.targets]
        for op in block.ops:
            op.operands = [names.get(name, name) for name in op.operands]
            for inner in op.regions:
                _make_unique(inner, names, seen)


def parse_type(text: str) -> Type:
    text = text.strip()
    shape: tuple[int, ...] = ()
    elem = text
    found = _TENSOR.match(text)
    if found:
        shape = tuple(int(n) for n in found.group(1).split("x") if n)
        elem = split_top(found.group(2), ", ")[0]
    pointer = _POINTER.match(elem)
    if pointer:
        elem = f"ptr<{parse_type(pointer.group(1)).elem}>"
    return Type(shape, elem)


def parse_types(text: str) -> list[Type]:
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return [parse_type(part) for part in split_top(text, ", ") if part.strip()]


def split_top(text: str, sep: str) -> list[str]:
    """Split at `sep` outside of brackets and string literals."""
    if sep not in text:
        return [text]
    parts: list[str] = []
    depth, start, i = 0, 0, 0
    while i < len(text):
        c = text[i]
        if c == '"':
            found = _STRING.match(text, i)
            i = found.end() if found else i + 1
            continue
        if depth == 0 and text.startswith(sep, i):
            parts.append(text[start:i])
            i += len(sep)
            start = i
            continue
        if c in "<({[":
            depth += 1
        elif c in ")}]" or (c == ">" and text[i - 1] != "-"):
            depth -= 1
        i += 1
    parts.append(text[start:])
    return parts


def split_loc(text: str) -> tuple[str, str]:
    """(`text` without its ` loc(...)` parts, what the last of them holds, "" if none)."""
    if " loc(" not in text:
        return text, ""
    found = _TAIL_LOC.search(text)
    last = ""
    if found:
        text, last = text[: found.start()], found.group(1)
    kept, i, start = [], 0, 0
    while " loc(" in text[i:]:
        i = text.index(" loc(", i)
        if text.count('"', start, i) % 2:  # inside a string literal
            i += 1
            continue
        kept.append(text[start:i])
        j, depth = i + 5, 1
        while depth:
            if text[j] == '"':
                quoted = _STRING.match(text, j)
                j = quoted.end() if quoted else j + 1
                continue
            depth += (text[j] == "(") - (text[j] == ")")
            j += 1
        inner = text[i + 5 : j - 1]
        if not found:
            last = inner
        i = start = j
    kept.append(text[start:])
    return "".join(kept), last


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines: list[str] = []
        self.locations: dict[str, str] = {}
        for line in text.split("\n"):
            alias = _LOC_ALIAS.match(line) if line.startswith("#loc") else None
            if alias:
                self.locations[alias.group(1)] = alias.group(2)
            elif line.strip() and not line.startswith("#"):
                self.lines.append(line.strip())
        self.i = 0

    def module(self) -> Module:
        functions: dict[str, Function] = {}
        while self.i < len(self.lines):
            if self.lines[self.i].startswith("tt.func"):
                function = self.function()
                functions[function.name] = function
            else:
                self.i += 1
        return Module(functions, self.locations)

    def function(self) -> Function:
        line = self.lines[self.i]
        found = SYMBOL.search(line)
        if found is None or not line.endswith("{"):
            raise ValueError(f"cannot read the TTIR function {line!r}")
        names, types, labels = [], [], []
        for part in split_top(self.parenthesised(line[found.end() :]), ", "):
            if part.strip():
                name, kind, loc = self.block_argument(part)
                names.append(name)
                types.append(kind)
                label = re.match(r'"((?:[^"\\]|\\.)*)"', self.locations.get(loc, loc))
                plain = label.group(1) if label else name.lstrip("%")
                # members of a tuple have one Python name; then the SSA names tell them apart
                labels.append(name.lstrip("%") if plain in labels else plain)
        self.i += 1
        body = self.region(names, types)
        self.i += 1
        public = "private" not in line[: found.start()]
        return Function(found.group(1) or found.group(2), public, body, labels)

    @staticmethod
    def parenthesised(text: str) -> str:
        """What stands inside the first pair of parentheses of `text`."""
        start = text.index("(") + 1
        depth, j = 1, start
        while depth:
            depth += (text[j] == "(") - (text[j] == ")")
            j += 1
        return text[start : j - 1]

    @staticmethod
    def block_argument(text: str) -> tuple[str, Type, str]:
        code, loc = split_loc(text)
        name, kind = code.split(":", 1)
        return name.strip(), parse_type(re.sub(r"\s*\{.*\}\s*$", "", kind.strip())), loc

    def region(self, args: list[str], types: list[Type]) -> Region:
        """Blocks up to the closing brace, which is left as the current line."""
        block = Block("entry", list(args), list(types))
        blocks = [block]
        while not self.lines[self.i].startswith("}"):
            line = self.lines[self.i]
            if not line.startswith("^"):
                block.ops.append(self.op())
                continue
            self.i += 1
            label = re.match(r"\^(\w+)", line)
            assert label is not None
            if block.ops or len(blocks) > 1:
                block = Block(label.group(1))
                blocks.append(block)
            block.label = label.group(1)
            line = line.split("  //")[0]
            inner = line[line.index("(") + 1 : line.rindex(")")] if "(" in line else ""
            for part in split_top(inner, ", "):
                if part.strip():
                    name, kind, _ = self.block_argument(part)
                    block.args.append(name)
                    block.arg_types.append(kind)
        for block in blocks:
            last = block.ops[-1] if block.ops else None
            if last is not None and last.name in ("cf.br", "cf.cond_br"):
                found = _BRANCH.findall(f"{last.head} : {last.sig}")
                block.targets = [(to, _VALUE.findall(passed)) for to, passed in found]
        return Region(blocks)

    def close(self, op: Op) -> str:
        """Consume the closing line of a region op; it carries the op's location."""
        line, op.loc = split_loc(self.lines[self.i])
        self.i += 1
        return line

    def op(self) -> Op:
        line, loc = split_loc(self.lines[self.i])
        results: list[str] = []
        if line.startswith("%"):
            left, line = line.split(" = ", 1)
            for part in left.split(","):
                base, _, count = part.strip().partition(":")
                results += [f"{base}#{k}" for k in range(int(count))] if count else [base]
        found = re.match(r'"?([\w.]+)"?', line)
        if found is None:
            raise ValueError(f"cannot read the TTIR line {line!r}")
        op = Op(found.group(1), results, [], "", loc=loc)
        rest = line[found.end() :]
        self.i += 1
        if not line.endswith("{"):
            return _with_signature(op, rest)
        reader = {"scf.for": self.scf_for, "scf.if": self.scf_if, "scf.while": self.scf_while}
        if op.name in reader:
            reader[op.name](op, rest)
            return op
        # generic op with regions: "tt.reduce"(...) <{...}> ({ ... }) : types
        op.regions.append(self.region([], []))
        tail = self.close(op)
        if tail.startswith("})"):
            return _with_signature(op, rest[: rest.rindex("({")] + tail[2:])
        return _with_signature(op, rest[:-1] + tail[1:])

    def scf_for(self, op: Op, rest: str) -> None:
        found = _FOR.match(rest)
        if found is None:
            raise ValueError(f"cannot read scf.for {rest!r}")
        counter, low, high, step, carried, types, kind = found.groups()
        args, arg_types = [counter], [parse_type(kind or "i32")]
        op.operands = [low, high, step]
        if carried:
            op.out_types = parse_types(types)
            for part in split_top(carried, ", "):
                name, value = part.split(" = ")
                args.append(name.strip())
                op.operands.append(value.strip())
        op.head = "unsigned" if rest.lstrip().startswith("unsigned ") else ""
        op.in_types = [arg_types[0]] * 3 + op.out_types
        op.regions.append(self.region(args, arg_types + op.out_types))
        self.close(op)

    def scf_if(self, op: Op, rest: str) -> None:
        found = _IF.match(rest)
        if found is None:
            raise ValueError(f"cannot read scf.if {rest!r}")
        op.operands = [found.group(1)]
        op.out_types = parse_types(found.group(2)) if found.group(2) else []
        op.regions.append(self.region([], []))
        if self.lines[self.i].startswith("} else {"):
            self.i += 1
            op.regions.append(self.region([], []))
        self.close(op)

    def scf_while(self, op: Op, rest: str) -> None:
        found = _WHILE.match(rest)
        if found is None:
            raise ValueError(f"cannot read scf.while {rest!r}")
        op.in_types = parse_types(found.group(2))
        args = []
        for part in split_top(found.group(1) or "", ", "):
            if part.strip():
                name, value = part.split(" = ")
                args.append(name.strip())
                op.operands.append(value.strip())
        op.out_types = parse_types(found.group(3))
        op.regions.append(self.region(args, op.in_types))
        self.i += 1  # "} do {"
        op.regions.append(self.region([], []))
        self.close(op)


def _with_signature(op: Op, rest: str) -> Op:
    """Fill operands and types of an op from its text after the name."""
    parts = split_top(rest, " : ")
    op.sig = parts[-1].strip() if len(parts) > 1 else ""
    op.head = " : ".join(parts[:-1]) if len(parts) > 1 else rest
    bare = _STRING.sub('""', op.head)
    op.operands = _VALUE.findall(bare)
    if not op.sig:
        return op
    sides = split_top(op.sig, " -> ")
    if len(sides) == 1:
        sides = split_top(op.sig, " to ")
    if len(sides) == 2:
        op.in_types = [t for part in split_top(sides[0], " * ") for t in parse_types(part)]
        op.out_types = parse_types(sides[1])
        return op
    op.in_types = parse_types(op.sig)
    if not op.in_types:
        return op
    first, last = op.in_types[0], op.in_types[-1]
    if op.name == "tt.addptr":
        op.out_types = [first]
    elif op.name == "tt.load":
        op.out_types = [Type(first.shape, first.pointee)]
    elif op.name in ("arith.cmpi", "arith.cmpf"):
        op.out_types = [Type(first.shape, "i1")]
    else:
        op.out_types = [last]
    return op
