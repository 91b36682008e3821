"""Needed lanes against an oracle that knows no descriptions: every lane of every float value is
changed, and what the kernel writes is compared (lane_oracle)."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lane_kernels
import numpy as np
import pytest
import torch
from lane_oracle import described, floats, needed
from ttir_text import CUDA, named, ops, ttir

from flagprism_torch.instrument.mask_text import position
from flagprism_torch.ir.masks import ALL, NONE, UNKNOWN, Mask, leaf
from flagprism_torch.ir.module import Module, Value
from flagprism_torch.ir.needed import LARGEST, NeededLanes
from flagprism_torch.ir.valid import ValidLanes

TYPES = {
    **dict.fromkeys(("x_ptr", "y_ptr", "o_ptr", "a_ptr", "b_ptr", "c_ptr"), "*fp32"),
    **dict.fromkeys(("n", "m", "k", "i", "j"), "i32"),
}
SOME = 32
LINE: Mapping[str, int] = {"BLOCK": 8}
TILE: Mapping[str, int] = {"ROWS": 4, "COLUMNS": 8}
SQUARE: Mapping[str, int] = {"SIZE": 16}

# kernel, its sizes, its integer arguments: descriptions are exact
EXACT: list[tuple[str, Mapping[str, int], tuple[int, ...]]] = [
    ("elementwise", LINE, (5, 7)),
    ("elementwise", LINE, (0, 2)),
    ("guards", LINE, (6, 4)),
    ("guards", LINE, (2, 4)),
    ("default", LINE, (6, 4)),
    ("softmax", TILE, (3, 6)),
    ("shapes", TILE, (3, 6)),
    ("scans", TILE, (3, 6)),
    ("totals", TILE, (3, 6)),
    ("pairs", LINE, (11, 5)),
    ("picked", TILE, (3, 6)),
    ("product", SQUARE, (11, 9, 7)),
    ("matmul", SQUARE, (5, 9, 20)),
    ("halving", LINE, (6, 5)),
    ("leaves_early", LINE, (6, 5)),
    ("atomics", LINE, (6, 5)),
    ("single", LINE, (6, 5)),
    ("single", LINE, (2, 50)),
    ("online", LINE, (20, 5)),
    ("blocks_of_blocks", LINE, (1, 5, 2)),
]


def arguments_of(fn: Any, numbers: tuple[int, ...]) -> list[Any]:
    """Inputs that differ in every lane; the output starts at zero."""
    random = torch.Generator().manual_seed(0)
    pointers = [name for name in fn.arg_names if name.endswith("_ptr")]
    tensors = [
        torch.zeros(1024) if name == "o_ptr" else torch.randn(1024, generator=random)
        for name in pointers
    ]
    return [*tensors, *numbers]


def compared(
    kernel: str, sizes: Mapping[str, int], numbers: tuple[int, ...]
) -> dict[str, tuple[Any, Any]]:
    """Value -> (described lanes, needed lanes), for every float value that is not unknown. Of
    large tiles, SOME lanes."""
    fn = getattr(lane_kernels, kernel)
    text = ttir(fn, TYPES, sizes)
    module = Module(text)
    lanes = NeededLanes(module.entry)
    arguments, random = arguments_of(fn, numbers), np.random.default_rng(0)
    found = {}
    for op, value in floats(module):
        mask = lanes.of(value)
        if op.name == "arith.constant" or mask is UNKNOWN:
            continue
        assert mask in (ALL, NONE) or mask.type == value.type.like("i1")
        chosen = random.permutation(value.type.numel)[:SOME]
        lanes_there = described(text, mask, op, value.type.dims, arguments).ravel()[chosen]
        wanted = np.array(needed(module, value, arguments, chosen.tolist()))
        found[f"{value.name} {op.name} {op.line}"] = lanes_there, wanted
    return found


@pytest.mark.parametrize(("kernel", "sizes", "numbers"), EXACT, ids=str)
def test_needed_lanes(kernel: str, sizes: Mapping[str, int], numbers: tuple[int, ...]) -> None:
    found = compared(kernel, sizes, numbers)
    assert len(found) >= 2
    for name, (lanes, wanted) in found.items():
        assert np.array_equal(lanes, wanted), name


# ... and here more lanes than needed, in these values
WIDER: list[tuple[str, tuple[int, ...], set[str]]] = [
    # the mask of the store is another one in each iteration
    ("masked_loop", (4, 6), {"x", "total", "scaled"}),
    ("branch", (3, 5), {"x"}),  # only read in the branch that is not taken
    ("branch", (6, 5), set()),
    ("counted", (6, 5), {"x"}),  # a product with zero
]


@pytest.mark.parametrize(
    ("kernel", "numbers", "wider"),
    [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in WIDER],
)
def test_supersets(kernel: str, numbers: tuple[int, ...], wider: set[str]) -> None:
    found = compared(kernel, LINE, numbers)
    more = set()
    for name, (lanes, wanted) in found.items():
        assert not (wanted & ~lanes).any(), name
        if (lanes & ~wanted).any():
            more.add(re.sub(r"_\d+$", "", name.split()[0]).lstrip("%"))
    assert more <= wider
    assert bool(more) == bool(wider)


def test_masks_that_are_known_too_late() -> None:
    """Loaded in the loop: all lanes of a value from outside may matter. Loaded behind the loop: the
    description is there, but nobody can write it in the loop."""
    module, lanes = lanes_of("told_late", LINE)
    assert lanes.of(named(module, "base")[-1]) is ALL
    (stored,) = (op for op in ops(module, "tt.store") if op.block.parent is None)
    (inner,) = (op for op in ops(module, "arith.addf") if op.block.parent is not None)
    assert lanes.of(inner.results[0]).arguments == (stored.operands[2],)
    assert position(lanes.of(inner.results[0]), inner) is None


def lanes_of(kernel: str, sizes: Mapping[str, int], **types: str) -> tuple[Module, NeededLanes]:
    module = Module(ttir(getattr(lane_kernels, kernel), {**TYPES, **types}, sizes))
    return module, NeededLanes(module.entry)


def test_effects_need_every_lane() -> None:
    """Printed values, addresses, masks, and assembly that sees several lanes at once. An address
    is one only where the access happens, and what is compared for a mask matters only where the
    rest of the mask leaves that open."""
    module, lanes = lanes_of("effects", LINE)
    x, y, z = (op.results[0] for op in ops(module, "tt.load"))
    assert lanes.of(x) is ALL
    (joined,) = ops(module, "arith.andi")
    assert lanes.of(z) == leaf(joined.operands[1])
    at = named(module, "at")[-1]
    stores = ops(module, "tt.store")
    first = stores[0].operands[2]
    for value in (y, at):
        assert lanes.of(value) == Mask("value", first.type, (first,))
    (asm,) = ops(module, "tt.elementwise_inline_asm")
    assert lanes.of(asm.operands[0]) is ALL


def test_reordered_lanes_are_unknown() -> None:
    """tt.cat may put lanes anywhere; but if all are needed, all are."""
    module, lanes = lanes_of("reordered", LINE)
    first, second = ops(module, "tt.load")
    assert lanes.of(first.results[0]) is ALL and lanes.of(second.results[0]) is UNKNOWN
    assert {lanes.of(op.results[0]).kind for op in ops(module, "tt.cat")} == {"value", "all"}


def test_descriptors_need_what_lies_inside() -> None:
    module, lanes = lanes_of("described", {"ROWS": 8, "COLUMNS": 16})
    (load,), (y,) = ops(module, "tt.descriptor_load"), named(module, "y")[-1:]
    (store,) = ops(module, "tt.descriptor_store")
    text = "\n".join(module.lines)
    row, column = np.arange(8)[:, None], np.arange(16)[None, :]
    for n, m, i, j in ((6, 12, 0, 0), (6, 12, 5, 2), (30, 30, -2, -3)):
        inside = (j + row >= 0) & (j + row < n) & (i + column >= 0) & (i + column < m)
        for value in (load.results[0], y):
            mask = lanes.of(value)
            found = described(text, mask, value.op, (8, 16), [n, m, i, j], only=True)
            assert np.array_equal(found, inside)
    assert all(lanes.of(index) is ALL for index in store.operands[2:])


def test_scattered_rows() -> None:
    module, lanes = lanes_of("listed", {"ROWS": 8, "COLUMNS": 16})
    (scatter,) = ops(module, "tt.descriptor_scatter")
    source = scatter.operands[3]
    text = "\n".join(module.lines)
    n, m, i, j = 9, 12, 3, 2
    found = described(text, lanes.of(source), source.op, (8, 16), [n, m, i, j], only=True)
    rows, columns = np.arange(8)[:, None] * 2 - i + 1, j + np.arange(16)[None, :]
    assert np.array_equal(found, (rows >= 0) & (rows < n) & (columns < m))
    assert lanes.of(scatter.operands[1]) is ALL


def test_scaled_factors() -> None:
    pointers = {"a_ptr": "*fp8e4nv", "b_ptr": "*fp8e4nv", "s_ptr": "*u8", "t_ptr": "*u8"}
    module, lanes = lanes_of("scaled", {"SIZE": 64}, **pointers)
    (product,) = ops(module, "tt.dot_scaled")
    text = "\n".join(module.lines)
    index = np.arange(64)
    row, column = np.broadcast_to(index[:, None] < 5, (64, 64)), index[None, :] < 9
    expected = [row, row[:, :2], np.broadcast_to(column, (64, 64)), column.T & row[:1, :2]]
    for value, want in zip(product.operands, expected, strict=False):
        mask = lanes.of(value)
        found = described(text, mask, value.op, value.type.dims, [5, 9, 7], only=True)
        assert np.array_equal(found, want), value.name


CARRIED = """module {
tt.func public @k(%o: tensor<8x!tt.ptr<f32>>, %x: tensor<8xf32>, %m: tensor<8xi1>, %f: i1) {
cf.cond_br %f, ^bb1(%x : tensor<8xf32>), ^bb2(%x, %m : tensor<8xf32>, tensor<8xi1>)
^bb1(%y: tensor<8xf32>):
tt.store %o, %y, %m : tensor<8x!tt.ptr<f32>>
TAIL
^bb2(%z: tensor<8xf32>, %n: tensor<8xi1>):
%w = arith.addf %z, %z : tensor<8xf32>
tt.store %o, %w, %n : tensor<8x!tt.ptr<f32>>
tt.return
}
}"""


def test_values_handed_between_blocks() -> None:
    entry = Module(CARRIED.replace("TAIL", "tt.return")).entry
    lanes = NeededLanes(entry)
    values = {value.name: value for block in entry.blocks for value in block.arguments}
    assert lanes.of(values["%x"]) is UNKNOWN
    assert lanes.of(values["%y"]).arguments == (values["%m"],)
    assert lanes.of(values["%z"]).arguments == (values["%n"],)
    assert lanes.of(values["%f"]) is ALL


def test_loops_of_blocks_are_unknown() -> None:
    entry = Module(CARRIED.replace("TAIL", "cf.br ^bb1(%y : tensor<8xf32>)")).entry
    lanes = NeededLanes(entry)
    assert all(lanes.of(v) is UNKNOWN for block in entry.blocks for v in block.arguments)


def test_large_descriptions_become_all() -> None:
    """One value stored under ever more masks."""
    count = LARGEST + 2
    arguments = ", ".join(f"%m{k}: tensor<8xi1>" for k in range(count))
    stores = [f"tt.store %o, %y, %m{k} : tensor<8x!tt.ptr<f32>>" for k in range(count)]
    head = f"tt.func public @k(%o: tensor<8x!tt.ptr<f32>>, %x: tensor<8xf32>, {arguments}) {{"
    make = "%y = arith.addf %x, %x : tensor<8xf32>"

    def need(stored: int) -> Mask:
        lines = ["module {", head, make, *stores[:stored], "tt.return", "}", "}"]
        entry = Module("\n".join(lines)).entry
        value: Value = entry.blocks[0].ops[0].results[0]
        return NeededLanes(entry).of(value)

    assert need(0) is NONE
    assert need(LARGEST - 1).kind == "or" and len(need(LARGEST - 1).arguments) == LARGEST - 1
    assert need(count) is ALL


# -- Inductor

SOURCES = Path(__file__).with_name("inductor_sources.py")


@pytest.mark.filterwarnings("ignore:Could not find an active CPU backend")
def test_inductor_kernels_leave_nothing_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every float value has a description of both kinds, and it can be had next to the value."""
    import torch._inductor.runtime.triton_helpers as helpers
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    subprocess.run([sys.executable, SOURCES, tmp_path], check=True, capture_output=True)
    monkeypatch.setattr(helpers, "set_driver_to_gpu", lambda: None)
    files = sorted(tmp_path.glob("*.py"))
    assert len(files) >= 4
    for file in files:
        spec = importlib.util.spec_from_file_location(file.stem.replace(".", "_"), file)
        assert spec and spec.loader
        source = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(source)
        (tuner,) = (v for v in vars(source).values() if isinstance(v, CachingAutotuner))
        meta = tuner._create_compile_meta(tuner.configs[0])
        module = Module(ttir(tuner.fn, meta["signature"], meta["constants"], CUDA))
        analyses = ValidLanes(module.entry), NeededLanes(module.entry)
        for op, value in floats(module):
            for lanes in analyses:
                mask = lanes.of(value)
                assert mask is not UNKNOWN, (file.stem, value.name)
                assert mask in (ALL, NONE) or position(mask, op) is not None
