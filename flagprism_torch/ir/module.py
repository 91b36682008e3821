"""A read-only view of a TTIR module's text: functions, regions, blocks, operations, values.

Why text: the printed form of the Triton dialect is the same in Triton 3.6 to 3.9, while the Python
bindings change names and signatures, cannot read attributes in 3.6 and cannot edit operands at all.
Every operation knows its line, so that a rewriter can insert lines after it. Values are compared by
identity, since MLIR prints the same name for different values of sibling regions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from flagprism_torch.ir.locations import Frame, Locations
from flagprism_torch.ir.text import (
    QUOTED,
    VALUE,
    header_arguments,
    split_location,
    split_top,
    symbol,
)
from flagprism_torch.ir.types import Type, parse_type, parse_types

_FOR = re.compile(
    r"\s*(?:unsigned )?(%[\w$.\-]+) = (\S+) to (\S+) step (\S+)\s*"
    r"(?:iter_args\((.*?)\) -> \((.*)\))?\s*(?:: (\w+))?\s*\{$"
)
_WHILE = re.compile(r"\s*(?:\((.*?)\))?\s*: \((.*?)\) -> (.*) \{$")
# printed as `desc[indices], source`, but their operands are (desc, source, indices)
_SOURCE_LAST = ("tt.descriptor_store", "tt.descriptor_reduce", "tt.experimental_descriptor_store")
_SUCCESSOR = re.compile(r"\^(\w+)(?:\(([^)]*)\))?")


@dataclass(eq=False, repr=False)  # values and operations refer to each other
class Value:
    """An SSA value. `name` as written at its uses; `op` is None for block arguments."""

    name: str
    type: Type
    op: Op | None = None
    block: Block | None = None
    index: int = 0
    uses: list[tuple[Op, int]] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Op:
    """An operation; operands in MLIR's order. `line` is its first text line, `end` its last (equal
    without regions); `head` is the text after the name, before the types, attributes included.
    `successors` are (label, values passed) of a cf terminator, which are no operands here."""

    name: str
    line: int
    block: Block
    end: int = 0
    head: str = ""
    results: list[Value] = field(default_factory=list)
    operands: list[Value] = field(default_factory=list)
    regions: list[list[Block]] = field(default_factory=list)
    frames: tuple[Frame, ...] = ()
    index: int = 0
    successors: list[tuple[str, list[Value]]] = field(default_factory=list)

    @property
    def operand_types(self) -> list[Type]:
        return [value.type for value in self.operands]

    @property
    def result_types(self) -> list[Type]:
        return [value.type for value in self.results]

    def int_attr(self, name: str) -> int | None:
        """An integer attribute such as `axis = 1 : i32`, or None."""
        match = re.search(rf"\b{name} = (-?\d+)", self.head)
        return int(match.group(1)) if match else None

    def str_attr(self, name: str) -> str | None:
        match = re.search(rf'\b{name} = "((?:[^"\\]|\\.)*)"', self.head)
        return match.group(1) if match else None

    def string(self) -> str:
        """The first string literal as printed (a message, inline assembly), "" without one."""
        match = QUOTED.search(self.head)
        return match.group()[1:-1] if match else ""


@dataclass(eq=False, repr=False)
class Block:
    """A basic block; `line` is the line after which its first operation stands."""

    parent: Op | None
    line: int
    label: str = ""
    arguments: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Function:
    """A tt.func. `labels` are the Python names of its arguments, as far as the text has them."""

    name: str
    public: bool
    line: int
    arguments: list[Value]
    blocks: list[Block]
    labels: list[str] = field(default_factory=list)

    def walk(self) -> Iterator[Op]:
        """Every operation, parents before their regions, in program order."""
        return walk(self.blocks)


def walk(blocks: Iterable[Block]) -> Iterator[Op]:
    """Every operation of a region, parents before their regions, in program order."""
    for block in blocks:
        for op in block.ops:
            yield op
            for region in op.regions:
                yield from walk(region)


class Module:
    """Parsed text of a module. `lines` are the original lines, `functions` by name."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.locations = Locations([line for line in self.lines if line.startswith("#loc")])
        self.functions: dict[str, Function] = {}
        self._at = 0
        self._scopes: list[dict[str, Value]] = [{}]
        self._stripped = [
            ("", None) if line.startswith("#loc") else split_location(line) for line in self.lines
        ]
        while self._at < len(self.lines):
            if self._text().startswith("tt.func"):
                self._function()
            else:
                self._at += 1

    @property
    def entry(self) -> Function:
        """The kernel: the only public function."""
        public = [f for f in self.functions.values() if f.public]
        if len(public) != 1:
            raise ValueError(f"expected one public function, found {len(public)}")
        return public[0]

    def _text(self) -> str:
        return self._stripped[self._at][0]

    def _frames(self) -> tuple[Frame, ...]:
        location = self._stripped[self._at][1]
        return self.locations.frames(location) if location else ()

    def _function(self) -> None:
        text, header = self._text(), self.lines[self._at]
        start, end = header_arguments(header)
        arguments: list[Value] = []
        labels: list[str] = []
        for part in split_top(header[start:end], ", "):
            if part.strip():
                code, location = split_location(part)
                argument, kind = code.split(":", 1)
                kind = re.sub(r"\s*\{.*\}\s*$", "", kind.strip())
                value = Value(argument.strip(), parse_type(kind), index=len(arguments))
                arguments.append(value)
                label = self.locations.name(location) if location else None
                # members of a tuple have one Python name; then the SSA names tell them apart
                labels.append(label if label and label not in labels else value.name[1:])
        scope = {value.name: value for value in arguments}
        line = self._at
        if not text.endswith("{"):  # a declaration
            self._at += 1
            return
        self._at += 1
        self._scopes.append(scope)
        blocks = self._region(None, line)
        self._scopes.pop()
        self._at += 1
        blocks[0].arguments = arguments
        for value in arguments:
            value.block = blocks[0]
        name, public = symbol(header), "private" not in header.split("@")[0]
        self.functions[name] = Function(name, public, line, arguments, blocks, labels)

    def _region(self, parent: Op | None, line: int, arguments: list[Value] = ()) -> list[Block]:  # type: ignore[assignment]
        block = Block(parent, line, "entry", list(arguments))
        blocks = [block]
        scope = {value.name: value for value in arguments}
        for value in arguments:
            value.block = block
        self._scopes.append(scope)
        while not self._text().startswith("}"):
            text = self._text()
            if not text:
                self._at += 1
                continue
            if text.startswith("^"):
                label = re.match(r"\^(\w+)", text)
                assert label
                if block.ops or block.arguments:
                    block = Block(parent, self._at)
                    blocks.append(block)
                block.label, block.line = label.group(1), self._at
                text = text.split("  //")[0]
                inner = text[text.index("(") + 1 : text.rindex(")")] if "(" in text else ""
                for part in split_top(inner, ", "):
                    if part.strip():
                        name, kind = part.split(":", 1)
                        value = Value(name.strip(), parse_type(kind), None, block)
                        value.index = len(block.arguments)
                        block.arguments.append(value)
                        scope[value.name] = value
                self._at += 1
                continue
            op = self._op(block)
            op.index = len(block.ops)
            block.ops.append(op)
        self._scopes.pop()
        return blocks

    def _lookup(self, name: str) -> Value:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        raise ValueError(f"use of an undefined value {name}")

    def _use(self, op: Op, name: str) -> None:
        value = self._lookup(name.strip())
        value.uses.append((op, len(op.operands)))
        op.operands.append(value)

    def _define(self, op: Op, names: list[str], types: list[Type]) -> None:
        if len(types) < len(names):
            raise ValueError(
                f"{op.name} at line {op.line + 1}: {len(names)} results, types {types}"
            )
        for index, name in enumerate(names):
            value = Value(name, types[index], op, op.block, index)
            op.results.append(value)
            self._scopes[-1][name] = value
            if name.endswith("#0"):
                self._scopes[-1][name[:-2]] = value

    def _op(self, block: Block) -> Op:
        text = self._text()
        names: list[str] = []
        if text.startswith("%"):
            left, text = text.split(" = ", 1)
            for part in left.split(","):
                base, _, count = part.strip().partition(":")
                names += [f"{base}#{k}" for k in range(int(count))] if count else [base]
        match = re.match(r'"?([\w.]+)"?', text)
        assert match, text
        op = Op(match.group(1), self._at, block, frames=self._frames())
        rest = text[match.end() :]
        if not text.endswith("{"):
            op.end = self._at
            self._at += 1
            self._finish(op, names, rest)
            return op
        reader = getattr(self, "_" + op.name.replace(".", "_"), self._generic)
        reader(op, names, rest)
        return op

    def _close(self, op: Op) -> str:
        """Consume the line that closes `op`; returns its text."""
        op.end, text = self._at, self._text()
        op.frames = self._frames() or op.frames
        self._at += 1
        return text

    def _scf_for(self, op: Op, names: list[str], rest: str) -> None:
        match = _FOR.match(rest)
        if not match:
            raise ValueError(f"cannot read scf.for: {rest}")
        induction, low, high, step, carried, types, kind = match.groups()
        for name in (low, high, step):
            self._use(op, name)
        arguments = [Value(induction, parse_type(kind or "i32"))]
        result_types = parse_types(types) if types else []
        if carried:
            for part, result in zip(split_top(carried, ", "), result_types, strict=True):
                name, initial = part.split(" = ")
                self._use(op, initial)
                arguments.append(Value(name.strip(), result, index=len(arguments)))
        op.head = rest
        self._at += 1
        op.regions.append(self._region(op, op.line, arguments))
        op.head += " " + self._close(op)
        self._define(op, names, result_types)

    def _scf_if(self, op: Op, names: list[str], rest: str) -> None:
        match = re.match(r"\s*(\S+)\s*(?:-> \((.*)\))?\s*\{$", rest)
        assert match, rest
        self._use(op, match.group(1))
        op.head = rest
        self._at += 1
        op.regions.append(self._region(op, op.line))
        if self._text().startswith("} else {"):
            line = self._at
            self._at += 1
            op.regions.append(self._region(op, line))
        self._close(op)
        self._define(op, names, parse_types(match.group(2)) if match.group(2) else [])

    def _scf_while(self, op: Op, names: list[str], rest: str) -> None:
        match = _WHILE.match(rest)
        assert match, rest
        arguments: list[Value] = []
        types = parse_types(match.group(2))
        if match.group(1):
            for part, kind in zip(split_top(match.group(1), ", "), types, strict=True):
                name, initial = part.split(" = ")
                self._use(op, initial)
                arguments.append(Value(name.strip(), kind, index=len(arguments)))
        op.head = rest
        self._at += 1
        op.regions.append(self._region(op, op.line, arguments))
        line = self._at
        self._at += 1  # "} do {"
        op.regions.append(self._region(op, line))
        self._close(op)
        self._define(op, names, parse_types(match.group(3)))

    def _generic(self, op: Op, names: list[str], rest: str) -> None:
        """`"tt.reduce"(%a) <{...}> ({ ... }) {...} : (types) -> types`"""
        line = self._at
        before = rest[: rest.rindex("({")] if rest.endswith("({") else rest[:-1]
        for name in VALUE.findall(QUOTED.sub('""', before)):
            self._use(op, name)
        self._at += 1
        op.regions.append(self._region(op, line))
        while self._text().startswith("}, {"):
            line = self._at
            self._at += 1
            op.regions.append(self._region(op, line))
        tail = self._close(op)
        tail = tail[2:] if tail.startswith("})") else tail[1:]
        parts = split_top(tail, " : ")
        op.head = before + (parts[0] if len(parts) > 1 else "")
        signature = parts[-1].strip() if len(parts) > 1 else ""
        self._define(op, names, _result_types(op, signature, len(names)))

    def _finish(self, op: Op, names: list[str], rest: str) -> None:
        parts = split_top(rest, " : ")
        op.head = " : ".join(parts[:-1]) if len(parts) > 1 else rest
        signature = parts[-1].strip() if len(parts) > 1 else ""
        text = QUOTED.sub('""', op.head)
        if op.name in ("cf.br", "cf.cond_br"):
            op.successors = [
                (label, [self._lookup(name) for name in VALUE.findall(values.split(":")[0])])
                for label, values in _SUCCESSOR.findall(rest)
            ]
            text = text.split("^")[0]
        used = VALUE.findall(text)
        if op.name in _SOURCE_LAST:
            used.insert(1, used.pop())
        for name in used:
            self._use(op, name)
        self._define(op, names, _result_types(op, signature, len(names)))


def _result_types(op: Op, signature: str, count: int) -> list[Type]:
    if not count:
        return []
    for arrow in (" -> ", " to "):
        sides = split_top(signature, arrow)
        if len(sides) == 2:
            types = parse_types(sides[1])
            return types * count if len(types) == 1 else types  # tt.split prints one for both
    types = parse_types(signature)
    if not types and op.head.split()[-1:] in (["true"], ["false"]):  # printed without its type, i1
        return [parse_type("i1")]
    if not types:
        raise ValueError(
            f"cannot read the result type of {op.name} at line {op.line + 1}: {op.head}"
        )
    if op.name == "tt.make_tensor_descriptor":  # the prefix is left out in print
        return [parse_type("!tt.tensordesc" + types[-1].text)]
    if op.name == "tt.load":
        return [types[0].like(types[0].pointee)]
    if op.name in ("arith.cmpi", "arith.cmpf"):
        return [types[0].like("i1")]
    if op.name in ("tt.addptr", "arith.addui_extended"):
        return [types[0], *(t.like("i1") for t in types[:1])]
    if op.name in ("arith.mului_extended", "arith.mulsi_extended"):
        return [types[0], types[0]]
    return [types[-1]] * max(count, 1)
