"""TensorBoard files, read back with TensorBoard's own reader and compared with NumPy."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import block_of, entry_of

from flagprism_torch.analysis import join
from flagprism_torch.exporters.tensorboard import TensorBoardWriter, buckets
from flagprism_torch.records.model import Origin, Row, StatementOrigin

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
NAN, INF = np.nan, np.inf


def _read(logdir: Path) -> Any:
    events = accumulator.EventAccumulator(
        str(logdir), size_guidance={accumulator.SCALARS: 0, accumulator.HISTOGRAMS: 0}
    )
    events.Reload()
    return events


def _scalars(events: Any, base: str) -> dict[str, float]:
    tags = [tag for tag in events.Tags()["scalars"] if tag.rpartition("/")[0] == base]
    return {tag.rpartition("/")[2]: events.Scalars(tag)[-1].value for tag in tags}


def _expected(array: np.ndarray) -> dict[str, float]:
    lanes = array.astype(np.float64)
    finite = lanes[np.isfinite(lanes)]
    result = {
        "live": lanes.size,
        "nan": np.isnan(lanes).sum(),
        "posinf": (lanes == INF).sum(),
        "neginf": (lanes == -INF).sum(),
        "zero": (lanes == 0).sum(),
    }
    if finite.size:
        result |= {"min": finite.min(), "max": finite.max(), "mean": finite.mean()}
        result["l2"] = np.linalg.norm(finite)
    return {stat: pytest.approx(float(value), rel=1e-6) for stat, value in result.items()}


def _kernel(
    stores: list[np.ndarray],
    module: str,
    *,
    kernel: str = "triton_poi_0",
    value: np.ndarray | None = None,
) -> list[Row]:
    """Rows of a kernel that computes `value` and stores `stores`."""
    computed = np.ones(4, np.float32) if value is None else value
    values = [(entry_of(0, "math.log", computed, "fp32"), computed, None)]
    for number, array in enumerate(stores):
        entry = entry_of(
            number + 1,
            "tt.store",
            array,
            "fp32",
            role="store",
            pointer=f"out_ptr{number}",
            variable=f"out_ptr{number}",
            histogram=number,
        )
        values.append((entry, array, None))
    return join.rows(0, [block_of(values, kernel=kernel, origin=Origin(module, phase="forward"))])


RNG = np.random.default_rng(0)
A = RNG.normal(size=300).astype(np.float32)
B = np.concatenate([RNG.normal(size=50) * 1e4, [0, 0, -0.0], [1e-30, -1e-30]]).astype(np.float32)


def test_module_detail_merges_stored_values(tmp_path: Path) -> None:
    rows = _kernel([A, B], "layers.0.attn") + _kernel([B], "layers.0.attn", kernel="triton_red_1")
    with TensorBoardWriter(tmp_path, "module") as writer:
        writer.write(0, rows)
    events = _read(tmp_path)
    assert {tag.rpartition("/")[0] for tag in events.Tags()["scalars"]} == {"layers.0.attn/forward"}
    whole = np.concatenate([A, B, B])
    assert _scalars(events, "layers.0.attn/forward") == _expected(whole)
    (event,) = events.Histograms("layers.0.attn/forward/hist")
    histogram = event.histogram_value
    assert (histogram.min, histogram.max) == (whole.min(), whole.max())
    assert histogram.num == sum(histogram.bucket) == whole.size
    assert histogram.sum == pytest.approx(whole.astype(np.float64).sum(), rel=1e-6)
    assert histogram.sum_squares == pytest.approx((whole.astype(np.float64) ** 2).sum(), rel=1e-6)


def test_findings_are_written_at_every_detail_from_the_first_on(tmp_path: Path) -> None:
    bad = np.array([NAN, 1.0], np.float32)
    base = "layers.0/forward.triton_poi_0.0/L10.tmp0"
    for detail in ("module", "kernel", "statement"):
        with TensorBoardWriter(tmp_path / detail, detail) as writer:
            writer.write(0, _kernel([A], "layers.0"))
            writer.write(1, _kernel([A], "layers.0", value=bad))
        events = _read(tmp_path / detail)
        assert _scalars(events, base) == _expected(bad)
        with TensorBoardWriter(tmp_path / f"{detail}_longer", detail) as writer:
            for step, value in enumerate((None, bad, None)):
                writer.write(step, _kernel([A], "layers.0", value=value))
        counts = _read(tmp_path / f"{detail}_longer").Scalars(f"{base}/nan")
        expected = [(0, 0), (1, 1), (2, 0)][0 if detail == "statement" else 1 :]
        assert [(event.step, event.value) for event in counts] == expected


def test_kernel_and_statement_detail(tmp_path: Path) -> None:
    rows = _kernel([A, B], "layers.0")
    for detail, series in (("kernel", 2), ("statement", 3)):
        with TensorBoardWriter(tmp_path / detail, detail) as writer:
            writer.write(3, rows)
        events = _read(tmp_path / detail)
        bases = {tag.rpartition("/")[0] for tag in events.Tags()["scalars"]}
        assert len(bases) == series
        for number, array in enumerate((A, B)):
            base = f"layers.0/forward.triton_poi_0.0/L{11 + number}.out_ptr{number}"
            assert _scalars(events, base) == _expected(array)
            assert events.Scalars(f"{base}/live")[0].step == 3


def test_one_event_per_step(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path, "statement") as writer:
        for step in range(5):
            writer.write(step, _kernel([A, B], "layers.0"))
        writer.write(5, [])
    (file,) = tmp_path.iterdir()
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    events = list(loader.RawEventFileLoader(str(file)).Load())
    assert len(events) == 1 + 5  # the file's version, and the steps


def test_histogram_buckets_match_numpy(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path, "kernel") as writer:
        writer.write(0, _kernel([B], "m"))
    (event,) = _read(tmp_path).Histograms("m/forward.triton_poi_0.0/L11.out_ptr0/hist")
    histogram = event.histogram_value
    edges = [histogram.min, *histogram.bucket_limit]
    assert edges == sorted(edges)
    assert edges[-1] == B.max()
    around = next(index for index, (left, right) in enumerate(pairwise(edges)) if left < 0 < right)
    assert histogram.bucket[around] == 5  # two zeros, a negative one and two tiny values
    values = B.astype(np.float64)
    for left, right, count in zip(edges, edges[1:], histogram.bucket, strict=False):
        # a power of two lies at an edge; B has none
        inside = (values >= left) & (values <= right)
        assert inside.sum() == count


def test_buckets_of_every_binade() -> None:
    magnitudes = 2.0 ** np.arange(-24, 8) * 1.5
    values = np.concatenate([-magnitudes[::-1], magnitudes])
    limits, counts = buckets([1] * 64, 3, float(values.min()), float(values.max()))
    assert sum(counts) == 64 + 3
    assert len(limits) == len(counts) == 63
    assert limits == sorted(limits)
    expected = np.searchsorted(np.array(limits), values)
    assert np.bincount(expected, minlength=63).tolist() == [
        count - 3 * (index == 31) for index, count in enumerate(counts)
    ]


@pytest.mark.parametrize(
    ("values", "limits", "counts"),
    [
        ([0.0, 0.0], [0.0], [2]),
        ([5.0, 5.0], [5.0], [2]),
        ([-5.0], [-5.0], [1]),
        ([0.0, 1e-30], [1.0000000031710769e-30], [2]),
        ([-1e30, 1e30], [-128.0], [1]),
    ],
)
def test_buckets_of_few_values(values: list[float], limits: list[float], counts: list[int]) -> None:
    (_, row) = _kernel([np.array(values, np.float32)], "m")
    assert row.histogram is not None
    assert row.min is not None
    assert row.max is not None
    got = buckets(row.histogram, row.zero, float(row.min), float(row.max))
    assert got[0][: len(limits)] == limits
    assert got[1][: len(counts)] == counts
    assert got[0][-1] == row.max
    assert sum(got[1]) == len(values)


@pytest.mark.parametrize("values", [[NAN, NAN], [INF], []])
def test_values_without_a_finite_lane(tmp_path: Path, values: list[float]) -> None:
    array = np.array(values, np.float32)
    with TensorBoardWriter(tmp_path, "statement") as writer:
        writer.write(0, _kernel([array], "m"))
    events = _read(tmp_path)
    base = "m/forward.triton_poi_0.0/L11.out_ptr0"
    assert _scalars(events, base) == _expected(array)
    assert events.Tags()["histograms"] == []


def test_module_with_an_all_nan_store(tmp_path: Path) -> None:
    bad = np.full(3, NAN, np.float32)
    with TensorBoardWriter(tmp_path, "module") as writer:
        writer.write(0, _kernel([bad, A], "m"))
    events = _read(tmp_path)
    assert _scalars(events, "m/forward") == _expected(np.concatenate([bad, A]))
    (event,) = events.Histograms("m/forward/hist")
    assert event.histogram_value.num == A.size


def test_values_beyond_float32_stay_finite(tmp_path: Path) -> None:
    array = np.array([1e300, -1e300])
    entry = entry_of(0, "tt.store", array, "fp64", role="store")
    with TensorBoardWriter(tmp_path, "kernel") as writer:
        writer.write(0, join.rows(0, [block_of([(entry, array, None)])]))
    scalars = _scalars(_read(tmp_path), "<none>/none.kernel_0.0/L10.tmp0")
    largest = float(np.finfo(np.float32).max)
    assert (scalars["min"], scalars["max"]) == (-largest, largest)


def test_tags_are_sanitised_and_do_not_collide(tmp_path: Path) -> None:
    one = np.array([1.0], np.float32)
    two = np.array([2.0], np.float32)
    values = [
        (entry_of(0, "arith.mulf", one, "fp32", variable="a b", line=5), one, None),
        (entry_of(1, "arith.addf", two, "fp32", variable="a_b", line=5), two, None),
        (entry_of(2, "arith.addf", one, "fp32", variable=None, line=5), one, None),
        (entry_of(3, "arith.addf", two, "fp32", variable=None, line=5), two, None),
    ]
    origin = Origin("<Net>", statements={"a b": StatementOrigin("<Net>")})
    rows = join.rows(0, [block_of(values, kernel="k/ü", origin=origin)])
    with TensorBoardWriter(tmp_path, "statement") as writer:
        writer.write(0, rows)
        writer.write(1, rows[::-1])  # a tag stays with its value
    events = _read(tmp_path)
    tags = events.Tags()["scalars"]
    assert all(re.fullmatch(r"[A-Za-z0-9_.<>/-]+", tag) for tag in tags)
    base = "<Net>/none.k__.0/L5"
    for name, value in (("a_b", 1), ("a_b.op1", 2), ("addf", 1), ("addf.op3", 2)):
        assert [e.value for e in events.Scalars(f"{base}.{name}/max")] == [value, value]


def test_modules_whose_names_read_the_same(tmp_path: Path) -> None:
    rows = _kernel([A], "a b") + _kernel([B], "a_b", kernel="other")
    with TensorBoardWriter(tmp_path, "module") as writer:
        writer.write(0, rows)
    events = _read(tmp_path)
    assert _scalars(events, "a_b/forward") == _expected(A)
    assert _scalars(events, "a_b/forward.2") == _expected(B)


def test_the_number_of_series_is_bounded(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path, "kernel", max_series=2)
    rows = [row for n in range(4) for row in _kernel([A], "m", kernel=f"k{n}")]
    writer.write(0, rows)
    writer.write(1, rows)
    writer.close()
    bases = {tag.rpartition("/")[0] for tag in _read(tmp_path).Tags()["scalars"]}
    assert len(bases) == 2
    assert writer.left_out == 4


def test_flush_makes_a_step_readable(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path, "module")
    writer.write(0, _kernel([A], "m"))
    writer.flush()
    assert _scalars(_read(tmp_path), "m/forward") == _expected(A)
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(1, [])


def test_open_fails_at_once(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    for logdir in (occupied, occupied / "below"):
        with pytest.raises(OSError, match=re.escape(str(logdir))) as caught:
            TensorBoardWriter(logdir, "module").open()
        assert "logdir" in str(caught.value)


def test_open_names_a_folder_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied", "probe")  # what a non-root user meets

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(PermissionError, match=re.escape(str(tmp_path))):
        TensorBoardWriter(tmp_path, "module").open()


def test_wrong_detail_and_missing_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="'op'"):
        TensorBoardWriter(tmp_path, "op")
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        TensorBoardWriter(tmp_path, "module").open()
