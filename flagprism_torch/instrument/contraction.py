"""Products that the compiler fuses with the sum they go into, and how probes leave them alone.

Note [Contraction]
GPU compilers contract `a * b + c` to one fused multiply-add, which rounds once. A twin must do so
where its kernel does, or results differ in the last bit. What decides, as LLVM (its DAGCombiner,
visitFADDForFMACombine, on targets that fuse aggressively) and ptxas do it:

* LLVM looks at one basic block at a time. A branch of a twin between a product and its sum keeps
  them apart, so branches stand where no product waits for its sum: `settled`.
* LLVM may find a probe's product and the kernel's to be the same and keep the one in the earlier
  block. So probes compute with opaque copies of floats (instrument.apart): a move in inline
  assembly, which LLVM does not look into and which ptxas drops.
* Other uses of a product do not matter, with three exceptions. Of `a * b + c * d` LLVM fuses the
  product with fewer uses. A product that is doubled (`x * 2` is `x + x` to LLVM) is fused if
  nothing else uses it. A quotient ends in a product that ptxas alone sees, and fuses if all uses
  are sums. Probes must not use such *fragile* values at all: they compute them once more, from
  opaque copies.

Not followed: a product whose sum stands behind a branch of the kernel's own, a libdevice function's
included. LLVM sinks it to its sum if the program ends there, which a twin's branches may prevent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flagprism_torch.instrument.checks import REAL
from flagprism_torch.ir.module import Block, Function, Op, Value, walk

# what is a product in the end, or may be one after lowering
_PRODUCTS = re.compile(r"arith\.(mulf|divf)$|math\.|tt\.(extern_elementwise|precise_\w+)$")
_HAND_ON = {"arith.negf", "arith.extf", "tt.splat", "tt.unsplat", "tt.broadcast", "tt.reshape",
            "tt.expand_dims", "tt.trans", "tt.join", "tt.split", "tt.cat",
            "ttg.convert_layout"}  # fmt: skip
_SUMS = ("arith.addf", "arith.subf")
_TWO = re.compile(r"^(dense<)?2\.0+e\+00>?$")


class Contraction:
    """The products of a function that are summed in their block."""

    def __init__(self, function: Function) -> None:
        self.fragile: set[Value] = set()
        self._spans: dict[Block, list[tuple[int, int]]] = {}  # lines of a product and its last sum
        for op in function.walk():
            if not _PRODUCTS.match(op.name) or not REAL.match(op.results[0].type.element):
                continue
            sums = list(_sums(op.results[0]))
            if (sums and op.name == "arith.divf") or any(map(_counts_uses, sums)):
                self.fragile.add(op.results[0])
            ends = [user.end for user in sums if _reaches(op, user)]
            if ends:
                self._spans.setdefault(op.block, []).append((op.line, max(ends)))

    def settled(self, block: Block, line: int) -> int:
        """The first line at or behind `line` after which no product of the block waits for a sum;
        always before the terminator, which sums nothing."""
        spans = self._spans.get(block, ())
        while later := [end for start, end in spans if start <= line < end]:
            line = max(later)
        return line


def _reaches(product: Op, user: Op) -> bool:
    """Whether a sum stands in the block of its product, and no branch between them."""
    if user.block is not product.block:
        return False
    between = product.block.ops[product.index : user.index]
    return not any(op.name.startswith("scf.") for op in between)


def _sums(value: Value) -> Iterator[Op]:
    """The operations that add a product to something."""
    for user, _ in value.uses:
        if user.name in _SUMS or _doubles(user) or _adds_lanes(user):
            yield user
        elif user.name in _HAND_ON:
            for result in user.results:
                yield from _sums(result)


def _doubles(op: Op) -> bool:
    """Whether an operation is `x * 2`, which LLVM makes `x + x`."""
    if op.name != "arith.mulf":
        return False
    made = [operand.op for operand in op.operands]
    return any(
        one and one.name == "arith.constant" and _TWO.match(one.head.strip()) for one in made
    )


def _adds_lanes(op: Op) -> bool:
    """Whether an operation is a sum of lanes: within a thread one is added after the other."""
    if op.name not in ("tt.reduce", "tt.scan"):
        return False
    return any(inner.name in _SUMS for region in op.regions for inner in walk(region))


def _counts_uses(op: Op) -> bool:
    """Whether a sum is fused by how often its products are used: both operands are products."""
    return _doubles(op) or (op.name in _SUMS and all(map(_is_product, op.operands)))


def _is_product(value: Value) -> bool:
    op = value.op
    while op is not None and op.name in _HAND_ON:
        op = op.operands[0].op
    return op is not None and op.name == "arith.mulf"
