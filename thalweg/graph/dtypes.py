"""Element types of tensors: a `DType` for each row of the table of traits.

There is one `DType` object per type and one per reference to that type, so identity is equality.
`as_dtype` turns enum numbers, names, NumPy types and a few Python types into them, and the sets
at the end (`FLOATING`, `INTEGER`, ...) are the vocabulary of op signatures.
"""

import builtins
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np

from thalweg.platform.dtype_traits import TABLE, Traits
from thalweg.public import public, publish_value

if TYPE_CHECKING:
    from thalweg.graph.likes import DTypeLike

_REFERENCE_OFFSET = 100  # the enum of a reference type is that of its base type plus this

_by_value: dict[Any, "DType"] = {}  # every hashable spelling as_dtype knows, except NumPy's below


@public("DType")
class DType:
    """The type of the elements of a tensor: `tf.float32`, `tf.int64`, `tf.string` and so on.

    There is one object for each type, so `is` compares them. Arguments that are dtypes may also be
    names or NumPy types.

    Args:
        type_enum: the number of the type in serialized graphs.

    Example:
        >>> tf.float32.name, tf.float32.size, tf.float32.is_floating
        ('float32', 4, True)
        >>> tf.as_dtype("int64") is tf.as_dtype(np.int64) is tf.int64
        True
        >>> tf.uint8.min, tf.uint8.max
        (0, 255)
    """

    # Not by `dataclass`: `dataclasses.asdict` of a user's dataclass would take its dtypes apart.
    name: str  # such as "float32" or "float32_ref"
    as_datatype_enum: int  # the number of this type in serialized graphs
    as_numpy_dtype: Any  # the NumPy scalar type (a structured `np.dtype` for quantized types)
    as_ref: "DType"  # the reference type of this type
    base_dtype: "DType"  # the non-reference type of this type
    is_ref_dtype: builtins.bool  # whether this is the type of a mutable reference
    is_floating: builtins.bool  # whether this is a real floating-point type
    is_integer: builtins.bool  # whether this is a non-quantized integer type
    is_unsigned: builtins.bool  # whether that is unsigned
    is_complex: builtins.bool
    is_quantized: builtins.bool  # whether this is a quantized integer type
    is_bool: builtins.bool
    is_numpy_compatible: builtins.bool  # whether its values can be seen as NumPy arrays
    traits: Traits

    def __new__(cls, type_enum: Any) -> "DType":
        try:
            return _by_value[int(type_enum)]
        except (KeyError, TypeError, ValueError):
            raise TypeError(f"{type_enum!r} is not a valid data type enum.") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return DType, (self.as_datatype_enum,)

    # TensorFlow programs know these two only by their private names.

    _as_ref = property(attrgetter("as_ref"))
    _is_ref_dtype = property(attrgetter("is_ref_dtype"))

    @property
    def real_dtype(self) -> "DType":
        """The type of the real part of a complex number; any other type itself."""
        return as_dtype(f"float{4 * self.size}") if self.is_complex else self

    @property
    def compute_dtype(self) -> "DType":
        """The type in which arithmetic on values of this type is done."""
        return float32 if self.traits.is_narrow_float else self.base_dtype

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
        return self.traits.storage.itemsize if self.is_numpy_compatible else 1

    def is_compatible_with(self, other: Any) -> builtins.bool:
        """Whether a tensor of type `other` can be used as this type.

        A reference can be used as a value, but a value not as a reference.
        """
        other = as_dtype(other)
        return self is other or self is other.base_dtype

    def _range(self, bound: str) -> Any:
        if self.is_floating:
            return cast("Any", ml_dtypes.finfo(self.traits.numpy))
        if self.is_integer:
            return np.iinfo(self.traits.numpy)
        raise TypeError(f"Cannot find {bound} value of {self}.")

    def __eq__(self, other: object) -> builtins.bool:
        if self is other:
            return True
        if isinstance(other, DType):
            return False
        try:
            return self is as_dtype(cast("Any", other))
        except TypeError:
            return False

    def __hash__(self) -> int:
        return self.as_datatype_enum

    def __int__(self) -> int:
        return self.as_datatype_enum

    def __str__(self) -> str:
        return f"<dtype: {self.name!r}>"

    def __repr__(self) -> str:
        return f"tf.{self.name}"


@public("as_dtype", "dtypes.as_dtype")
def as_dtype(type_value: "DTypeLike") -> DType:
    """The `DType` for a DType, enum number, name, NumPy dtype or type, `float`, `bool` or `object`.

    Raises TypeError for anything else; Python's `int` names no type, since it has no one width.
    """
    if type(type_value) is DType:
        return type_value
    try:
        dtype = _by_value.get(type_value)
    except TypeError:  # unhashable
        dtype = None
    dtype = dtype or _from_numpy(type_value)
    if dtype is None:
        raise TypeError(f"Cannot convert value {type_value!r} to a TensorFlow DType.")
    return dtype


def _from_numpy(value: Any) -> DType | None:
    """The DType of a NumPy dtype with several forms: strings of any length, any byte order."""
    if not isinstance(value, np.dtype):
        return None
    numpy_dtype = cast("np.dtype[Any]", value)
    if numpy_dtype.kind in "SUT":
        return string
    return _by_value.get(numpy_dtype.newbyteorder("="))


def _define(traits: Traits) -> None:
    """Create a type and its reference type, and register their names."""
    base, reference = object.__new__(DType), object.__new__(DType)
    for dtype, suffix, offset in ((base, "", 0), (reference, "_ref", _REFERENCE_OFFSET)):
        dtype.traits, dtype.as_numpy_dtype = traits, traits.numpy
        dtype.base_dtype, dtype.as_ref = base, reference
        dtype.name, dtype.is_ref_dtype = traits.name + suffix, dtype is reference
        dtype.as_datatype_enum = enum = traits.enum + offset
        for dtype_class in ("bool", "complex", "quantized", "unsigned"):
            setattr(dtype, f"is_{dtype_class}", traits.dtype_class == dtype_class)
        dtype.is_floating = traits.dtype_class == "float"
        dtype.is_integer = traits.dtype_class in ("signed", "unsigned")
        dtype.is_numpy_compatible = traits.dtype_class != "opaque"
        _by_value[enum] = dtype
        names = (traits.name, *traits.aliases, traits.short_name)
        _by_value.update((name + suffix, dtype) for name in names)
        publish_value(dtype.name, dtype)
        publish_value(f"dtypes.{dtype.name}", dtype)
    for alias in traits.aliases:
        publish_value(alias, base)
    if traits.storage != np.dtype(object):  # the storage of three types; see _STRING_TYPES
        _by_value[traits.numpy] = _by_value[traits.storage] = base


for _row in TABLE:
    _define(_row)

# The types that this library uses by name; `tf` has every row of the table.
bfloat16, float16, float32, float64 = map(as_dtype, ("bfloat16", "float16", "float32", "float64"))
int8, int16, int32, int64 = map(as_dtype, ("int8", "int16", "int32", "int64"))
uint8, uint16, uint32, uint64 = map(as_dtype, ("uint8", "uint16", "uint32", "uint64"))
complex64, complex128 = map(as_dtype, ("complex64", "complex128"))
qint8, qint16, qint32 = map(as_dtype, ("qint8", "qint16", "qint32"))
quint8, quint16 = map(as_dtype, ("quint8", "quint16"))
bool, string, resource, variant = map(as_dtype, ("bool", "string", "resource", "variant"))

_STRING_TYPES = (object, np.object_, np.dtype(object), np.character, np.bytes_, np.str_)
_C_INTEGERS = (np.longlong, np.ulonglong, np.intc, np.uintc)
_by_value.update({float: float32, builtins.bool: bool, **dict.fromkeys(_STRING_TYPES, string)})
_by_value.update((kind, as_dtype(np.dtype(kind))) for kind in _C_INTEGERS)

ANY = frozenset(dtype for dtype in _by_value.values() if not dtype.is_ref_dtype)
FLOATING = frozenset(dtype for dtype in ANY if dtype.is_floating)
INTEGER = frozenset(dtype for dtype in ANY if dtype.is_integer)
INDEX = frozenset((int32, int64))
REAL = FLOATING | INTEGER
COMPLEX = frozenset(dtype for dtype in ANY if dtype.is_complex)
NUMERIC = REAL | COMPLEX
QUANTIZED = frozenset(dtype for dtype in ANY if dtype.is_quantized)

QUANTIZED_DTYPES = QUANTIZED | {dtype.as_ref for dtype in QUANTIZED}

publish_value("QUANTIZED_DTYPES", QUANTIZED_DTYPES)
