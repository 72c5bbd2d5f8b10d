"""The table of element types: one row per type, from which all other code derives.

A row has the names of a type, its storage and its encoding in files and messages. Public names, op
signatures, conversions in compiled code, accumulation types and checkpoints follow from the row: a
new type is a new row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import ml_dtypes
import numpy as np

Dtype = np.dtype[Any]

DtypeClass = Literal[
    "float", "signed", "unsigned", "complex", "quantized", "bool", "string", "opaque"
]

_FLOAT32: Dtype = np.dtype(np.float32)


@dataclass(frozen=True)
class FloatFormat:
    """The bits of a binary float after its sign; the bias of the exponent is IEEE 754's."""

    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True  # if not ("fn"), the code of all ones is NaN and all others finite

    @property
    def bias(self) -> int:
        """The exponent bias: stored exponent - exponent."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def overflow(self) -> int:
        """The code, without its sign, of numbers too large: infinity, or NaN where there is none"""
        if self.has_infinity:
            return ((1 << self.exponent_bits) - 1) << self.mantissa_bits
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1

    @property
    def nan(self) -> int:
        """The code of the quiet NaN without its sign."""
        quiet = 1 << (self.mantissa_bits - 1) if self.has_infinity else 0
        return self.overflow | quiet


@dataclass(frozen=True)
class Traits:
    """The properties of an element type."""

    name: str
    enum: int  # in TensorFlow's types.proto
    dtype_class: DtypeClass
    numpy: Any  # a scalar type, or a structured dtype
    proto_field: str = ""  # of TensorProto, for elements one by one
    safetensors: str = ""  # its code there; types without one are written as bytes
    float_format: FloatFormat | None = None
    proto_name: str = ""  # where protos and their error messages use another name
    aliases: tuple[str, ...] = ()  # public names besides `name`
    bulk: bool = True  # whether a TensorProto holds several elements as their bytes

    @cached_property
    def storage(self) -> Dtype:
        """The dtype of elements in memory."""
        return np.dtype(self.numpy)

    @cached_property
    def compute(self) -> Dtype:
        """The dtype in which arithmetic and sums are done, to be rounded once."""
        return _FLOAT32 if self.is_narrow_float else self.storage

    @property
    def is_narrow_float(self) -> bool:
        """Whether this is a float of fewer than 32 bits, computed as float32."""
        return self.dtype_class == "float" and self.storage.itemsize < 4

    @property
    def short_name(self) -> str:
        """The name in protos: `float` for float32."""
        return self.proto_name or self.name


def _quantized(name: str, storage: type[np.integer[Any]]) -> Dtype:
    return np.dtype([(name, storage, (1,))])


# fmt: off
TABLE = (
    Traits("float32", 1, "float", np.float32, "float_val", "F32", FloatFormat(8, 23),
           proto_name="float"),
    Traits("float64", 2, "float", np.float64, "double_val", "F64", FloatFormat(11, 52),
           proto_name="double", aliases=("double",)),
    Traits("int32", 3, "signed", np.int32, "int_val", "I32"),
    Traits("uint8", 4, "unsigned", np.uint8, "int_val", "U8"),
    Traits("int16", 5, "signed", np.int16, "int_val", "I16"),
    Traits("int8", 6, "signed", np.int8, "int_val", "I8"),
    Traits("string", 7, "string", np.object_, "string_val", bulk=False),
    Traits("complex64", 8, "complex", np.complex64, "scomplex_val", bulk=False),
    Traits("int64", 9, "signed", np.int64, "int64_val", "I64"),
    Traits("bool", 10, "bool", np.bool_, "bool_val", "BOOL", bulk=False),
    Traits("qint8", 11, "quantized", _quantized("qint8", np.int8), "int_val"),
    Traits("quint8", 12, "quantized", _quantized("quint8", np.uint8), "int_val"),
    Traits("qint32", 13, "quantized", _quantized("qint32", np.int32), "int_val"),
    Traits("bfloat16", 14, "float", ml_dtypes.bfloat16, "half_val", "BF16", FloatFormat(8, 7),
           bulk=False),
    Traits("qint16", 15, "quantized", _quantized("qint16", np.int16), "int_val"),
    Traits("quint16", 16, "quantized", _quantized("quint16", np.uint16), "int_val"),
    Traits("uint16", 17, "unsigned", np.uint16, "int_val", "U16", bulk=False),
    Traits("complex128", 18, "complex", np.complex128, "dcomplex_val", bulk=False),
    Traits("float16", 19, "float", np.float16, "half_val", "F16", FloatFormat(5, 10),
           proto_name="half", aliases=("half",), bulk=False),
    Traits("resource", 20, "opaque", np.object_),
    Traits("variant", 21, "opaque", np.object_),
    Traits("uint32", 22, "unsigned", np.uint32, "uint32_val", "U32"),
    Traits("uint64", 23, "unsigned", np.uint64, "uint64_val", "U64"),
    Traits("float8_e5m2", 24, "float", ml_dtypes.float8_e5m2, "float8_val", "F8_E5M2",
           FloatFormat(5, 2), bulk=False),
    Traits("float8_e4m3fn", 25, "float", ml_dtypes.float8_e4m3fn, "float8_val", "F8_E4M3",
           FloatFormat(4, 3, has_infinity=False), bulk=False),
)
# fmt: on

# Object arrays hold strings, resources or variants; of these, files have only strings.
_BY_STORAGE = {row.storage: row for row in TABLE if row.dtype_class != "opaque"}


def find_traits(dtype: Any) -> Traits | None:
    """The row of a NumPy dtype, if there is one."""
    return _BY_STORAGE.get(np.dtype(dtype))


def is_float(dtype: Any) -> bool:
    """Whether elements are real floating-point numbers."""
    traits = find_traits(dtype)
    return traits is not None and traits.dtype_class == "float"


def is_narrow_float(dtype: Any) -> bool:
    """Whether elements are floats of fewer than 32 bits, which are computed as float32."""
    traits = find_traits(dtype)
    return traits is not None and traits.is_narrow_float


def float_format(dtype: Any) -> FloatFormat:
    """The bits of a float; a TypeError for any other dtype."""
    traits = find_traits(dtype)
    if traits is None or traits.float_format is None:
        raise TypeError(f"{np.dtype(dtype)} is no float")
    return traits.float_format


def compute_dtype(dtype: Any) -> Dtype:
    """The dtype in which arithmetic on elements of a dtype is done."""
    traits = find_traits(dtype)
    return np.dtype(dtype) if traits is None else traits.compute


def widened(array: np.ndarray[Any, Dtype]) -> np.ndarray[Any, Dtype]:
    """An array converted to its compute dtype."""
    return array.astype(compute_dtype(array.dtype), copy=False)


def bounds(dtype: Any) -> tuple[Any, Any]:
    """The least and the greatest element of an ordered dtype: infinities where it has them."""
    numpy_dtype = np.dtype(dtype)
    traits = find_traits(numpy_dtype)
    limits: Any
    if numpy_dtype.kind == "b":
        limits = False, True
    elif numpy_dtype.kind in "iu":
        limits = np.iinfo(numpy_dtype).min, np.iinfo(numpy_dtype).max
    elif traits is not None and traits.float_format and not traits.float_format.has_infinity:
        finfo = cast("Any", ml_dtypes.finfo(numpy_dtype))
        limits = finfo.min, finfo.max
    else:
        limits = -np.inf, np.inf
    return np.asarray(limits[0], numpy_dtype)[()], np.asarray(limits[1], numpy_dtype)[()]
