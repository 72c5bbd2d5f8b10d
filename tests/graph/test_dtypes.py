"""Element types: their identity, spellings, NumPy counterparts and groups."""

import copy
import dataclasses
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import thalweg as tf
from thalweg import protos
from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType, as_dtype

ENUMS = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "string": 7,
    "complex64": 8, "int64": 9, "bool": 10, "qint8": 11, "quint8": 12, "qint32": 13,
    "bfloat16": 14, "qint16": 15, "quint16": 16, "uint16": 17, "complex128": 18, "float16": 19,
    "resource": 20, "variant": 21, "uint32": 22, "uint64": 23, "float8_e5m2": 24,
    "float8_e4m3fn": 25,
}  # fmt: skip
BASES = [getattr(tf, name) for name in ENUMS]
ALL = BASES + [dtype.as_ref for dtype in BASES]


@pytest.mark.parametrize("name", ENUMS)
def test_enum_name_and_reference(name: str) -> None:
    base, reference = getattr(tf, name), getattr(tf, f"{name}_ref")
    assert (base.as_datatype_enum, base.name) == (ENUMS[name], name)
    assert (int(reference), reference.name) == (ENUMS[name] + 100, f"{name}_ref")
    assert base._as_ref is reference and reference._as_ref is reference
    assert reference.base_dtype is base and base.base_dtype is base
    assert reference._is_ref_dtype and not base.is_ref_dtype
    assert repr(base) == f"tf.{name}" and str(base) == f"<dtype: '{name}'>"


@pytest.mark.parametrize("dtype", ALL, ids=repr)
def test_the_number_is_that_of_the_protocol_buffers(dtype: DType) -> None:
    name = dtype.traits.short_name + "_ref" * dtype.is_ref_dtype
    assert protos.DataType.Name(int(dtype)) == f"DT_{name.upper()}"


@pytest.mark.parametrize("dtype", ALL, ids=repr)
def test_one_object_per_type(dtype: DType) -> None:
    assert DType(dtype.as_datatype_enum) is dtype
    assert as_dtype(int(dtype)) is as_dtype(dtype.name) is as_dtype(dtype) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is copy.deepcopy(dtype) is dtype


@dataclasses.dataclass
class Options:
    dtype: DType


def test_dtypes_stay_whole_inside_the_dataclasses_of_users() -> None:
    options = Options(tf.float32)
    assert dataclasses.asdict(options) == {"dtype": tf.float32}
    assert dataclasses.astuple(options) == (tf.float32,)


@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_numpy_compatible], ids=repr)
def test_numpy_round_trip(dtype: DType) -> None:
    numpy_type = dtype.as_numpy_dtype
    assert as_dtype(numpy_type) is as_dtype(np.dtype(numpy_type)) is dtype.base_dtype
    assert np.zeros((2, 1), numpy_type).itemsize == dtype.size


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("float", dtypes.float32),
        ("double_ref", dtypes.float64.as_ref),
        ("half", dtypes.float16),
        (float, dtypes.float32),
        (bool, dtypes.bool),
        (object, dtypes.string),
        (np.str_, dtypes.string),
        (np.array(["a", "bc"]).dtype, dtypes.string),
        (np.array([b"a"]).dtype, dtypes.string),
        (np.longlong, dtypes.int64),
        (np.dtype("longlong"), dtypes.int64),
        (np.dtype(">f4"), dtypes.float32),
        (ml_dtypes.bfloat16, dtypes.bfloat16),
        (np.dtype([("qint8", np.int8, 1)]), dtypes.qint8),
    ],
)
def test_spellings(value: Any, expected: DType) -> None:
    assert as_dtype(value) is expected
    assert expected == value


@pytest.mark.parametrize(
    "value",
    [None, 0, 26, 100, 2.1, "int", "not_a_type", int, str, complex, np.floating, np.integer, [],
     np.dtype([("f1", np.uint), ("f2", np.int32)]), np.dtype("M8[s]"), np.ones(3)],
    ids=repr,
)  # fmt: skip
def test_what_is_no_type(value: Any) -> None:
    with pytest.raises(TypeError, match="Cannot convert value"):
        as_dtype(value)
    for dtype in ALL:
        assert dtype != value


@pytest.mark.parametrize("enum", [0, -1, 26, 100, 126, "float32", None])
def test_invalid_enums(enum: Any) -> None:
    with pytest.raises(TypeError, match="not a valid data type"):
        DType(enum)


@pytest.mark.parametrize(
    ("predicate", "names"),
    [
        ("is_floating", "float8_e5m2 float8_e4m3fn float16 bfloat16 float32 float64"),
        ("is_integer", "int8 int16 int32 int64 uint8 uint16 uint32 uint64"),
        ("is_unsigned", "uint8 uint16 uint32 uint64"),
        ("is_complex", "complex64 complex128"),
        ("is_quantized", "qint8 quint8 qint16 quint16 qint32"),
        ("is_bool", "bool"),
    ],
)
def test_predicates(predicate: str, names: str) -> None:
    held = {dtype.name for dtype in ALL if getattr(dtype, predicate)}
    assert held == {name + suffix for name in names.split() for suffix in ("", "_ref")}


def test_real_dtype() -> None:
    assert dtypes.complex64.real_dtype is dtypes.complex64.as_ref.real_dtype is dtypes.float32
    assert dtypes.complex128.real_dtype is dtypes.float64
    assert all(dtype.real_dtype is dtype for dtype in ALL if not dtype.is_complex)


@pytest.mark.parametrize("dtype", sorted(dtypes.REAL, key=int), ids=repr)
def test_min_and_max(dtype: DType) -> None:
    info = ml_dtypes.finfo if dtype.is_floating else np.iinfo
    assert dtype.min == info(dtype.as_numpy_dtype).min
    assert dtype.as_ref.max == info(dtype.as_numpy_dtype).max


@pytest.mark.parametrize("dtype", sorted(dtypes.ANY - dtypes.REAL, key=int), ids=repr)
def test_types_without_order(dtype: DType) -> None:
    with pytest.raises(TypeError, match="minimum value of <dtype"):
        dtype.min
    with pytest.raises(TypeError, match="maximum value of <dtype"):
        dtype.max


def test_limits_are_image_intensities() -> None:
    assert dtypes.uint8.limits == (0, 255)
    assert dtypes.int16.limits == (0, 32767)
    assert dtypes.float32.limits == dtypes.bfloat16.limits == (0, 1)
    assert dtypes.bool.limits == (False, True)
    with pytest.raises(TypeError):
        dtypes.string.limits


def test_a_reference_stands_for_its_value_only() -> None:
    value, reference = dtypes.int32, dtypes.int32.as_ref
    assert value.is_compatible_with(np.int32)
    assert value.is_compatible_with(reference)
    assert not reference.is_compatible_with(value)
    assert reference.is_compatible_with(reference)
    assert not value.is_compatible_with("int64")


def test_groups() -> None:
    assert set(BASES) == dtypes.ANY
    assert dtypes.NUMERIC == dtypes.REAL | dtypes.COMPLEX
    assert dtypes.REAL == dtypes.FLOATING | dtypes.INTEGER
    assert {dtypes.int32, dtypes.int64} == dtypes.INDEX
    assert not dtypes.NUMERIC & (dtypes.QUANTIZED | {dtypes.bool, dtypes.string})


@pytest.mark.parametrize("dtype", sorted(dtypes.FLOATING, key=int), ids=repr)
def test_float_formats_are_those_of_the_numbers(dtype: DType) -> None:
    form, info = dtype.traits.float_format, ml_dtypes.finfo(dtype.as_numpy_dtype)
    assert form is not None
    assert (form.exponent_bits, form.mantissa_bits) == (info.nexp, info.nmant)
    assert 1 + form.exponent_bits + form.mantissa_bits == 8 * dtype.size
    assert 2.0 ** (1 - form.bias) == float(info.smallest_normal)
    bits = f"u{dtype.size}"
    codes = np.array([form.overflow - 1, form.overflow, form.nan], bits).view(dtype.as_numpy_dtype)
    assert codes[0] == info.max
    assert np.isinf(codes[1]) == form.has_infinity
    assert np.isnan(codes[2])
    assert np.array(np.nan, dtype.as_numpy_dtype).view(bits) & (2 ** (8 * dtype.size - 1) - 1) == (
        form.nan
    )
