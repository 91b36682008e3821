"""What a PTX kernel computes, as expressions: to compare the arithmetic of two kernels.

Equal expressions are the same number, also of different kernels; `spelled` shows one. Leaves are
loads (by the kernel parameter that leads there), what comes from shared memory, constants, and
"joined": a register with several definitions, where a loop or a branch joins. Moves are
transparent; predicates and the order of factors and terms are left out.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from typing import Any

Tree = int
_numbers: dict[tuple[Any, ...], Tree] = {}  # (operation, operands...) -> expression
_nodes: list[tuple[Any, ...]] = []
_STATEMENT = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s+([^;]*);", re.M)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^\s,{}\[\]]+")
_REGISTER = re.compile(r"%\w+")
_VALUE = re.compile(r"%\w+|0[fd][0-9A-F]+|-?\b\d+\b")
_NO_RESULT = re.compile(r"(st|red|bra|bar|ret|fence|membar|trap)\b")
_PRODUCT = re.compile(r"(fma|mul|div).*\.b?f\d\d")


def _node(*parts: Any) -> Tree:
    if parts not in _numbers:
        _numbers[parts] = len(_nodes)
        _nodes.append(parts)
    return _numbers[parts]


def _part(tree: Tree, part: int) -> Tree:
    """A part of a register; the first part stands for the register itself."""
    if _nodes[tree][0] == "pack":
        return _nodes[tree][1 + part]
    return _node(f"part {part}", tree) if part else tree


def _computed(code: str, trees: list[Tree]) -> Tree:
    if code.startswith(("fma", "mul", "add")):
        trees[:2] = sorted(trees[:2])
    return _node(code, *trees)


@functools.cache
def _has_product(tree: Tree) -> bool:
    code, *parts = _nodes[tree]
    if code in ("load", "leaf"):
        return False
    return _PRODUCT.match(code) is not None or any(map(_has_product, parts))


def spelled(tree: Tree, depth: int = 4) -> str:
    """An expression for messages."""
    code, *parts = _nodes[tree]
    if code in ("load", "leaf"):
        return " ".join(map(str, (code, *parts)))
    inner = ", ".join(spelled(part, depth - 1) if depth else "..." for part in parts)
    return f"{code}({inner})"


class Flow:
    """The statements of one kernel."""

    def __init__(self, ptx: str) -> None:
        body = ptx[ptx.index("\n{", ptx.index(".entry")) :]
        self._defined: dict[str, list[tuple[str, int, list[str]]]] = defaultdict(list)
        self._written: list[tuple[str, list[str]]] = []
        self._trees: dict[str, Tree] = {}
        for code, text in _STATEMENT.findall(body):
            operands = _OPERAND.findall(text)
            if code.startswith(("st.global", "st.shared")):
                self._written.append((code, operands))
            elif operands and not _NO_RESULT.match(code):
                results = _REGISTER.findall(operands[0].split("|")[0])
                for part, name in enumerate(results):
                    self._defined[name].append((code, part, operands[1:]))

    def stored(self, parameter: int) -> Counter[Tree]:
        """What is stored to global memory through a parameter of the kernel."""
        return self._stores("st.global", str(parameter))

    def handed_on(self) -> Counter[Tree]:
        """What is stored to shared memory or joined with other definitions, and has a product of
        floats in it. (Where sums of what loops carry stand is the compiler's choice.)"""
        found = self._stores("st.shared", "")
        for definitions in self._defined.values():
            if len(definitions) > 1:
                found.update(self._made(*one) for one in definitions)
        return Counter({tree: n for tree, n in found.items() if _has_product(tree)})

    def _stores(self, code: str, root: str) -> Counter[Tree]:
        return Counter(
            self._tree(value)
            for one, (address, *values) in self._written
            if one.startswith(code) and self._root(address) == root
            for value in _REGISTER.findall(" ".join(values))
        )

    def _root(self, address: str) -> str:
        """Number of the kernel parameter that an address is computed from, "" for shared memory."""
        waiting, seen = _REGISTER.findall(address), set()
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                for code, _, operands in self._defined.get(name, ()):
                    if re.match(r"ld\.param\.[bu]64", code):
                        return operands[0].rpartition("_")[2].rstrip("]")
                    if not code.startswith("ld."):
                        waiting += _REGISTER.findall(" ".join(operands))
        return ""

    def _tree(self, name: str) -> Tree:
        if name not in self._defined:
            return _node("leaf", name)
        if name not in self._trees:
            definitions = self._defined[name]
            loads = [one for one in definitions if one[0].startswith("ld.global")]
            if len(definitions) > 1 and not loads:
                self._trees[name] = _node("leaf", "joined")
            else:
                self._trees[name] = self._made(*(loads or definitions)[0])
        return self._trees[name]

    def _made(self, code: str, part: int, operands: list[str]) -> Tree:
        if code.startswith("ld.global"):
            return _node("load", self._root(operands[0]), part)
        if code.startswith("ld."):
            return _node("leaf", operands[0] if "param" in code else code)
        names = [n for n in _VALUE.findall(" ".join(operands)) if not n.startswith("%p")]
        trees = [self._tree(name) for name in names]
        if code.startswith("mov."):
            return _part(trees[0], part) if len(trees) == 1 else _node("pack", *trees)
        if re.search(r"f16x2\.f32$", code):  # the high half comes first
            return _node("pack", *(_node(code.replace("x2", ""), t) for t in reversed(trees)))
        if re.search(r"f16x2$", code):  # on both halves
            halves = ([_part(tree, half) for tree in trees] for half in (0, 1))
            return _node("pack", *(_computed(code.replace("x2", ""), half) for half in halves))
        return _computed(f"{code} {part}" if part else code, trees)
