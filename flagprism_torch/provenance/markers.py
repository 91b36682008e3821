"""The marker: what the compile-time recorder writes into a generated wrapper, and how it is read.

A marker is one comment line just before a launch line:

    # [flagprism] {"v":1,"k":"triton_poi_fused_add_0",...}
    # [flagprism] z:<base64 of the zlib-compressed JSON>

so it travels with the wrapper through every cache of torch.compile. JSON fields:

    v  version                        n  owners: [module, aten, file, line, phase]
    k  kernel name                    o  owners of the launch, in graph order
    p  process token                  x  variable -> owner or [owner, further owners]
    b  1 in a backward graph          s  pointer argument -> owner
    r  the compiled module            m  modules: [key, fqn, class, class of the root]
    f  files                          a  ATen ops
    t  checksums of model lines: [file, line, checksum, 1 if no other line of the file has it]
    i  pointer argument -> name of the graph input

Entries of f, m, a and n are referred to by index; -1 is none.

Note [Stale markers]
torch.compile's caches know graphs, not places: after an edit that leaves the graph as it was, the
cached wrapper still names old lines, files and modules. So what another process wrote is believed
only as far as it can be checked: a file must be part of this program and its line must read as it
did, a module name must exist in the model at hand. Otherwise that part is unknown. A line that
moved is found again by its text, if no other line of the file reads so, neither then nor now.
"""

from __future__ import annotations

import base64
import json
import linecache
import os
import secrets
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flagprism_torch.records.model import Phase

PREFIX = "# [flagprism] "
VERSION = 1
REST = "*"  # the variable that stands for all that have no entry: the body of a template
_COMPRESS_FROM = 1500  # characters; below that compression saves little and hides the text
_PHASES: tuple[Phase, ...] = ("none", "forward", "backward", "optimizer")

# Module ids in a marker are valid in the process that compiled (and in its forks) only.
PROCESS_TOKEN = f"{os.getpid():x}.{secrets.token_hex(4)}"


@dataclass(frozen=True)
class ModuleRef:
    """A module as the compiler saw it.

    `key`: str(id(module)), with "@k" for the k-th further call of a shared module. `fqn`: name
    relative to the compiled root, "" for the root itself. `cls`: its class. `root_cls`: the class
    of that root.
    """

    key: str
    fqn: str
    cls: str
    root_cls: str


@dataclass(frozen=True)
class Owner:
    """What one FX node says about the values computed for it. `module` None: outside any module."""

    module: ModuleRef | None = None
    aten: str | None = None
    file: str | None = None
    line: int | None = None
    phase: Phase = "none"


class Checksum(NamedTuple):
    """Of a model line's text, and whether no other line of its file has the same."""

    value: int
    unique: bool


@dataclass
class Marker:
    """Provenance of one launch.

    `root`: the module whose method was compiled, None for a function. `owners`: in graph order.
    `variables`: the defining owner first, then further owners that share the value after
    common-subexpression elimination. `inputs`: pointer argument -> what the program calls the
    graph input that is passed (`graph_inputs`).
    """

    kernel: str
    backward: bool = False
    token: str = PROCESS_TOKEN
    root: ModuleRef | None = None
    owners: list[Owner] = field(default_factory=list)
    variables: dict[str, tuple[Owner, ...]] = field(default_factory=dict)
    stores: dict[str, Owner] = field(default_factory=dict)
    checksums: dict[tuple[str, int], Checksum] = field(default_factory=dict, compare=False)
    inputs: dict[str, str] = field(default_factory=dict)


_read: dict[str, tuple[list[str], dict[int, list[int]]]] = {}  # file -> its lines, what they say


def lines_of(file: str) -> dict[int, list[int]]:
    """Checksum of a line's text without indentation -> numbers of the lines that read so."""
    lines = linecache.getlines(file)
    known = _read.get(file)
    if known is None or known[0] is not lines:  # linecache hands out the same list until it rereads
        found: dict[int, list[int]] = {}
        for number, line in enumerate(lines, 1):
            if text := line.strip():
                found.setdefault(zlib.crc32(text.encode()), []).append(number)
        known = _read[file] = (lines, found)
    return known[1]


class _Table:
    """Interns values and gives them numbers."""

    def __init__(self) -> None:
        self.index: dict[Any, int] = {}

    def add(self, value: Any) -> int:
        return -1 if value is None else self.index.setdefault(value, len(self.index))

    def values(self) -> list[Any]:
        return list(self.index)


def encode(marker: Marker) -> str:
    """The comment line (without indentation) for `marker`."""
    files, modules, atens, owners = _Table(), _Table(), _Table(), _Table()
    root = modules.add(marker.root)
    launch = [owners.add(o) for o in marker.owners]
    variables: dict[str, int | list[int]] = {}
    for name, shared in marker.variables.items():
        numbers = list(dict.fromkeys(owners.add(o) for o in shared))
        variables[name] = numbers[0] if len(numbers) == 1 else numbers
    stores = {name: owners.add(o) for name, o in marker.stores.items()}
    rows = [
        [
            modules.add(o.module),
            atens.add(o.aten),
            files.add(o.file),
            -1 if o.line is None else o.line,
            _PHASES.index(o.phase),
        ]
        for o in owners.values()
    ]
    record = {
        "v": VERSION,
        "k": marker.kernel,
        "p": marker.token,
        "b": int(marker.backward),
        "r": root,
        "f": files.values(),
        "m": [[m.key, m.fqn, m.cls, m.root_cls] for m in modules.values()],
        "a": atens.values(),
        "n": rows,
        "o": list(dict.fromkeys(launch)),
        "x": variables,
        "s": stores,
        "t": _checksums(owners.values(), files),
        "i": marker.inputs,
    }
    text = json.dumps(record, separators=(",", ":"))  # escapes line breaks and non-ASCII
    if len(text) > _COMPRESS_FROM:
        text = "z:" + base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    return PREFIX + text


def _checksums(owners: list[Owner], files: _Table) -> list[list[int]]:
    """[file, line, checksum, unique] of every line that can be read."""
    places = dict.fromkeys((owner.file, owner.line) for owner in owners)
    found: list[list[int]] = []
    for file in dict.fromkeys(file for file, _ in places if file is not None):
        for value, lines in lines_of(file).items():
            wanted = [line for line in lines if (file, line) in places]
            found += [[files.add(file), line, value, int(len(lines) == 1)] for line in wanted]
    return found


def decode(line: str) -> Marker | None:
    """The marker in a source line; None if there is none, or not one of this version."""
    text = line.strip()
    if not text.startswith(PREFIX):
        return None
    text = text[len(PREFIX) :]
    try:
        if text.startswith("z:"):
            text = zlib.decompress(base64.b64decode(text[2:])).decode()
        record = json.loads(text)
        if record["v"] != VERSION:
            return None
        return _unpack(record)
    except (ValueError, KeyError, IndexError, TypeError, zlib.error):
        return None  # a cut or foreign comment is as good as none


def _unpack(record: dict[str, Any]) -> Marker:
    def pick(values: list[Any], number: int) -> Any:
        return None if number < 0 else values[number]

    modules = [ModuleRef(*m) for m in record["m"]]
    owners = [
        Owner(
            module=pick(modules, module),
            aten=pick(record["a"], aten),
            file=pick(record["f"], file),
            line=None if line < 0 else line,
            phase=_PHASES[phase],
        )
        for module, aten, file, line, phase in record["n"]
    ]
    return Marker(
        kernel=record["k"],
        backward=bool(record["b"]),
        token=record["p"],
        root=pick(modules, record["r"]),
        owners=[owners[i] for i in record["o"]],
        variables={
            name: tuple(owners[i] for i in (numbers if isinstance(numbers, list) else [numbers]))
            for name, numbers in record["x"].items()
        },
        stores={name: owners[i] for name, i in record["s"].items()},
        checksums={
            (record["f"][f], line): Checksum(value, bool(unique))
            for f, line, value, *more in record.get("t", ())
            for unique in more or [0]
        },
        inputs=dict(record.get("i", {})),
    )
