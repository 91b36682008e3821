"""The built library keeps to the stable ABI of torch and to no ABI of Python.

A single symbol of `at::` or `c10::` would tie it to one torch version, a single one of CPython to
one Python version. `nm` comes with binutils, which g++ needs: a missing one is an error, no skip.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from flagprism_torch.records import native

UNSTABLE = re.compile(r"\b(?:at|c10|caffe2|torch)::|\b_?Py[A-Z_]\w*")


def undefined_symbols(library: Path) -> list[str]:
    """What `library` needs from others, C++ names demangled."""
    command = ["nm", "-DC", "--undefined-only", str(library)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split(maxsplit=1)[1] for line in lines if line.strip()]


def unstable(symbols: list[str]) -> list[str]:
    return [symbol for symbol in symbols if UNSTABLE.search(symbol)]


def test_only_stable_symbols_are_needed():
    symbols = undefined_symbols(native.library_path())
    assert any("torch_parallel_for" in symbol for symbol in symbols), "nm read nothing useful"
    assert unstable(symbols) == []


@pytest.mark.parametrize(
    "source",
    [
        "namespace at { int f(); } int g() { return at::f(); }",
        "namespace c10 { struct T { T(); }; } void g() { c10::T t; }",
        'extern "C" int PyList_New(long); int g() { return PyList_New(0); }',
        'extern "C" int _Py_IncRef(long); int g() { return _Py_IncRef(0); }',
    ],
)
def test_the_guard_sees_forbidden_symbols(source: str, tmp_path: Path):
    library = tmp_path / "bad.so"
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    assert len(unstable(undefined_symbols(library))) == 1


def test_no_library_of_python_is_linked():
    command = ["readelf", "-d", str(native.library_path())]
    dynamic = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert "libtorch_cpu.so" in needed
    assert [name for name in needed if "python" in name] == []
