"""Runs one example in a process of its own, `main(device)` of a file in examples/, and knows what
it has to print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CODE = "import importlib, sys; importlib.import_module(sys.argv[1]).main(sys.argv[2])"


def run_example(path: Path, device: str, folder: Path) -> str:
    """What the example prints; its working directory is `folder`, so that its files land there."""
    places = [str(ROOT), str(path.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", CODE, path.stem, device],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_output(path: Path, output: str, folder: Path) -> None:
    """An example prints what it found, and what it found is what was planted."""
    assert output.strip()
    check = globals().get(f"_check_{path.stem}")
    if check is not None:
        check(path.read_text(), output.splitlines(), folder)


def _check_nan_hunt(source: str, lines: list[str], folder: Path) -> None:
    fault = _line_of(source, "# the fault")
    what, module, aten, model, kernel, statement, place = lines[0].split(" | ")
    assert (what, module, aten) == ("BORN nan", "layers.1.attn", "aten.div")
    assert model == f"nan_hunt.py:{fault}"
    assert kernel.startswith("triton_") and "div" in kernel
    assert re.fullmatch(r"tmp\d+ = \(?tmp\d+ / tmp\d+\)?", statement)
    # queries 12 to 15 of the short sentence see no key among 16
    assert place.startswith("64 of 1024 lanes, first at program ")
    answer = "\n".join(lines[:10])
    assert f"first seen at step 2, forward: {ROOT / 'examples' / 'nan_hunt.py'}:{fault}" in answer
    losses = re.search("loss by step: (.*)", answer)
    assert losses is not None
    assert [loss == "nan" for loss in losses[1].split(", ")] == [False, False, False, True]
    _check_events(answer, folder)
    below = lines[lines.index(lines[0], 1) + 1 :]
    assert below[1].lstrip().startswith("cause: 0 / 0; operands: ")
    then = below[2].lstrip()
    assert then.startswith("then: passed ") and "extern_kernels.bmm (layers.1.attn)" in then
    # the optimizer is not compiled, so what it made of the parameters comes from outside
    assert any("produced outside Triton: argument" in line for line in below)


def _check_masked_softmax(source: str, lines: list[str], folder: Path) -> None:
    fault = _line_of(source, "# the fault") + 1
    born, detail, cause, then = _anomalies(lines, 1)
    what, *_, kernel, statement, place = born.split(" | ")
    assert (what, kernel, statement) == ("BORN nan", "softmax", "e = tl.exp(score - top)")
    assert place == "128 of 1024 lanes, first at program (5, 0, 0) lane 0"
    assert f"masked_softmax.py:{fault} arith.subf" in detail
    assert detail.endswith("padding 28")
    # 10 of 100 columns are masked in 7 rows, and all of them in the eighth
    assert cause == "cause: inf - inf; operands: score 630 finite, 170 -inf; top 7 finite, 1 -inf"
    store = "tl.store(out_ptr + row, tl.sum(weight * value, axis=0))"
    assert then == (
        f"then: passed weighted_sum (<none>); visible in weighted_sum (<none>): {store}"
    )
    assert lines[-1] == "rows of out that are NaN: [5]"


def _check_nan_in_buffer(source: str, lines: list[str], folder: Path) -> None:
    found = _anomalies(lines, 2)
    for name in ("running_mean", "running_var"):
        buffer = f"features.0.{name}"
        (cause,) = (i for i, line in enumerate(found) if line.endswith(f"({buffer})"))
        assert found[cause].startswith("cause: produced outside Triton: argument in_ptr")
        assert found[cause - 2].startswith("LOADED nan | features.0 | ")
        assert f"loaded from {buffer}: 16 lanes" in lines  # one feature of 16 samples


def _check_hidden_overflow(source: str, lines: list[str], folder: Path) -> None:
    assert "Anomalies: none" in lines
    assert "Hidden: 1 chain that did not leave the kernel" in lines
    birth = lines[-2]
    assert birth.startswith("BORN inf | ") and birth.endswith("; cause: exp overflows fp32")
    lanes = re.search(r" \| e = tl\.exp\(x\) \| (\d+) of 1000 lanes, ", birth)
    assert lanes is not None and int(lanes[1]) > 0
    assert lines[-1] == f"lanes by torch: {lanes[1]}"


def _check_silent_trouble(source: str, lines: list[str], folder: Path) -> None:
    found = _anomalies(lines, 3)
    # rows 16384 and 16385 wrap; 3 of 16 lanes of 4 rows; 144 of 400 additions in 16 columns
    for start, kernel, end in (
        ("int_overflow", "gather", "2 wrapped lanes, first at program (0, 0, 0) lane 2"),
        ("undefined_lanes", "row_max", "12 undefined lanes, first at program (0, 0, 0) lane 13"),
        (
            "stagnation",
            "column_sum",
            "2304 lost additions, first at program (0, 0, 0) lane 0 iteration 256",
        ),
    ):
        (line,) = (line for line in found if line.startswith(f"FOUND {start} | "))
        assert f" | {kernel} | " in line and line.endswith(f" | {end}")
    assert lines[-1] == "a sum of 400 ones: 256"


def _check_out_of_bounds(source: str, lines: list[str], folder: Path) -> None:
    found = _anomalies(lines, 2)
    for start, verb in ((0, "reads"), (3, "updates")):
        assert found[start].startswith("FOUND oob | ")
        assert found[start].endswith("16 oob lanes, first at program (2, 0, 0) lane 0")
        place = "table_ptr[100, 0] of shape (100, 16), 4 bytes behind its end, inside its storage"
        assert found[start + 2].startswith(f"cause: {verb} {place}")
    assert "guard=False: 2 findings, 16 elements overwritten" in lines
    assert "guard=True: 2 findings, 0 elements overwritten" in lines
    # tokens 3 to 100, of rows of 64 bytes
    assert "load table_ptr (100, 16): bytes 192 to 6460, contiguous" in lines


def _anomalies(lines: list[str], count: int) -> list[str]:
    """The lines of all anomalies of the report, without indentation; there have to be `count`."""
    start = lines.index(f"Anomalies: {count}") + 1
    return [line.strip() for line in lines[start : lines.index("", start)]]


def _check_user_kernel(source: str, lines: list[str], folder: Path) -> None:
    division = _line_of(source, "ratio = x / y")
    (found,) = (i for i, line in enumerate(lines) if "| divide | ratio = x / y | 1 of 1000" in line)
    assert lines[found].endswith("first at program (0, 0, 0) lane 7")
    assert f"user_kernel.py:{division} arith.divf" in lines[found + 1]
    seen, by_torch = lines[-2], lines[-1]
    assert seen.startswith("p: 6400 live of 8192 lanes")
    assert seen.split("from")[1] == by_torch.split("from")[1]


def _check_user_kernel_in_module(source: str, lines: list[str], folder: Path) -> None:
    for start in (
        "scaled   forward  scale_kernel",
        "scaled   backward scale_kernel",
        "squared  forward  square_kernel",
        "squared  backward square_backward_kernel",
    ):
        assert any(line.startswith(start) for line in lines), start


def _check_training_run(source: str, lines: list[str], folder: Path) -> None:
    _check_events("\n".join(lines), folder)
    steps = [re.match(r"step (\d): loss ([\d.]+), tanh 2048 lanes", line) for line in lines]
    found = [(int(m[1]), float(m[2])) for m in steps if m is not None]
    assert [step for step, _ in found] == [0, 1, 2, 3, 4]
    assert found[-1][1] < found[0][1]


def _check_events(output: str, folder: Path) -> None:
    logdir = re.search(r"tensorboard --logdir (\S+)", output)
    assert logdir is not None
    files = list((folder / logdir[1]).glob("events.out.tfevents.*"))
    assert len(files) == 1 and files[0].stat().st_size > 1000


def _line_of(source: str, text: str) -> int:
    (line,) = (i for i, each in enumerate(source.splitlines(), 1) if text in each)
    return line
