"""The record layout: one truth in Python and C++, and reversible encodings."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flagprism_torch.records import layout, native

FLOAT_TYPES = ("fp64", "fp32", "fp16", "bf16", "fp8e4nv")
SIGNED = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def test_cpp_and_numpy_agree_on_every_offset():
    offsets, size = native.record_layout()
    fields = layout.RECORD_DTYPE.fields
    assert fields is not None
    assert offsets == tuple(fields[name][1] for name in layout.RECORD_DTYPE.names)
    assert size == layout.RECORD_DTYPE.itemsize == layout.RECORD_BYTES


def test_word_offsets_are_those_of_the_dtype():
    fields = layout.RECORD_DTYPE.fields
    assert fields is not None
    for name, (_, offset, *_rest) in fields.items():
        assert getattr(layout, name.upper()) * 4 == offset, name


@pytest.mark.parametrize(("numel", "bits"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1 << 20, 20)])
def test_lane_bits(numel: int, bits: int):
    assert layout.lane_bits(numel) == bits


places = st.integers(1, 1 << 20).flatmap(
    lambda numel: st.tuples(
        st.integers(0, (1 << layout.PROGRAM_BITS) - 1),
        st.integers(0, (1 << layout.iteration_bits(numel)) - 2),
        st.integers(0, numel - 1),
        st.just(numel),
    )
)


@given(places)
def test_places_survive_packing(place: tuple[int, int, int, int]):
    program, iteration, lane, numel = place
    packed = layout.pack_first(*place)
    assert 0 < packed < 1 << 64  # 0 means none
    assert layout.unpack_first(packed, numel) == (program, iteration, lane)


@given(st.integers(1, 4096), st.data())
def test_an_earlier_place_packs_to_a_larger_number(numel: int, data: st.DataObject):
    place = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, numel - 1))
    a, b = data.draw(place), data.draw(place)
    order = (layout.pack_first(*a, numel) > layout.pack_first(*b, numel)) == (a < b)
    assert order or a == b


def test_a_saturated_iteration_is_unknown_and_no_place_is_none():
    numel = 1 << 20
    late = layout.pack_first(3, 1 << 40, 17, numel)
    assert layout.unpack_first(late, numel) == (3, None, 17)
    assert layout.unpack_first(0, numel) is None


@given(st.floats(allow_nan=False), st.sampled_from(FLOAT_TYPES))
def test_float_keys_are_reversible(value: float, dtype: str):
    key = layout.order_key(value, dtype)
    assert 0 <= key < 1 << 64
    back = layout.value_of_key(key, dtype)
    assert back == value and math.copysign(1, back) == math.copysign(1, value)
    assert layout.min_of_key(~key & (1 << 64) - 1, dtype) == value


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_float_keys_keep_the_order(a: float, b: float):
    if a != b:
        assert (layout.order_key(a, "fp64") < layout.order_key(b, "fp64")) == (a < b)
    assert layout.order_key(-0.0, "fp64") < layout.order_key(0.0, "fp64")


@given(st.sampled_from(sorted(SIGNED)), st.data())
def test_integer_keys_are_reversible_and_ordered(dtype: str, data: st.DataObject):
    half = 1 << (SIGNED[dtype] - 1)
    a, b = (data.draw(st.integers(-half, half - 1)) for _ in range(2))
    key_a, key_b = layout.order_key(a, dtype), layout.order_key(b, dtype)
    assert 0 <= key_a < 1 << 64 and layout.value_of_key(key_a, dtype) == a
    assert (key_a < key_b) == (a < b)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_uint64_keys_are_the_values(a: int, b: int):
    assert layout.order_key(a, "uint64") == a
    assert layout.value_of_key(a, "uint64") == a
    assert (layout.order_key(a, "uint64") < layout.order_key(b, "uint64")) == (a < b)


def test_the_zero_record_is_empty():
    empty = np.zeros((), layout.RECORD_DTYPE)
    assert not np.frombuffer(empty.tobytes(), "<i4").any()
    assert layout.unpack_first(int(empty["first"]), 8) is None
