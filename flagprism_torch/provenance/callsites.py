"""Call site in a generated wrapper -> where the launch comes from.

Needs no hook and no state of the compiling process: the wrapper file says it, by the recorder's
markers, or by the comments that Inductor always writes (models compiled before the recorder).
Relied on (torch 2.11 to 2.14): launch lines `name.run(...)`, the comments "AOT ID: ['0_forward']"
and "Topologically Sorted Source Nodes: [...], Original ATen: [...]" (torch/_inductor/utils.py,
`get_kernel_metadata`), extern calls `extern_kernels.addmm(...)`, `torch.ops.aten.x.default(...)`.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, MappingProxyType

import torch

from flagprism_torch.provenance import markers
from flagprism_torch.provenance.modules import ModuleNames, Running, label
from flagprism_torch.records.model import NO_MODULE, Origin, Phase, StatementOrigin

_INDUCTOR = str(Path(torch.__file__).parent / "_inductor") + "/"
_PACKAGE = str(Path(__file__).parents[1]) + "/"
_LAUNCH = re.compile(r"^\s*(\w+)\.run\(")
_EXTERN = re.compile(r"\b(?:extern_kernels\.\w+|torch\.ops\.\w+\.\w+(?:\.\w+)?)\(")
_COMMENT = re.compile(r"# Topologically Sorted Source Nodes: \[.*?\], Original ATen: \[(.*)\]")
_AOT = re.compile(r"^# AOT ID: \['[^']*_(forward|backward|inference)'\]")
_VARIABLE = re.compile(r"_?(tmp\d+)(?:_|$)")


@dataclass
class _Wrapper:
    """What one generated file says. Marks (kernel name -> marker comments)
    and comments are sorted by line."""

    stamp: tuple[int, int]
    generated: bool = False
    phase: Phase = "none"
    marks: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    comments: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    launches: dict[int, str] = field(default_factory=dict)  # line -> name in the wrapper
    calls: list[int] = field(default_factory=list)  # lines of launches and extern calls
    externs: Counter[str] = field(default_factory=Counter)
    decoded: dict[int, markers.Marker | None] = field(default_factory=dict)


_wrappers: dict[str, _Wrapper] = {}  # a parse cache; files are immutable but can be removed
_lock = threading.Lock()
_MAX_WRAPPERS = 1024
_MAX_RESOLVED = 1 << 16


def locate(frame: FrameType, kernel_name: str, names: ModuleNames) -> tuple[str, Origin]:
    """(key of the call site, origin) of the launch of `kernel_name` that `frame` is part of.

    `frame` is the caller of the launch (or any frame below it). The key is "<file>:<line>" of the
    launching line plus "|<module>" where the line alone does not tell modules apart: eager
    launches, and compiled code that several modules share (layers compiled one by one run the same
    wrapper).
    """
    site = launching_frame(frame)
    file, line = site if site is not None else ("<unknown>", 0)
    origin, running = None, None
    if site is not None and _is_generated(file):
        running, phase = names.running(frame)
        cached = (file, line, kernel_name, running, names.version)
        if cached not in names.resolved:
            if len(names.resolved) >= _MAX_RESOLVED:
                names.resolved.clear()
            names.resolved[cached] = resolve(file, line, kernel_name, names, running)
        origin = names.resolved[cached]
        if origin is not None and origin.phase == "none":
            origin = replace(origin, phase=phase)
    if origin is None:
        origin = names.locate(frame)
        return f"{file}:{line}|{origin.module}", origin
    shared = "" if running is None else f"|{running.name or label(running.root_cls)}"
    return f"{file}:{line}{shared}", origin


def resolve(
    filename: str,
    lineno: int,
    kernel_name: str,
    names: ModuleNames | None = None,
    running: Running | None = None,
) -> Origin | None:
    """Origin of the launch of `kernel_name` at `filename:lineno`.

    Args:
        filename, lineno: of the launching frame (`launching_frame`), in a generated wrapper.
        kernel_name: of the launched kernel; for a multi-kernel the name of the picked choice.
        names: the session's module names. With them, and in the process that compiled, names are
            absolute ones of the given root; otherwise they are relative to what was compiled.
        running: the module whose forward or backward launches (`ModuleNames.running`). If it is
            an instance of what was compiled, names are relative to it: one wrapper can serve many
            modules, and ids in a wrapper from a cache are those of another module.

    Returns:
        Origin with source "recorded" (statements included) or "comments" (ATen ops and phase only,
        and `running` as its module), or None if the file is no wrapper or says nothing about that
        line.
    """
    wrapper = _wrapper(filename)
    if wrapper is None:
        return None
    # The name at the launch line is the recorded one, except for a multi-kernel's choice.
    for name in (wrapper.launches.get(lineno), kernel_name):
        at = _last_before(wrapper.marks.get(name or "", []), lineno)
        if at is None:
            continue
        line, text = at
        if line not in wrapper.decoded:
            wrapper.decoded[line] = markers.decode(text)
        marker = wrapper.decoded[line]
        if marker is not None:
            return _origin(marker, names, running)
    return _from_comments(wrapper, lineno, running)


def owner(
    origin: Origin,
    variable: str | None,
    pointer: str | None = None,
    statement: str = "",
) -> StatementOrigin:
    """Owner of a value of a kernel: that of the statement (`statement_of`), else the launch's.

    What the statement does not know itself is taken from the launch: the phase, and one name for
    several modules.
    """
    found = statement_of(origin, variable, pointer, statement)
    if found is None:
        found = StatementOrigin(
            module=origin.module,
            modules=origin.modules,
            aten=", ".join(origin.aten) or None,
            model_file=origin.model_file,
            model_line=origin.model_line,
        )
    if found.module == NO_MODULE and found.modules:
        found = replace(found, module=common_prefix(list(found.modules)) or NO_MODULE)
    return found if found.phase != "none" else replace(found, phase=origin.phase)


def statement_of(
    origin: Origin, variable: str | None, pointer: str | None = None, statement: str = ""
) -> StatementOrigin | None:
    """Owner of a value of a generated kernel as it was recorded, None if the map has none.

    Args:
        variable: the value's name in the kernel text (or in Triton's locations); accumulators
            (`_tmp7`), parts (`tmp7_mean`) and workspaces (`tmp7_ws`) belong to `tmp7`.
        pointer: for a store or an atomic, the argument it goes through; it is asked first.
        statement: source text, asked last: the variable that it assigns, or that it stores.
    """
    for name in (pointer, variable):
        found = _known(origin, name)
        if found is not None:
            return found
    if not origin.statements:
        return None
    return _known(origin, _variable_in(statement)) or origin.statements.get(markers.REST)


def _known(origin: Origin, name: str | None) -> StatementOrigin | None:
    if name is None:
        return None
    part = _VARIABLE.match(name)
    return origin.statements.get(name) or origin.statements.get(part[1] if part else "")


@functools.lru_cache(maxsize=1 << 16)
def _variable_in(statement: str) -> str | None:
    try:
        (line,) = ast.parse(statement.strip()).body
    except (SyntaxError, ValueError):
        return None  # no whole statement
    value: ast.AST | None = None
    if isinstance(line, ast.Assign):
        value = line.targets[0]
    elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Call):
        value = line.value.args[1] if len(line.value.args) > 1 else None
    names = [n.id for n in ast.walk(value) if isinstance(n, ast.Name)] if value else []
    return next((name for name in names if _VARIABLE.match(name)), None)


def extern_calls(filename: str) -> Counter[str]:
    """Calls of one run of a wrapper that are no Triton kernel: `extern_kernels.addmm`,
    `torch.ops.aten.sort.default`, C++ kernels `cpp_fused_...`. Empty for other files."""
    wrapper = _wrapper(filename)
    return Counter() if wrapper is None else Counter(wrapper.externs)


def launching_frame(frame: FrameType | None) -> tuple[str, int] | None:
    """(file, line) of the generated wrapper or user code that launches, seen from `frame`.

    Skips Inductor's own frames (multi-kernel dispatch, the autotuner) and this package's.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_INDUCTOR, _PACKAGE)):
            return file, frame.f_lineno
        frame = frame.f_back
    return None


def _is_generated(filename: str) -> bool:
    """Whether a file is a wrapper; parsed once, so that later launches only look it up."""
    with _lock:
        known = _wrappers.get(filename)
    wrapper = known if known is not None else _wrapper(filename)
    return wrapper is not None and wrapper.generated


# ---- reading the file ----


def _wrapper(filename: str) -> _Wrapper | None:
    try:
        status = Path(filename).stat()
    except (OSError, ValueError):
        return None
    stamp = (status.st_mtime_ns, status.st_size)
    with _lock:
        known = _wrappers.get(filename)
    if known is not None and known.stamp == stamp:
        return known
    try:
        text = Path(filename).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    parsed = _parse(text, stamp)
    with _lock:
        while len(_wrappers) >= _MAX_WRAPPERS:
            _wrappers.pop(next(iter(_wrappers)))
        _wrappers[filename] = parsed
    return parsed


def _parse(text: str, stamp: tuple[int, int]) -> _Wrapper:
    wrapper = _Wrapper(stamp)
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith(markers.PREFIX):
            kernel = _kernel_of(stripped)
            if kernel is not None:
                wrapper.marks.setdefault(kernel, []).append((number, stripped))
        elif stripped.startswith("#"):
            if found := _COMMENT.match(stripped):
                atens = tuple(a.strip() for a in found[1].split(",") if a.strip())
                wrapper.comments.append((number, atens))
            elif found := _AOT.match(stripped):
                wrapper.phase = "backward" if found[1] == "backward" else "forward"
        elif found := _LAUNCH.match(line):
            wrapper.launches[number] = found[1]
            wrapper.calls.append(number)
        elif _EXTERN.search(line):
            wrapper.calls.append(number)
    wrapper.generated = bool(wrapper.marks) or wrapper.phase != "none"
    if wrapper.generated:
        wrapper.externs = _externs(text)
    return wrapper


def _kernel_of(text: str) -> str | None:
    """Kernel name of a marker, without decoding all of a plain one."""
    plain = re.search(r'"k":"(\w+)"', text)
    if plain:
        return plain[1]
    marker = markers.decode(text)
    return None if marker is None else marker.kernel


def _externs(text: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return counts
    bodies = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and _is_call_body(node.name)
    ]
    for body in bodies:
        for node in ast.walk(body):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name.startswith(("extern_kernels.", "torch.ops.", "cpp_")):
                    counts[name] += 1
    return counts


def _is_call_body(name: str) -> bool:
    return name == "call" or name.startswith(("partition_", "subgraph_"))


def _last_before(found: list[tuple[int, str]], lineno: int) -> tuple[int, str] | None:
    best = None
    for line, text in found:
        if line >= lineno:
            break
        best = (line, text)
    return best


# ---- what was read -> Origin ----


def _origin(marker: markers.Marker, names: ModuleNames | None, running: Running | None) -> Origin:
    reader = _Reader(marker, names, running)
    owners = [reader.checked(owner) for owner in marker.owners]
    placed = [reader.place(owner) for owner in owners]
    line = next((o for o in reversed(owners) if o.file is not None), None)
    statements = {name: reader.statement(shared) for name, shared in marker.variables.items()}
    statements |= {name: reader.statement((owner,)) for name, owner in marker.stores.items()}
    return Origin(
        module=reader.module(placed),
        modules=tuple(dict.fromkeys(_name(p) for p in placed if p is not None)),
        phase=_site_phase(marker),
        aten=tuple(dict.fromkeys(o.aten for o in marker.owners if o.aten is not None)),
        model_file=line.file if line else None,
        model_line=line.line if line else None,
        source="stale" if reader.stale else "recorded",
        statements=MappingProxyType(statements),
        inputs=MappingProxyType({} if reader.stale else marker.inputs),  # may be renamed
    )


_Place = tuple[str, str]  # (class of the root, name; "" for the root itself)


def _name(place: _Place) -> str:
    return place[1] or label(place[0])


class _Reader:
    """Gives the modules of one marker their names in this process."""

    def __init__(
        self, marker: markers.Marker, names: ModuleNames | None, running: Running | None
    ) -> None:
        self.names = names
        self.base: Running | None = None
        self.own = marker.token == markers.PROCESS_TOKEN
        self.ids_valid = names is not None and self.own
        self.checksums = marker.checksums
        self.lines: dict[tuple[str, int], int | None] = {}  # where they are now
        self.stale = False  # something no longer matched (markers, Note [Stale markers])
        root = marker.root
        if (
            running is not None
            and root is not None
            and running.cls == root.cls
            and not (self.ids_valid and root.key == str(running.module_id))
        ):
            self.base = running
        self.known: dict[markers.ModuleRef, _Place | None] = {}

    def checked(self, owner: markers.Owner) -> markers.Owner:
        """The owner, with its place in the source as it is now, None if that cannot be told."""
        if self.own or owner.file is None or owner.line is None:
            return owner
        at = (owner.file, owner.line)
        if at not in self.lines:
            self.lines[at] = self._line_now(*at)
        line = self.lines[at]
        if line is None:
            self.stale = True
        return replace(owner, file=None if line is None else owner.file, line=line)

    def _line_now(self, file: str, line: int) -> int | None:
        """markers, Note [Stale markers]."""
        wanted = self.checksums.get((file, line))
        if wanted is None or not _is_loaded(file):
            return None
        linecache.checkcache(file)
        found = markers.lines_of(file).get(wanted.value, [])
        if line in found:
            return line
        return found[0] if wanted.unique and len(found) == 1 else None

    def place(self, owner: markers.Owner) -> _Place | None:
        ref = owner.module
        if ref is None:
            return None
        if ref not in self.known:
            root, name = self._absolute(ref) or (ref.root_cls, ref.fqn)
            self.known[ref] = (root, name)
            if not self.own and self.names is not None and self.names.knows(root, name) is False:
                self.stale, self.known[ref] = True, None
        return self.known[ref]

    def _absolute(self, ref: markers.ModuleRef) -> _Place | None:
        if self.base is not None:
            return self.base.root_cls, ".".join(filter(None, (self.base.name, ref.fqn)))
        number = ref.key.partition("@")[0]
        if not self.ids_valid or self.names is None or not number.isdigit():
            return None
        found = self.names.by_id(int(number), ref.cls)
        return None if found is None else (found[1], found[0])

    def module(self, places: list[_Place | None]) -> str:
        """One name for several owners. Ops outside any module do not count beside others."""
        owned = [p for p in places if p is not None]
        if not owned:
            return NO_MODULE
        roots = {root for root, _ in owned}
        if len(roots) > 1:
            return (self.names.root_label() if self.names else None) or NO_MODULE
        return _name((roots.pop(), common_prefix([name for _, name in owned])))

    def statement(self, owners: tuple[markers.Owner, ...]) -> StatementOrigin:
        owners = tuple(self.checked(owner) for owner in owners)
        first = owners[0]
        places = [self.place(owner) for owner in owners]
        return StatementOrigin(
            module=self.module(places),
            modules=tuple(dict.fromkeys(_name(p) for p in places if p is not None)),
            aten=first.aten,
            model_file=first.file,
            model_line=first.line,
            phase=first.phase,
        )


def _is_loaded(file: str) -> bool:
    """Whether a source file is part of this program."""
    global _loaded
    if _loaded[0] != len(sys.modules):
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        _loaded = (len(sys.modules), frozenset(str(Path(f).absolute()) for f in files if f))
    return str(Path(file).absolute()) in _loaded[1]


_loaded: tuple[int, frozenset[str]] = (-1, frozenset())


def common_prefix(names: list[str]) -> str:
    """Deepest common module name, whole components: [a.b.c, a.b.d] -> a.b; "" if none."""
    shared: list[str] = []
    for parts in zip(*(name.split(".") for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def _site_phase(marker: markers.Marker) -> Phase:
    """A launch of a backward graph is backward, also where it recomputes forward values; one of a
    forward graph can prepare values for the backward."""
    phases = {owner.phase for owner in marker.owners}
    if "optimizer" in phases:
        return "optimizer"
    if marker.backward or phases == {"backward"}:
        return "backward"
    return "forward" if phases else "none"


def _from_comments(wrapper: _Wrapper, lineno: int, running: Running | None) -> Origin | None:
    """Inductor's comment for the launch: the last one above it with no other call between."""
    above = [(line, atens) for line, atens in wrapper.comments if line < lineno]
    if not above:
        return None
    line, atens = above[-1]
    if any(line < call < lineno for call in wrapper.calls):
        return None
    if running is None:
        return Origin(phase=wrapper.phase, aten=atens, source="comments")
    module = running.name or label(running.root_cls)
    return Origin(module, (module,), wrapper.phase, atens, source="comments")
