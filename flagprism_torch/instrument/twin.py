"""Twins: a second compilation of a kernel with probes and one hidden argument.

Note [Twins]
The original stays untouched. A twin has the original's source, options and constants, and a hash of
its own, so Triton's caches hold both side by side. Its op table is kept beside its binary in
Triton's cache, because a cache hit skips the rewriting. Relied on: `triton.compile` calls
`src.hash()` for the key and `src.make_ir(target, options, codegen_fns, module_map, context)` for
the first module (triton/compiler/compiler.py, 3.6.0 to 3.9.0), then runs the backend's stages from
`ttir` on.

Note [Stepping down]
A twin that cannot be built is tried again with fewer probes, then with stored values only; if that
fails too the launch runs the original. The coverage says which, and why.

Note [Threads]
Twins of different kernels are compiled at the same time, by threads that launch and by those of
`hooks/ahead.py`. Triton allows that (AsyncCompileMode compiles on threads of an executor): an MLIR
context belongs to one compilation, files of its cache appear by renaming, and the LLVM options it
sets are the same for every kernel of a device. A twin that two threads want is compiled by one; the
other finds it in Triton's cache.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
from triton._C.libtriton import ir
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.cache import get_cache_manager

from flagprism_torch.backends.profile import Profile, profile_of
from flagprism_torch.errors import InstrumentationError
from flagprism_torch.instrument.address_text import pointers_of
from flagprism_torch.instrument.codegen import ProbeText, parse_module
from flagprism_torch.instrument.facts import members
from flagprism_torch.instrument.full_text import FullRequest
from flagprism_torch.instrument.hints import hints
from flagprism_torch.instrument.plan import make_plan, values_to_watch
from flagprism_torch.instrument.rewrite import HIDDEN, instrument
from flagprism_torch.instrument.watch_text import watch_table, watched
from flagprism_torch.ir.module import Module
from flagprism_torch.records.address_model import AccessEntry
from flagprism_torch.records.full_model import FullPlan
from flagprism_torch.records.hint_model import Hint
from flagprism_torch.records.model import CheckEntry, OpEntry, Operand, OpTable, TracePoint

_TABLE_FILE = "flagprism.json"
# hash of a twin's binary -> its table: threads that compile one kernel at the same time get several
# binaries of it, whose records must still merge
_tables: weakref.WeakValueDictionary[str, OpTable] = weakref.WeakValueDictionary()
_compiling: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
_lock = threading.Lock()  # for the two above, never held while something is compiled


@dataclass(frozen=True)
class Recipe:
    """What a twin records. `slots`: 0 for one slot per program, else the number of shared slots.
    `early`: what may be the last that a program does is noted before it (instrument.trace). `full`:
    what is written down lane by lane."""

    level: int
    max_values: int
    histograms: bool
    slots: int = 0
    stores_only: bool = False
    addr_level: int = 0
    guard: bool = False
    early: bool = False
    full: FullRequest | None = None

    @property
    def addresses(self) -> bool:
        """Whether the twin looks at addresses, and takes extents (instrument.address_text)."""
        return self.addr_level > 0 or self.guard or self.early

    def key(self) -> str:
        return f"{self}-{_sources_hash()}"

    def steps(self) -> list[Recipe]:
        """This recipe, then cheaper ones (Note [Stepping down])."""
        plain = replace(self, full=None)
        fewer = [replace(plain, max_values=n) for n in (16, 4) if n < self.max_values]
        whole = [self] if self.full is None else [self, plain]
        return [*whole, *fewer, replace(plain, stores_only=True)]


@functools.lru_cache(1)
def _sources_hash() -> str:
    """Hash of everything that shapes a twin: part of its cache key."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for folder in ("instrument", "ir", "records", "backends"):
        for file in sorted((root / folder).glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


class TwinSource(ASTSource):
    """The source of a kernel's twin. `table` is set once `make_ir` ran; `hidden`: names and types
    of the arguments that it has behind the kernel's own."""

    def __init__(
        self,
        fn: Any,
        signature: Mapping[str, Any],
        constants: Mapping[Any, Any],
        attrs: Mapping[Any, Any],
        recipe: Recipe,
    ) -> None:
        super().__init__(fn, dict(signature), dict(constants), dict(attrs))
        self._plain_fn: Any = fn
        self._plain_signature = dict(signature)
        self._recipe = recipe
        self.fn = copy.copy(fn)  # the function belongs to the user or to Inductor
        hidden = HIDDEN
        while any(name.startswith(hidden) for name in fn.arg_names):
            hidden += "_"
        self.hidden = {hidden: "*i32"}
        if recipe.addresses:
            self.hidden |= {f"{hidden}_extent{n}": "i64" for n in range(_pointers(signature))}
        if recipe.full is not None:
            self.hidden[f"{hidden}_values"] = "*i32"
        self.fn.arg_names = [*fn.arg_names, *self.hidden]
        self.signature = {**signature, **self.hidden}
        self.table: OpTable | None = None

    def forget(self) -> None:
        """Let go of the function, once the twin is loaded: it reaches the kernel that the twin is
        kept for (`device_caches`, globals), which would then never be freed. What a launch reads of
        it stays (CompiledKernel.launch_metadata)."""
        names, metadata = self.fn.arg_names, self.fn.launch_metadata
        self.fn = SimpleNamespace(arg_names=names, launch_metadata=metadata)
        self._plain_fn = None
        self.constants: Any = {}

    def hash(self) -> str:
        text = f"{super().hash()}-flagprism-{self._recipe.key()}"
        return hashlib.sha256(text.encode()).hexdigest()

    def make_ir(
        self, target: Any, options: Any, codegen_fns: Any, module_map: Any, context: Any
    ) -> Any:
        fn, signature = self.fn, self.signature
        self.fn, self.signature = self._plain_fn, self._plain_signature
        try:
            module = super().make_ir(target, options, codegen_fns, module_map, context)
        finally:
            self.fn, self.signature = fn, signature
        backend = make_backend(target)
        stages: dict[str, Any] = {}
        backend.add_stages(stages, options, self.language)
        if "ttir" not in stages:
            raise InstrumentationError(f"backend {target.backend} has no ttir stage")
        module = stages["ttir"](module, {})
        text = Module(module.str() if hasattr(module, "str") else str(module))
        recipe, profile = self._recipe, profile_of(target.backend)
        if recipe.level == 0:
            return self._watched(text, backend, options, profile, context)
        plan = make_plan(
            text,
            self._plain_signature,
            recipe.max_values,
            recipe.histograms,
            stores_only=recipe.stores_only,
            addresses=recipe.addresses and profile.pointer_to_int,
            trace=recipe.early,
            full=recipe.full,
            offsets=profile.pointer_to_int,
        )
        extents = sum(kind == "i64" for kind in self.hidden.values())
        if recipe.addresses and len(pointers_of(text.entry)) != extents:
            raise InstrumentationError("pointers of the kernel are not those of its signature")
        if not plan.records:
            raise InstrumentationError("no value to record")
        self.table = plan.table
        if recipe.addr_level:
            found = hints(text, getattr(options, "num_stages", 1))
            self.table = replace(plan.table, hints=found)
        probes = ProbeText(backend, options)
        written = instrument(
            text,
            plan,
            probes,
            threads=profile.threads(options),
            slots=recipe.slots,
            addresses=recipe.addresses,
            guard=recipe.guard,
            early=recipe.early,
            moves=profile.moves,
        )
        result = parse_module(written, context)
        limit = profile.registers(options, "scf.for" in written, "tt.dot " in written)
        if limit is not None:  # what CUDABackend.make_ttgir does with the option `maxnreg`
            result.set_attr("ttg.maxnreg", ir.builder(context).get_int32_attr(limit))
        return _verified(result)

    def _watched(
        self, text: Module, backend: Any, options: Any, profile: Profile, context: Any
    ) -> Any:
        """The module of a level 0 twin."""
        chosen, left_out = values_to_watch(text, self._plain_signature)
        if not chosen:
            raise InstrumentationError("no float value to watch")
        self.table = watch_table(text, chosen, left_out)
        threads, probes = profile.threads(options), ProbeText(backend, options)
        written = watched(text, chosen, probes, threads, profile.moves)
        return _verified(parse_module(written, context))


def _verified(module: Any) -> Any:
    if not module.verify():
        raise InstrumentationError("the instrumented module does not verify")
    return module


def _pointers(signature: Mapping[str, Any]) -> int:
    """How many arguments of a kernel have an extent."""
    flat = [kind for value in signature.values() for kind in members(value)]
    return sum(kind.startswith(("*", "tensordesc")) for kind in flat)


@dataclass(eq=False)
class Twin:
    """A loaded twin. `reason` says why it records less than asked, "" if it does not; `launcher` is
    for hooks whose kernels have launchers of their own; `full`: whether it takes memory for full
    values behind the extents."""

    kernel: Any
    table: OpTable
    slots: int
    reason: str = ""
    launcher: Any = None
    full: bool = False


LaunchFn = Callable[..., Any]  # (record buffer, *extents)
_request = threading.local()


def launching(record: Callable[[Twin, tuple[int, int, int], LaunchFn], Any]) -> _Launching:
    """Scope for one twin launch: `record(twin, grid, call)` must reserve a slot buffer and run
    `call(buffer, *extents)`. It is reached from the twin's own launcher, which alone knows the
    grid."""
    return _Launching(record)


class _Launching:
    def __init__(self, record: Any) -> None:
        self._record = record

    def __enter__(self) -> None:
        self._outer = getattr(_request, "record", None)
        _request.record = self._record

    def __exit__(self, *_: object) -> None:
        _request.record = self._outer


class Building:
    """A twin that is being built. Any thread may compile it; the thread that launches loads it."""

    def __init__(
        self,
        fn: Any,
        signature: Mapping[str, Any],
        constants: Mapping[Any, Any],
        attrs: Mapping[Any, Any],
        target: Any,
        options: Mapping[str, Any],
        recipe: Recipe,
    ) -> None:
        self._kernel = (fn, signature, constants, attrs, target, options)
        self._steps = recipe.steps()
        self._asked = replace(recipe, full=None)
        self._reasons: list[str] = []
        self._compiled: tuple[Any, OpTable] | None = None  # what `_steps[0]` gave
        self._lock = threading.Lock()  # a launch waits here for a thread that compiles

    def compile(self) -> None:
        """Compile the first step that can be compiled. What fails is kept for `finish`."""
        with self._lock:
            while self._compiled is None and self._steps:
                try:
                    self._compiled = _compile(*self._kernel, self._steps[0])
                except Exception as error:
                    self._step_down(error)

    def finish(self) -> Twin:
        """The loaded twin, stepping down as needed.

        Raises:
            InstrumentationError: with the first and the last reason if no step works.
        """
        while True:
            self.compile()
            if self._compiled is None:
                break
            step = self._steps[0]
            try:
                twin = _load(*self._compiled, step)
            except Exception as error:
                self._compiled = None
                self._step_down(error)
                continue
            if self._reasons:
                what = "stored values only" if step.stores_only else f"{step.max_values} values"
                if step == self._asked:
                    what = "no full values"
                twin.reason = f"{what} ({self._reasons[0]})"
            return twin
        reasons = self._reasons
        raise InstrumentationError(
            reasons[0] if len(set(reasons)) == 1 else "; then ".join(reasons[:2])
        )

    def _step_down(self, error: Exception) -> None:
        self._reasons.append(_reason(error))
        # fewer probes would not help
        final = isinstance(error, InstrumentationError) and self._steps[0].full is None
        self._steps = [] if final else self._steps[1:]


def _reason(error: Exception) -> str:
    text = str(error).strip().split("\n")[0][:200]
    return (
        f"{type(error).__name__}: {text}" if not isinstance(error, InstrumentationError) else text
    )


def _compile(
    fn: Any, signature: Any, constants: Any, attrs: Any, target: Any, options: Any, recipe: Recipe
) -> tuple[Any, OpTable]:
    """The compiled kernel of a twin, not loaded, and its table."""
    source = TwinSource(fn, signature, constants, attrs, recipe)
    with _turn(f"{source.hash()}-{target}-{options}"):
        kernel = triton.compile(source, target=target, options=dict(options))
        table = source.table
        store = get_cache_manager(kernel.hash)
        if table is None:
            table = _load_table(store)
            if table is None:  # the table was lost: the rewriting tells it again
                table = _table_again(source, target, options)
        store.put(json.dumps(_table_json(table)), _TABLE_FILE, binary=False)
    with _lock:
        return kernel, _tables.setdefault(kernel.hash, table)


def _turn(key: str) -> threading.Lock:
    """The lock of one twin, forgotten when nobody holds it or waits for it."""
    with _lock:
        return _compiling.setdefault(key, threading.Lock())


def _load(kernel: Any, table: OpTable, recipe: Recipe) -> Twin:
    """Load the binary; OutOfResources surfaces here."""
    twin = Twin(kernel, table, recipe.slots, full=recipe.full is not None)
    inner = kernel.run

    def run(g0: int, g1: int, g2: int, stream: Any, function: Any, *rest: Any) -> Any:
        def call(*hidden: Any) -> Any:
            return inner(g0, g1, g2, stream, function, *rest, *hidden)

        return _request.record(twin, (int(g0), int(g1), int(g2)), call)

    kernel._run = run
    return twin


def _table_again(source: TwinSource, target: Any, options: Any) -> OpTable:
    backend = make_backend(target)
    parsed = backend.parse_options(dict(options))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    codegen = backend.get_codegen_implementation(parsed)
    source.make_ir(target, parsed, codegen, backend.get_module_map(), context)
    assert source.table is not None
    return source.table


def _table_json(table: OpTable) -> dict[str, Any]:
    return asdict(table)


def _load_table(store: Any) -> OpTable | None:
    path = store.get_file(_TABLE_FILE)
    if not path:
        return None
    data = json.loads(Path(path).read_text())
    ops = tuple(OpEntry(**_fields(op)) for op in data.pop("ops"))
    checks = tuple(
        CheckEntry(**_fields(check), operands=tuple(Operand(**o) for o in check.pop("operands")))
        for check in data.pop("checks")
    )
    accesses = tuple(AccessEntry(**_fields(access)) for access in data.pop("accesses"))
    trace = tuple(TracePoint(**point) for point in data.pop("trace"))
    hinted = tuple(Hint(**_fields(hint)) for hint in data.pop("hints"))
    full = FullPlan.from_json(data.pop("full"))
    return OpTable(
        **data, ops=ops, checks=checks, accesses=accesses, trace=trace, hints=hinted, full=full
    )


def _fields(data: dict[str, Any]) -> dict[str, Any]:
    """Fields of an entry as they were before JSON made lists of its tuples."""
    plain = {name: value for name, value in data.items() if name != "operands"}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in plain.items()}
