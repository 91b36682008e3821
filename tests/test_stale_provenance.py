"""A cached wrapper of another source text: what no longer matches is unknown, not wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = """\
import json
import sys
import torch
import flagprism_torch
{lines}
class Part(torch.nn.Module):
    def forward(self, x):
        return torch.log(x) + 1.0  # fault

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.{name} = Part()
    def forward(self, x):
        return self.{name}(x)

flagprism_torch.enable_cpu()
net = Net()
with flagprism_torch.debug(model=net, logdir=False) as session:
    torch.compile(net)(-torch.ones(64))
found = session.anomalies[0]
print(json.dumps([found.module, found.model_line, found.model_file, found.aten,
                  session.coverage.to_dict()["provenance"], session.coverage.to_dict()["notes"]]))
"""


# Never called; its second line reads as the model's.
TWIN = """
def twin(x):
    return torch.log(x) + 1.0  # fault
"""


def run(file: Path, name: str, lines: int, cache: Path, twin: bool = False) -> Any:
    file.write_text(PROGRAM.format(name=name, lines="\n" * lines) + (TWIN if twin else ""))
    places = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }
    done = subprocess.run(
        [sys.executable, str(file)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def fault_line(file: Path) -> int:
    return next(i for i, t in enumerate(file.read_text().splitlines(), 1) if "# fault" in t)


def test_edits_after_the_cache_was_filled(tmp_path: Path):
    first, cache = tmp_path / "first.py", tmp_path / "cache"
    module, line, file, aten, sources, notes = run(first, "part", 0, cache)
    assert (module, line, file, aten) == ("part", fault_line(first), str(first), "aten.log")
    assert sources["recorded"] and not sources["stale"] and not notes

    # the same program again, from the cache: still known
    module, line, file, aten, sources, notes = run(first, "part", 0, cache)
    assert (module, line, file, aten) == ("part", fault_line(first), str(first), "aten.log")
    assert sources["recorded"] and not sources["stale"] and not notes

    # lines moved: found again by their text
    moved = fault_line(first) + 3
    module, line, file, aten, sources, notes = run(first, "part", 3, cache)
    assert (module, line, file, aten) == ("part", moved, str(first), "aten.log")
    assert fault_line(first) == moved
    assert sources["recorded"] and not sources["stale"] and not notes

    # another line reads the same now: the module still holds, the line is unknown
    module, line, file, aten, sources, notes = run(first, "part", 3, cache, twin=True)
    assert (module, line, file, aten) == ("part", None, None, "aten.log")
    assert sources["stale"] and any("FORCE_DISABLE_CACHES" in note for note in notes)

    # another file, another module name: neither holds
    module, line, file, aten, sources, notes = run(tmp_path / "second.py", "other", 0, cache)
    assert (module, line, file, aten) == ("<none>", None, None, "aten.log")
    assert sources["stale"]
