"""The C++ extension against a NumPy oracle of the meaning of merging (records/layout.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flagprism_torch.errors import ExtensionMissingError
from flagprism_torch.records import native
from flagprism_torch.records.layout import HIST_BUCKETS, RECORD_DTYPE, RECORD_WORDS

COUNTERS = ("executions", "live", "nan", "posinf", "neginf", "zero")
MAXIMA = ("min_key", "max_key", "first")


def tensor_of(records: np.ndarray) -> torch.Tensor:
    """Structured records [...] as int32 words [..., 24]."""
    words = np.ascontiguousarray(records).view("<i4")
    return torch.from_numpy(words.reshape(*records.shape, RECORD_WORDS).copy())


def records_of(tensor: torch.Tensor) -> np.ndarray:
    """int32 words [n * 24] or [n, 24] as structured records [n]."""
    return tensor.numpy().reshape(-1).view(RECORD_DTYPE)


def oracle(records: np.ndarray) -> np.void:
    """The merge of records [n], written independently of record.h: per field, not per record."""
    out = np.zeros((), RECORD_DTYPE)
    for name in COUNTERS:
        out[name] = sum(int(value) for value in records[name])
    for name in MAXIMA:
        out[name] = max((int(value) for value in records[name]), default=0)
    out["sum"] = np.sum(records["sum"])
    filled = records[records["sumsq"] != 0]
    if len(filled):
        scale = int(filled["scale"].max())
        shift = 2 * (filled["scale"].astype(np.int64) - scale)
        out["scale"] = scale
        out["sumsq"] = np.sum(filled["sumsq"] * np.exp2(shift.astype(np.float64)))
    return out


def random_records(shape: tuple[int, ...], seed: int, scales: tuple[int, ...]) -> np.ndarray:
    """Records with whole-numbered sums, so that floating-point addition is exact in any order."""
    rng = np.random.default_rng(seed)
    records = np.zeros(shape, RECORD_DTYPE)
    for name in COUNTERS:
        records[name] = rng.integers(0, 2**40, shape)
    for name in MAXIMA:
        records[name] = rng.integers(0, 2**64, shape, dtype=np.uint64)
    records["sum"] = rng.integers(-1000, 1000, shape)
    records["sumsq"] = rng.integers(0, 1000, shape)
    records["scale"] = rng.choice(scales, shape)
    return records


def test_new_buffer_is_zeroed():
    dirty = torch.full((4096,), -1, dtype=torch.int32)
    del dirty  # the allocator is likely to hand out the same memory
    buffer = native.new_buffer(4096, "cpu")
    assert buffer.dtype == torch.int32 and buffer.shape == (4096,)
    assert buffer.device == torch.device("cpu") and not buffer.any()


def test_copy_to_host_is_a_copy():
    source = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    host = native.copy_to_host(source)
    source.zero_()
    assert host.dtype == torch.int32 and host.tolist() == np.arange(12).reshape(3, 4).tolist()


@pytest.mark.parametrize(
    ("slots", "ops"), [(0, 2), (1, 1), (3, 5), (1023, 2), (1024, 2), (1025, 3), (5000, 1)]
)
def test_fold_matches_numpy(slots: int, ops: int):
    records = random_records((slots, ops), seed=slots, scales=(0, 0, 3, -7))
    out = torch.full((ops * RECORD_WORDS,), -1, dtype=torch.int32)
    native.fold(tensor_of(records).reshape(-1), out, slots, ops)
    expected = np.array([oracle(records[:, op]) for op in range(ops)])
    assert records_of(out).tolist() == expected.tolist()


def test_fold_counts_beyond_32_bits():
    records = np.zeros((3, 1), RECORD_DTYPE)
    records["live"] = [[2**31], [2**31 - 1], [2**62]]
    records["nan"] = [[2**32 - 1], [1], [0]]
    out = native.new_buffer(RECORD_WORDS, "cpu")
    native.fold(tensor_of(records).reshape(-1), out, 3, 1)
    assert records_of(out)["live"][0] == 2**62 + 2**32 - 1
    assert records_of(out)["nan"][0] == 2**32


def test_fold_does_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(0)
    records = random_records((20_000, 2), seed=1, scales=(0,))
    records["sum"] = rng.standard_normal((20_000, 2))  # inexact: the order of additions shows
    records["sumsq"] = rng.random((20_000, 2))
    scratch, results = tensor_of(records).reshape(-1), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            out = native.new_buffer(2 * RECORD_WORDS, "cpu")
            native.fold(scratch, out, 20_000, 2)
            results.append(out.tolist())
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1] == results[2]
    folded = records_of(torch.tensor(results[0], dtype=torch.int32))
    np.testing.assert_allclose(folded["sum"], records["sum"].sum(0), rtol=1e-12)


def test_fold_reads_memory_that_is_not_aligned_to_8_bytes():
    records = random_records((4, 1), seed=3, scales=(0,))
    storage = torch.zeros(1 + 4 * RECORD_WORDS, dtype=torch.int32)
    scratch = storage[1:]
    scratch.copy_(tensor_of(records).reshape(-1))
    out = torch.zeros(1 + RECORD_WORDS, dtype=torch.int32)[1:]
    native.fold(scratch, out, 4, 1)
    assert out.tolist() == tensor_of(np.array([oracle(records[:, 0])])).reshape(-1).tolist()


def test_merge_adds_into_the_indexed_rows_only():
    records = random_records((50,), seed=4, scales=(0, 2))
    start = random_records((4,), seed=5, scales=(0, -3))
    index = np.random.default_rng(6).integers(0, 3, 50)  # row 3 stays as it is
    totals = tensor_of(start)
    native.merge(tensor_of(records), torch.from_numpy(index), totals)
    expected = [
        oracle(np.concatenate([start[row : row + 1], records[index == row]])) for row in range(3)
    ]
    assert records_of(totals).tolist() == [e.tolist() for e in expected] + [start[3].tolist()]


def test_merge_rescales_squares_beyond_the_range_of_float64():
    records = np.zeros(2, RECORD_DTYPE)
    records["live"] = 1
    records["sumsq"], records["scale"] = [1.5, 1.0], [600, 598]  # 1.5 * 2**1200, 2**1196
    totals = torch.zeros(1, RECORD_WORDS, dtype=torch.int32)
    native.merge(tensor_of(records), torch.zeros(2, dtype=torch.int64), totals)
    merged = records_of(totals)[0]
    assert merged["scale"] == 600 and merged["sumsq"] == 1.5 + 2.0**-4


@pytest.mark.parametrize("empty_scale", [-(2**31), -5, 0, 7, 2**31 - 1])
def test_scale_of_an_empty_record_does_not_matter(empty_scale: int):
    records = np.zeros(2, RECORD_DTYPE)
    records["scale"] = [empty_scale, 3]
    records["live"], records["sumsq"] = [0, 1], [0, 2.5]
    for order in ([0, 1], [1, 0]):
        totals = torch.zeros(1, RECORD_WORDS, dtype=torch.int32)
        native.merge(tensor_of(records[order]), torch.zeros(2, dtype=torch.int64), totals)
        assert records_of(totals)[0]["sumsq"] == 2.5 and records_of(totals)[0]["scale"] == 3


def test_merge_survives_extreme_scales():
    records = np.zeros(2, RECORD_DTYPE)
    records["sumsq"], records["scale"] = 1.0, [-(2**31), 2**31 - 1]
    totals = torch.zeros(1, RECORD_WORDS, dtype=torch.int32)
    native.merge(tensor_of(records), torch.zeros(2, dtype=torch.int64), totals)
    assert records_of(totals)[0]["sumsq"] == 1.0 and records_of(totals)[0]["scale"] == 2**31 - 1


RECORD = st.builds(
    lambda counters, keys, whole, squares, scale: np.array(
        (*counters, *keys[:2], whole, squares, keys[2], scale, 0), RECORD_DTYPE
    ),
    st.lists(st.integers(0, 2**60), min_size=6, max_size=6),
    st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3),
    st.integers(-(2**20), 2**20),
    st.integers(0, 2**20),
    st.integers(-4, 4),
)


def merged(*records: np.ndarray) -> np.ndarray:
    totals = torch.zeros(1, RECORD_WORDS, dtype=torch.int32)
    index = torch.zeros(len(records), dtype=torch.int64)
    native.merge(tensor_of(np.stack(records)), index, totals)
    return records_of(totals)[0]


@settings(max_examples=100, deadline=None)
@given(RECORD, RECORD, RECORD)
def test_merging_is_associative_and_commutative(a: np.ndarray, b: np.ndarray, c: np.ndarray):
    expected = oracle(np.stack([a, b, c])).tolist()
    assert merged(a, b, c).tolist() == expected
    assert merged(c, b, a).tolist() == expected
    assert merged(a, merged(b, c)).tolist() == expected
    assert merged(merged(a, b), c).tolist() == expected


@settings(max_examples=50, deadline=None)
@given(RECORD)
def test_the_empty_record_is_the_identity(a: np.ndarray):
    empty = np.zeros((), RECORD_DTYPE)
    assert merged(a, empty).tolist() == merged(empty, a).tolist() == oracle(a[None]).tolist()


def test_merge_histograms_matches_numpy():
    rng = np.random.default_rng(7)
    counts = rng.integers(0, 2**40, (30, HIST_BUCKETS))
    index = rng.integers(0, 4, 30)
    totals = rng.integers(0, 2**40, (5, HIST_BUCKETS))
    expected = totals.copy()
    np.add.at(expected, index, counts)
    actual = torch.from_numpy(totals)
    native.merge_histograms(torch.from_numpy(counts), torch.from_numpy(index), actual)
    assert actual.tolist() == expected.tolist()


def test_empty_merges_change_nothing():
    totals, none = torch.ones(2, RECORD_WORDS, dtype=torch.int32), torch.zeros(0, dtype=torch.int64)
    native.merge(torch.zeros(0, RECORD_WORDS, dtype=torch.int32), none, totals)
    histograms = torch.ones(2, HIST_BUCKETS, dtype=torch.int64)
    native.merge_histograms(torch.zeros(0, HIST_BUCKETS, dtype=torch.int64), none, histograms)
    assert totals.eq(1).all() and histograms.eq(1).all()


I32, I64, F32 = torch.int32, torch.int64, torch.float32
WORDS = torch.zeros(2 * RECORD_WORDS, dtype=I32)
ROWS = WORDS.view(2, RECORD_WORDS)
INDEX = torch.zeros(2, dtype=I64)
COUNTS = torch.zeros(2, HIST_BUCKETS, dtype=I64)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: native.new_buffer(0, "cpu"), ValueError, "words=0 .* allowed: 1 and more"),
        (lambda: native.new_buffer(1.5, "cpu"), TypeError, r"words=1.5 has type float"),
        (lambda: native.new_buffer(True, "cpu"), TypeError, "words=True has type bool"),
        (lambda: native.new_buffer(1, 0), TypeError, "device=0 has type int"),
        (lambda: native.new_buffer(1, "gpu"), ValueError, "device='gpu' is no device"),
        (lambda: native.new_buffer(1, "meta"), ValueError, "'meta' is not available; allowed: cpu"),
        (lambda: native.copy_to_host([1]), TypeError, "source has type list"),
        (lambda: native.copy_to_host(ROWS.t()), ValueError, "source has strides"),
        (lambda: native.fold(WORDS, WORDS, 2, 0), ValueError, "ops=0"),
        (lambda: native.fold(WORDS, WORDS, -1, 1), ValueError, "slots=-1"),
        (lambda: native.fold(WORDS, WORDS[:24], 3, 1), ValueError, r"scratch .*allowed: \(72\)"),
        (lambda: native.fold(WORDS, WORDS, 2, 1), ValueError, r"out has shape \(48,\)"),
        (lambda: native.fold(WORDS.float(), WORDS, 1, 2), TypeError, "scratch has dtype .*float32"),
        (lambda: native.fold(WORDS.to("meta"), WORDS, 1, 2), ValueError, "scratch is on meta"),
        (lambda: native.fold(np.zeros(48), WORDS, 1, 2), TypeError, "scratch has type ndarray"),
        (lambda: native.merge(WORDS, INDEX, ROWS), ValueError, r"records .*\(any, 24\)"),
        (lambda: native.merge(ROWS, INDEX[:1], ROWS), ValueError, r"index has shape \(1,\)"),
        (
            lambda: native.merge(ROWS, INDEX + 2, ROWS),
            ValueError,
            "the value 2;.* 0 to 1",
        ),
        (lambda: native.merge(ROWS, INDEX - 1, ROWS), ValueError, "index has the value -1"),
        (lambda: native.merge(ROWS, INDEX.int(), ROWS), TypeError, "index has dtype torch.int32"),
        (lambda: native.merge(ROWS, INDEX, ROWS.long()), TypeError, "totals has dtype"),
        (lambda: native.merge_histograms(COUNTS.int(), INDEX, COUNTS), TypeError, "counts has"),
        (lambda: native.merge_histograms(COUNTS, INDEX, ROWS), TypeError, "totals has dtype"),
        (lambda: native.merge_histograms(COUNTS, INDEX + 9, COUNTS), ValueError, "the value 9"),
        (
            lambda: native.merge(torch.zeros(24, 2, dtype=I32).t(), INDEX, ROWS),
            ValueError,
            r"records has strides \(1, 2\)",
        ),
    ],
)
def test_arguments_are_validated(call, error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        call()


def test_operators_themselves_never_write_outside():
    """The door validates; a caller who goes around it gets an error and no corruption."""
    native.record_layout()  # loads the library
    with pytest.raises(RuntimeError):
        torch.ops.flagprism_torch.merge(ROWS, INDEX + 5, ROWS)
    with pytest.raises(RuntimeError):
        torch.ops.flagprism_torch.fold(WORDS, WORDS, 3, 1)


def test_missing_library_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "PACKAGE", tmp_path)
    with pytest.raises(ExtensionMissingError, match=r"no _C\*\.so .*pip install -e \. --no-build"):
        native.library_path()


def test_broken_library_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "_C.abi3.so").write_bytes(b"not a library")
    monkeypatch.setattr(native, "PACKAGE", tmp_path)
    with pytest.raises(ExtensionMissingError, match=r"_C\.abi3\.so.*(invalid ELF|file too short)"):
        native._ops.__wrapped__()


def test_importing_the_door_does_not_load_the_library():
    code = (
        "import torch, flagprism_torch.records.native as native\n"
        "assert 'new_buffer' not in dir(torch.ops.flagprism_torch)\n"
        "assert native._ops.cache_info().currsize == 0\n"
        "native.new_buffer(1, 'cpu')\n"
        "assert native._ops.cache_info().currsize == 1\n"
    )
    root = Path(native.__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
