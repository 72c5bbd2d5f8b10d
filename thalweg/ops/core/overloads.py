"""Python's binary operators on tensors: the other operand is converted to the tensor's dtype.

`overload` wraps a public function so that `x + 1` names its nodes after the operator (`add`,
`add/y`) and its errors name both dtypes if they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.graph.composite import SparseTensor
from thalweg.graph.convert import convert_to_tensor, has_conversion
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.node import Tensor, operator
from thalweg.graph.origin import user_line
from thalweg.graph.scopes import name_scope

Function = Callable[..., Any]


def overload(symbol: str, function: Function) -> Function:
    """Make `function(x, y, name=…)` the implementation of a Python operator; returns `function`."""

    def operate(x: Any, y: Any) -> Any:
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            check_same(symbol, x, y)
            return function(x, y, name=symbol)
        with name_scope(None, symbol, [x, y]) as name:
            return function(*aligned(symbol, x, y), name=name)

    operator(symbol)(operate)
    return function


def aligned(symbol: str, x: Any, y: Any) -> tuple[Any, Any]:
    """Both operands as tensors; one without a dtype gets the dtype of the other."""
    if isinstance(x, SparseTensor) or isinstance(y, SparseTensor):
        return x, y
    kind = _own_dtype(x) or _own_dtype(y)
    left, right = _converted(symbol, x, kind, "x"), _converted(symbol, y, kind, "y")
    check_same(symbol, left, right)
    return left, right


def _own_dtype(value: Any) -> DType | None:
    if not has_conversion(value) or not hasattr(value, "dtype"):
        return None
    return as_dtype(value.dtype).base_dtype


def _converted(symbol: str, value: Any, kind: DType | None, name: str) -> Tensor:
    if _own_dtype(value) is not None:
        return convert_to_tensor(value, name=name)
    try:
        return convert_to_tensor(value, kind, name=name)
    except (TypeError, ValueError) as error:
        wanted = "a tensor" if kind is None else f"{kind.name}, the dtype of the other operand"
        raise type(error)(
            f"Operand {name} of '{symbol}', a {type(value).__name__}, cannot become {wanted}: "
            f"{error} (at {user_line()})"
        ) from error


def check_same(symbol: str, x: Tensor, y: Tensor) -> None:
    """Raise a TypeError that names both dtypes unless they are equal."""
    left, right = x.dtype.base_dtype, y.dtype.base_dtype
    if left is not right:
        raise TypeError(
            f"'{symbol}' needs operands of one dtype, got {left.name} ({x.name}, made at "
            f"{x.op.origin}) and {right.name} ({y.name}, made at {y.op.origin}); use tf.cast"
        )
