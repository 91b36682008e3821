"""Measure what observing costs and print one table.

    python -m benchmarks                  every group of rows that has no result yet
    python -m benchmarks step kernels     only these
    python -m benchmarks --fresh step     measure again
    python -m benchmarks --small          sizes for a machine without accelerator, under a minute

Each group runs in a process of its own, and its result is kept in a JSON file, so that a run that
was cut short is continued by the next. A command ends within `--budget` seconds: groups that no
longer fit are named and left to the next call.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))
LEAST_SECONDS = 60  # a group is not begun with less


def main(argv: list[str] | None = None) -> int:
    """Runs the groups named in `argv`; 0 if all that was asked for has a result."""
    from benchmarks.rows import GROUPS

    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("rows", nargs="*", metavar="ROWS", help=f"groups: {', '.join(GROUPS)}")
    parser.add_argument("--fresh", action="store_true", help="measure again what has a result")
    parser.add_argument("--small", action="store_true", help="small sizes, in this process")
    parser.add_argument("--results", type=Path, help="JSON file (default: beside this file)")
    parser.add_argument("--budget", type=float, default=570, help="seconds for this command")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # the process of one group
    args = parser.parse_args(argv)
    unknown = [row for row in args.rows if row not in GROUPS]
    if unknown:
        parser.error(f"unknown rows {', '.join(unknown)}; allowed: {', '.join(GROUPS)}")
    if args.only:
        print(json.dumps(_measure(args.only, args.small)))
        return 0

    device = _device()
    path = args.results or HERE / f"results-{device}{'-small' if args.small else ''}.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    wanted = args.rows or list(GROUPS)
    started = time.monotonic()
    failed = []
    with tempfile.TemporaryDirectory() as cache:
        for group in wanted:
            if group in results and not args.fresh:
                continue
            left = args.budget - (time.monotonic() - started)
            if left < LEAST_SECONDS and not args.small:
                failed.append(f"{group} (no time left: run the command again)")
                continue
            print(f"measuring {group} ...", file=sys.stderr, flush=True)
            try:
                found = _measure(group, True) if args.small else _in_process(group, left, cache)
            except (subprocess.SubprocessError, RuntimeError) as error:
                failed.append(f"{group} ({error})")
                continue
            results[group] = found
            path.write_text(json.dumps(results, indent=1) + "\n")
    print(table({group: results[group] for group in GROUPS if group in results}))
    for text in failed:
        print(f"not measured: {text}")
    return 1 if failed else 0


def table(results: dict[str, Any]) -> str:
    """The lines of all groups as text, with the conditions they hold under."""
    lines: list[str] = []
    shown: dict[str, str] = {}
    for group, found in results.items():
        if found["conditions"] != shown:
            shown = found["conditions"]
            lines += ["", ", ".join(f"{name} {value}" for name, value in shown.items())]
            lines.append(f"{'':62} {'ms':>10} {'ratio':>7}")
        lines.append(f"[{group}]")
        for line in found["lines"]:
            ratio = "" if line["ratio"] is None else f"{line['ratio']:.2f}x"
            name = line["what"] if len(line["what"]) <= 62 else line["what"][:59] + "..."
            text = f"{name:62} {line['ms']:10.4f} {ratio:>7}  {line['note']}"
            lines.append(text.rstrip())
    lines.append("medians of interleaved runs; ratios are those of medians")
    return "\n".join(lines)


def _measure(group: str, small: bool) -> dict[str, Any]:
    import flagprism_torch
    from benchmarks.measure import conditions
    from benchmarks.rows import measured

    device = _device()
    entered = device == "cpu" and flagprism_torch.enable_cpu()
    try:
        lines = measured(group, device, small)
    finally:
        if entered:
            flagprism_torch.disable_cpu()
    return {"conditions": conditions(device), "lines": lines}


def _in_process(group: str, seconds: float, cache: str) -> dict[str, Any]:
    """Lines of a group. cache: Triton's, for all groups of a run."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--only", group],
        env={**os.environ, "TRITON_CACHE_DIR": cache},
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds,
    )
    if done.returncode != 0:
        raise RuntimeError(f"exit status {done.returncode}, see above")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _device() -> str:
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if found is None else found.type


if __name__ == "__main__":
    raise SystemExit(main())
