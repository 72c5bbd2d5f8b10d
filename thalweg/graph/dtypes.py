"""Element types of tensors.

There is one `DType` object per type and one per reference to that type, so identity is equality.
`as_dtype` turns enum numbers, names, NumPy types and a few Python types into them, and the sets
at the end (`FLOATING`, `INTEGER`, ...) are the vocabulary of op signatures.
"""

import builtins
from typing import Any, cast

import ml_dtypes
import numpy as np

from thalweg.public import public, publish_value

_REFERENCE_OFFSET = 100  # the enum of a reference type is that of its base type plus this

_by_enum: dict[int, "DType"] = {}
_by_value: dict[Any, "DType"] = {}  # every hashable spelling as_dtype knows, except NumPy's below


@public("DType")
class DType:
    """The type of the elements of a tensor; `DType(1) is float32`."""

    __slots__ = ("_enum", "_kind", "_name", "_numpy", "_other", "base_dtype", "is_ref_dtype")

    _enum: int
    _name: str
    _kind: str  # f(loat) i(nteger) u(nsigned) c(omplex) q(uantized) b(ool) s(tring) o(paque)
    _numpy: Any
    _other: "DType"  # a base type's reference type; a reference type's base type
    base_dtype: "DType"  # the non-reference type of this type
    is_ref_dtype: builtins.bool  # whether this is the type of a mutable reference

    def __new__(cls, type_enum: Any) -> "DType":
        try:
            return _by_enum[int(type_enum)]
        except (KeyError, TypeError, ValueError):
            raise TypeError(f"{type_enum!r} is not a valid data type enum.") from None

    @staticmethod
    def make_pair(enum: int, name: str, kind: str, numpy_type: Any) -> "DType":
        """Makes a base type with its reference type; only this module defines types."""
        base, reference = object.__new__(DType), object.__new__(DType)
        base._enum, reference._enum = enum, enum + _REFERENCE_OFFSET
        base._name, reference._name = name, f"{name}_ref"
        base._kind = reference._kind = kind
        base._numpy = reference._numpy = numpy_type
        base._other, reference._other = reference, base
        base.base_dtype = reference.base_dtype = base
        base.is_ref_dtype, reference.is_ref_dtype = False, True
        return base

    def __reduce__(self) -> tuple[Any, ...]:
        return DType, (self._enum,)

    @property
    def name(self) -> str:
        """The name, such as `"float32"` or `"float32_ref"`."""
        return self._name

    @property
    def as_datatype_enum(self) -> int:
        """The number of this type in serialized graphs."""
        return self._enum

    @property
    def as_numpy_dtype(self) -> Any:
        """The NumPy scalar type (a structured `np.dtype` for quantized types)."""
        return self._numpy

    @property
    def as_ref(self) -> "DType":
        """The reference type of this type."""
        return self if self.is_ref_dtype else self._other

    # TensorFlow programs know these two only by their private names.
    _as_ref = as_ref

    @property
    def _is_ref_dtype(self) -> builtins.bool:
        return self.is_ref_dtype

    @property
    def real_dtype(self) -> "DType":
        """The type of the real part of a complex number; any other type itself."""
        return _REAL_PARTS.get(self._enum % _REFERENCE_OFFSET, self)

    @property
    def is_floating(self) -> builtins.bool:
        """Whether this is a real floating-point type."""
        return self._kind == "f"

    @property
    def is_integer(self) -> builtins.bool:
        """Whether this is a non-quantized integer type."""
        return self._kind in "iu"

    @property
    def is_unsigned(self) -> builtins.bool:
        """Whether this is a non-quantized unsigned integer type."""
        return self._kind == "u"

    @property
    def is_complex(self) -> builtins.bool:
        """Whether this is a complex type."""
        return self._kind == "c"

    @property
    def is_quantized(self) -> builtins.bool:
        """Whether this is a quantized integer type."""
        return self._kind == "q"

    @property
    def is_bool(self) -> builtins.bool:
        """Whether this is the Boolean type."""
        return self._kind == "b"

    @property
    def is_numpy_compatible(self) -> builtins.bool:
        """Whether values of this type can be seen outside a graph as NumPy arrays."""
        return self._kind != "o"

    @property
    def min(self) -> Any:
        """The smallest finite value; a TypeError for types without an order."""
        return self._range("minimum").min

    @property
    def max(self) -> Any:
        """The largest finite value; a TypeError for types without an order."""
        return self._range("maximum").max

    @property
    def limits(self) -> tuple[Any, Any]:
        """The intensities `(darkest, brightest)` of an image with this element type."""
        if self.is_floating:
            return 0, 1
        if self.is_bool:
            return 0, True
        return 0, self.max

    @property
    def size(self) -> int:
        """Bytes per element."""
        return np.dtype(self._numpy).itemsize if self.is_numpy_compatible else 1

    def is_compatible_with(self, other: Any) -> builtins.bool:
        """Whether a tensor of type `other` may stand where this type is wanted.

        A reference may stand for its value, but a value never for a reference.
        """
        other = as_dtype(other)
        return self is other or self is other.base_dtype

    def _range(self, bound: str) -> Any:
        if self.is_floating:
            return cast("Any", ml_dtypes.finfo(self._numpy))
        if self.is_integer:
            return np.iinfo(self._numpy)
        raise TypeError(f"Cannot find {bound} value of {self}.")

    def __eq__(self, other: object) -> builtins.bool:
        if self is other:
            return True
        if isinstance(other, DType):
            return False
        try:
            return self is as_dtype(other)
        except TypeError:
            return False

    def __hash__(self) -> int:
        return self._enum

    def __int__(self) -> int:
        return self._enum

    def __str__(self) -> str:
        return f"<dtype: {self._name!r}>"

    def __repr__(self) -> str:
        return f"tf.{self._name}"


@public("as_dtype", "dtypes.as_dtype")
def as_dtype(type_value: Any) -> DType:
    """The `DType` for a DType, enum number, name, NumPy dtype or type, `float`, `bool` or `object`.

    Raises TypeError for anything else; Python's `int` names no type, since it has no one width.
    """
    if type(type_value) is DType:
        return type_value
    try:
        found = _by_value.get(type_value)
    except TypeError:  # unhashable
        found = None
    found = found or _from_numpy(type_value)
    if found is None:
        raise TypeError(f"Cannot convert value {type_value!r} to a TensorFlow DType.")
    return found


def _from_numpy(value: Any) -> DType | None:
    """Looks up NumPy types that come in families: strings of any length, any byte order."""
    if isinstance(value, type) and issubclass(value, np.generic):
        return _from_scalar_type(cast("type[np.generic[Any]]", value))
    if not isinstance(value, np.dtype):
        return None
    numpy_dtype = cast("np.dtype[Any]", value)
    if numpy_dtype.kind in "SUT":
        return string
    return _by_value.get(numpy_dtype.newbyteorder("="))


def _from_scalar_type(scalar_type: "type[np.generic[Any]]") -> DType | None:
    # Abstract types must not reach np.dtype(), which would quietly choose a width for them.
    if issubclass(scalar_type, np.character):
        return string
    if scalar_type in (np.longlong, np.ulonglong, np.intc, np.uintc):
        return _by_value.get(np.dtype(scalar_type))
    return None


def _define(enum: int, name: str, kind: str, numpy_type: Any) -> DType:
    """Makes a type and its reference type, and registers their spellings."""
    base = DType.make_pair(enum, name, kind, numpy_type)
    for dtype in (base, base.as_ref):
        number = dtype.as_datatype_enum
        _by_enum[number] = _by_value[number] = _by_value[dtype.name] = dtype
    if kind not in "so":  # object arrays stand for three types; see _SPELLINGS
        _by_value[numpy_type] = _by_value[np.dtype(numpy_type)] = base
    return base


def _quantized(name: str, storage: type[np.integer[Any]]) -> "np.dtype[Any]":
    return np.dtype([(name, storage, (1,))])


float32 = _define(1, "float32", "f", np.float32)
float64 = double = _define(2, "float64", "f", np.float64)
int32 = _define(3, "int32", "i", np.int32)
uint8 = _define(4, "uint8", "u", np.uint8)
int16 = _define(5, "int16", "i", np.int16)
int8 = _define(6, "int8", "i", np.int8)
string = _define(7, "string", "s", np.object_)
complex64 = _define(8, "complex64", "c", np.complex64)
int64 = _define(9, "int64", "i", np.int64)
bool = _define(10, "bool", "b", np.bool_)
qint8 = _define(11, "qint8", "q", _quantized("qint8", np.int8))
quint8 = _define(12, "quint8", "q", _quantized("quint8", np.uint8))
qint32 = _define(13, "qint32", "q", _quantized("qint32", np.int32))
bfloat16 = _define(14, "bfloat16", "f", ml_dtypes.bfloat16)
qint16 = _define(15, "qint16", "q", _quantized("qint16", np.int16))
quint16 = _define(16, "quint16", "q", _quantized("quint16", np.uint16))
uint16 = _define(17, "uint16", "u", np.uint16)
complex128 = _define(18, "complex128", "c", np.complex128)
float16 = half = _define(19, "float16", "f", np.float16)
resource = _define(20, "resource", "o", np.object_)
variant = _define(21, "variant", "o", np.object_)
uint32 = _define(22, "uint32", "u", np.uint32)
uint64 = _define(23, "uint64", "u", np.uint64)

float32_ref = float32.as_ref
float64_ref = double_ref = float64.as_ref
int32_ref = int32.as_ref
uint8_ref = uint8.as_ref
int16_ref = int16.as_ref
int8_ref = int8.as_ref
string_ref = string.as_ref
complex64_ref = complex64.as_ref
int64_ref = int64.as_ref
bool_ref = bool.as_ref
qint8_ref = qint8.as_ref
quint8_ref = quint8.as_ref
qint32_ref = qint32.as_ref
bfloat16_ref = bfloat16.as_ref
qint16_ref = qint16.as_ref
quint16_ref = quint16.as_ref
uint16_ref = uint16.as_ref
complex128_ref = complex128.as_ref
float16_ref = half_ref = float16.as_ref
resource_ref = resource.as_ref
variant_ref = variant.as_ref
uint32_ref = uint32.as_ref
uint64_ref = uint64.as_ref

_REAL_PARTS = {8: float32, 18: float64}

_SPELLINGS: dict[Any, DType] = {
    "half": float16,
    "half_ref": float16_ref,
    "float": float32,
    "float_ref": float32_ref,
    "double": float64,
    "double_ref": float64_ref,
    float: float32,
    builtins.bool: bool,
    object: string,
    np.object_: string,
    np.dtype(object): string,
}
_by_value.update(_SPELLINGS)

ANY = frozenset(dtype for dtype in _by_enum.values() if not dtype.is_ref_dtype)
FLOATING = frozenset(dtype for dtype in ANY if dtype.is_floating)
INTEGER = frozenset(dtype for dtype in ANY if dtype.is_integer)
INDEX = frozenset((int32, int64))
REAL = FLOATING | INTEGER
COMPLEX = frozenset((complex64, complex128))
NUMERIC = REAL | COMPLEX
QUANTIZED = frozenset(dtype for dtype in ANY if dtype.is_quantized)

QUANTIZED_DTYPES = QUANTIZED | {dtype.as_ref for dtype in QUANTIZED}

groups: dict[str, frozenset[DType]] = {
    "any": ANY,
    "floating": FLOATING,
    "integer": INTEGER,
    "index": INDEX,
    "real": REAL,
    "complex": COMPLEX,
    "numeric": NUMERIC,
    "quantized": QUANTIZED,
}

for _dtype in _by_enum.values():
    publish_value(_dtype.name, _dtype)
    publish_value(f"dtypes.{_dtype.name}", _dtype)
for _alias, _dtype in {"half": half, "double": double}.items():
    publish_value(_alias, _dtype)
publish_value("QUANTIZED_DTYPES", QUANTIZED_DTYPES)
