"""Conversion of Python values to tensors: a table of functions by type and priority."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.node import Tensor
from thalweg.platform.caches import memoized
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.graph.likes import DTypeLike, TensorLike

#: (value, dtype, name, as_ref) -> Tensor or NotImplemented
Conversion = Callable[..., Any]

_conversions: list[tuple[int, tuple[type, ...], Conversion]] = []  # by priority

#: Conversions for values of exactly these types, which are treated as tensors.
stand_ins: dict[type, Callable[[Any], Tensor]] = {}


@public("register_tensor_conversion_function")
def register_tensor_conversion_function(
    base_type: type | tuple[type, ...], conversion_func: Conversion, priority: int = 100
) -> None:
    """Register a conversion of values of a type to tensors; lower priorities are tried first."""
    types = base_type if isinstance(base_type, tuple) else (base_type,)
    if not all(isinstance(t, type) for t in types):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
        raise TypeError("base_type must be a type or a tuple of types.")
    if not callable(conversion_func):
        raise TypeError("conversion_func must be callable.")
    _conversions.append((priority, types, conversion_func))
    _conversions.sort(key=itemgetter(0))
    _conversions_for.cache_clear()  # pyright: ignore[reportFunctionMemberAccess] - memoized


@memoized(1_000)
def _conversions_for(value_type: type) -> list[Conversion]:
    return [convert for _, types, convert in _conversions if issubclass(value_type, types)]


def has_conversion(value: Any) -> bool:
    """Whether a conversion is registered for the type of `value`, besides that of all objects."""
    return isinstance(value, Tensor) or len(_conversions_for(value.__class__)) > 1


@public("convert_to_tensor")
def convert_to_tensor(
    value: TensorLike,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    preferred_dtype: DTypeLike | None = None,
    as_ref: bool = False,
    dtype_hint: DTypeLike | None = None,
) -> Tensor:
    """Convert a value to a tensor: tensors are returned unchanged, other values become constants.

    Args:
        value: a tensor, variable, number, array, list, or anything with a registered conversion.
        dtype: the required dtype.
        name: the name of a new node.
        preferred_dtype: the dtype to use if the value can be converted to it.
        as_ref: whether to return the reference of a variable instead of its value.
        dtype_hint: another name of `preferred_dtype`.

    Returns:
        A tensor.

    Raises:
        TypeError, ValueError: where the value has another dtype or cannot be converted.

    Example:
        >>> sess.run(tf.convert_to_tensor([[1, 2], [3, 4]], dtype=tf.float32))
        array([[1., 2.],
               [3., 4.]], dtype=float32)
    """
    preferred_dtype = dtype_hint if preferred_dtype is None else preferred_dtype
    stand_in = None if as_ref else stand_ins.get(value.__class__)
    value = value if stand_in is None else stand_in(value)
    if isinstance(value, Tensor):
        if dtype is not None and not as_dtype(dtype).is_compatible_with(value.dtype):
            raise ValueError(
                f"Tensor conversion requested dtype {as_dtype(dtype).name} for Tensor with dtype "
                f"{value.dtype.name}: {value!s} (made at {value.op.origin})"
            )
        return value
    if value is None:  # pyright: ignore[reportUnnecessaryComparison] - user input
        whose = "." if name is None else f": '{name}' is None."
        raise ValueError(f"None values not supported{whose}")
    required = None if dtype is None else as_dtype(dtype)
    if required is None and preferred_dtype is not None:
        preferred = as_dtype(preferred_dtype)
        with suppress(TypeError, ValueError):
            return _convert(value, preferred, name, as_ref)
    return _convert(value, required, name, as_ref)


def _convert(value: Any, dtype: DType | None, name: str | None, as_ref: bool) -> Tensor:
    for convert in _conversions_for(value.__class__):
        converted = convert(value, dtype=dtype, name=name, as_ref=as_ref)
        if converted is NotImplemented:
            continue
        if not isinstance(converted, Tensor):
            raise RuntimeError(f"{convert} gave {converted!r} for {value!r}, which is no Tensor")
        if dtype is not None and not dtype.is_compatible_with(converted.dtype):
            raise RuntimeError(f"{convert} gave dtype {converted.dtype.name}, not {dtype.name}")
        return converted
    raise TypeError(f"Cannot convert {value!r} with type {type(value)} to Tensor: no conversion.")


def convert_all(values: Iterable[Any], dtype: DType | None = None) -> list[Tensor]:
    """Convert values to tensors of one dtype: by default that of the first tensor among them."""
    values = list(values)
    if dtype is None:
        dtypes = (v.dtype for v in values if has_conversion(v) and hasattr(v, "dtype"))
        dtype = next(dtypes, None)
        dtype = None if dtype is None else as_dtype(dtype).base_dtype
    return [convert_to_tensor(value, dtype) for value in values]
