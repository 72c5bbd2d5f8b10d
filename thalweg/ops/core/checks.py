"""Checks of values, ranks and dtypes, made at graph construction where possible.

A check that static information refutes raises at once; one that it cannot decide becomes a node
that fails the step with the offending data. Make other nodes depend on it:
`tf.control_dependencies([check])`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.analysis.effects import Resource, writes
from thalweg.graph.composite import SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graph import get_default_graph
from thalweg.graph.known import constant_value
from thalweg.graph.likes import TensorLike, UserObject
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import control_dependencies, name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core import basic, printing, shaping
from thalweg.ops.core.context import Context
from thalweg.ops.math import compare, reduce
from thalweg.platform.arrays import Array
from thalweg.platform.docstrings import composed
from thalweg.public import public


class AssertOp(Op, name="Assert"):
    """Fails the step, showing `data`, unless `condition` is true."""

    signature = "condition: bool, data: [T] ->"
    effects = (writes(Resource.STEP),)
    stateful = True
    host_only = True
    not_differentiable = True
    summarize: int = 3

    def shape(self, condition: Tensor, data: list[Tensor]) -> list[TensorShape]:
        return []

    def kernel(self, context: Context, condition: Array, data: list[Array]) -> tuple[()]:
        if np.size(condition) != 1:
            raise errors.invalid(f"condition must be a scalar, got shape {np.shape(condition)}")
        if not np.all(condition):
            raise printing.failed_assertion(data, self.summarize)
        return ()


@public("Assert", "debugging.Assert")
def Assert(
    condition: Any, data: Sequence[Any], summarize: int | None = None, name: str | None = None
) -> Node:
    """A node that fails the step, showing data, if a condition is false.

    Make other nodes wait for the check: `tf.control_dependencies([check])`.

    Args:
        condition: a scalar bool.
        data: a list of tensors to show.
        summarize: how many elements of each are shown; 3 if None.
        name: the name of the node.

    Returns:
        A node.

    Raises:
        InvalidArgumentError: when the step runs.

    Example:
        >>> x = tf.placeholder(tf.float32, [])
        >>> with tf.control_dependencies([tf.Assert(x > 0, [x])]):
        ...     y = tf.log(x)
        >>> sess.run(y, {x: 1.0})
        np.float32(0.0)
    """
    with name_scope(name, "Assert", [condition, data]) as scope:
        op = AssertOp(summarize=3 if summarize is None else summarize)
        return op(condition, list(data), name=scope)


# Comparisons

_SHOWN = {
    "data": "tensors to show; by default what was compared.",
    "summarize": "how many elements of each are shown; 3 if None.",
    "message": "a text to show first.",
    "name": "the name of the nodes.",
}


_COMPARED = """

Example:
    >>> x = tf.constant([{x}])
    >>> with tf.control_dependencies([tf.{name}(x, {y})]):
    ...     checked = tf.identity(x)
    >>> sess.run(checked)
    array([{x}], dtype=int32)"""

_SIGNED = """

Example:
    >>> x = tf.constant([{x}])
    >>> with tf.control_dependencies([tf.{name}(x)]):
    ...     checked = tf.identity(x)
    >>> sess.run(checked)
    array([{x}], dtype=int32)"""

#: x and y for which a relation holds
_HOLDS = {"==": (2, 2), "!=": (2, 3), "<": (2, 3), "<=": (2, 3), ">": (3, 2), ">=": (3, 2)}


def _comparison(default_name: str, symbol: str, relation: str) -> Any:
    """The public function that asserts `x ? y` for every pair of elements."""

    @public(default_name, f"debugging.{default_name}")
    def check(
        x: Any,
        y: Any,
        data: Sequence[Any] | None = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Node:
        with name_scope(name, default_name, [x, y, data]):
            left, right = _pair(x, y)
            shown = data or _default_data(message, symbol, left, right)
            holds = getattr(compare, relation)(left, right)
            return Assert(reduce.reduce_all(holds), shown, summarize)

    check.__name__ = check.__qualname__ = default_name
    about = f"A node that fails the step unless x {symbol} y for every pair of elements."
    x, y = _HOLDS[symbol]
    about += _COMPARED.format(name=default_name, x=x, y=y)
    given = {"x": "a tensor.", "y": "a tensor of the same dtype, of a shape that broadcasts."}
    check.__doc__ = composed(about, given | _SHOWN, "A node: make others depend on it.")
    return check


def _pair(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    if isinstance(y, Tensor) and not isinstance(x, Tensor):
        return convert_to_tensor(x, y.dtype.base_dtype, name="x"), y
    left = convert_to_tensor(x, name="x")
    return left, convert_to_tensor(y, left.dtype.base_dtype, name="y")


def _default_data(message: str | None, symbol: str, x: Tensor, y: Tensor) -> list[Any]:
    return [
        message or "",
        f"Condition x {symbol} y did not hold element-wise: x = ",
        x.name,
        x,
        "y = ",
        y.name,
        y,
    ]


assert_equal = _comparison("assert_equal", "==", "equal")
assert_none_equal = _comparison("assert_none_equal", "!=", "not_equal")
assert_less = _comparison("assert_less", "<", "less")
assert_less_equal = _comparison("assert_less_equal", "<=", "less_equal")
assert_greater = _comparison("assert_greater", ">", "greater")
assert_greater_equal = _comparison("assert_greater_equal", ">=", "greater_equal")


def _sign(default_name: str, symbol: str, relation: str) -> Any:
    """The public function that asserts `x ? 0` for every element."""

    @public(default_name, f"debugging.{default_name}")
    def check(
        x: Any,
        data: Sequence[Any] | None = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Node:
        with name_scope(name, default_name, [x, data]):
            tensor = convert_to_tensor(x, name="x")
            zero = convert_to_tensor(0, tensor.dtype.base_dtype)
            words = f"Condition x {symbol} 0 did not hold element-wise: x = "
            shown = data or [message or "", words, tensor.name, tensor]
            holds = getattr(compare, relation)(tensor, zero)
            return Assert(reduce.reduce_all(holds), shown, summarize)

    check.__name__ = check.__qualname__ = default_name
    about = f"A node that fails the step unless x {symbol} 0 for every element."
    about += _SIGNED.format(name=default_name, x=-2 if "<" in symbol else 2)
    given = {"x": "a real tensor."}
    check.__doc__ = composed(about, given | _SHOWN, "A node: make others depend on it.")
    return check


assert_negative = _sign("assert_negative", "<", "less")
assert_positive = _sign("assert_positive", ">", "greater")
assert_non_negative = _sign("assert_non_negative", ">=", "greater_equal")
assert_non_positive = _sign("assert_non_positive", "<=", "less_equal")


@public("assert_near", "debugging.assert_near")
def assert_near(
    x: Any,
    y: Any,
    rtol: Any = None,
    atol: Any = None,
    data: Sequence[Any] | None = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Node:
    """A node that fails the step unless |x - y| <= atol + rtol |y| for every pair of elements."""
    with name_scope(name, "assert_near", [x, y, rtol, atol, data]):
        left, right = _pair(x, y)
        kind = left.dtype.base_dtype
        relative = _tolerance(rtol, kind, "rtol")
        absolute = _tolerance(atol, kind, "atol")
        limit = absolute + relative * abs(right)
        shown = data or [
            *_default_data(message, "and", left, right),
            "are not equal to tolerance rtol, atol = ",
            relative,
            absolute,
        ]
        return Assert(reduce.reduce_all(abs(left - right) <= limit), shown, summarize)


def _tolerance(given: Any, kind: DType, name: str) -> Tensor:
    """The given tolerance, or ten times the dtype's machine epsilon."""
    real = kind.real_dtype
    if given is None:
        given = 10 * float(np.spacing(real.as_numpy_dtype(1))) if real.is_floating else 0
    return convert_to_tensor(given, real, name=name)


# Ranks and shapes


@public("assert_rank", "debugging.assert_rank")
def assert_rank(
    x: TensorLike,
    rank: TensorLike,
    data: Sequence[Any] | None = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Node:
    """Check that `x` has `rank` axes: now if both are known, else in the step.

    Args:
        x: a tensor.
        rank: the number of axes.
        data: tensors to show; by default what was compared.
        summarize: how many elements of each are shown; 3 if None.
        message: a text to show first.
        name: the name of the nodes.

    Returns:
        A node: make others depend on it.

    Example:
        >>> try:
        ...     check = tf.assert_rank(tf.zeros([2, 3]), 1, message="a vector, please")
        ... except ValueError as error:
        ...     print(str(error)[:16])
        a vector, please
    """
    with name_scope(name, "assert_rank", [x]):
        rule = _RankRule("rank", operator.eq, compare.equal)
        return rule.check(x, rank, data, summarize, message)


@public("assert_rank_at_least", "debugging.assert_rank_at_least")
def assert_rank_at_least(
    x: TensorLike,
    rank: TensorLike,
    data: Sequence[Any] | None = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Node:
    """Check that `x` has `rank` axes or more: now if both are known, else in the step."""
    with name_scope(name, "assert_rank_at_least", [x]):
        rule = _RankRule("rank at least", operator.ge, compare.greater_equal)
        return rule.check(x, rank, data, summarize, message)


class _RankRule:
    """One relation between a tensor's rank and a wanted one, static and in the step."""

    def __init__(
        self, words: str, holds: Callable[[int, int], bool], node: Callable[..., Tensor]
    ) -> None:
        self._words = words
        self._holds = holds
        self._node = node

    def check(
        self,
        x: Any,
        rank: Any,
        data: Sequence[Any] | None,
        summarize: int | None,
        message: str | None,
    ) -> Node:
        tensor, wanted = convert_to_tensor(x, name="x"), _rank_tensor(rank)
        known = constant_value(wanted)
        if known is not None and tensor.shape.rank is not None:
            self._check_now(tensor, int(known), message)
            return basic.no_op(name="static_checks_determined_all_ok")
        shape = shaping.shape(tensor)
        words = f"Tensor {tensor.name} must have {self._words}"
        shown = data or [message or "", words, wanted, "Received shape: ", shape]
        condition = self._node(shaping.rank(tensor), wanted)
        if known is None:
            condition = _with_scalar_rank(wanted, condition)
        return Assert(condition, shown, summarize)

    def _check_now(self, tensor: Tensor, wanted: int, message: str | None) -> None:
        actual = tensor.shape.rank or 0
        if not self._holds(actual, wanted):
            raise ValueError(
                f"{message or ''}.  Tensor {tensor.name} must have {self._words} {wanted}.  "
                f"Received rank {actual}, shape {tensor.shape}"
            )


def _rank_tensor(rank: Any) -> Tensor:
    tensor = convert_to_tensor(rank, name="rank")
    assert_type(tensor, dtypes.int32)
    value = constant_value(tensor)
    if value is not None and value.ndim:
        raise ValueError(f"Rank must be a scalar, got {value.tolist()}")
    return tensor


def _with_scalar_rank(rank: Tensor, condition: Tensor) -> Tensor:
    """The condition, after a check that the wanted rank is a scalar."""
    check = assert_rank(rank, 0, data=["Rank must be a scalar. Received rank: ", rank])
    return basic.with_dependencies([check], condition)


@public("assert_rank_in", "debugging.assert_rank_in")
def assert_rank_in(
    x: Any,
    ranks: Iterable[Any],
    data: Sequence[Any] | None = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Node:
    """Check that the rank of `x` is one of `ranks`: now if all are known, else in the step."""
    with name_scope(name, "assert_rank_in", [x]):
        tensor, wanted = convert_to_tensor(x, name="x"), [_rank_tensor(rank) for rank in ranks]
        known = [value for value in map(constant_value, wanted) if value is not None]
        actual = tensor.shape.rank
        if actual is not None and len(known) == len(wanted):
            if actual not in [int(value) for value in known]:
                raise ValueError(
                    f"{message or ''}.  Tensor {tensor.name} must have rank in "
                    f"{tuple(map(int, known))}.  Received rank {actual}, shape {tensor.shape}"
                )
            return basic.no_op(name="static_checks_determined_all_ok")
        words = f"Tensor {tensor.name} must have rank in"
        shape = shaping.shape(tensor)
        shown = data or [message or "", words, *wanted, "Received shape: ", shape]
        matches = compare.equal(shaping.rank(tensor), convert_to_tensor(wanted))
        return Assert(reduce.reduce_any(matches), shown, summarize)


@public("assert_scalar", "debugging.assert_scalar")
def assert_scalar(tensor: Any, name: str | None = None, message: str | None = None) -> Tensor:
    """`tensor`, whose static shape must show that it is a scalar."""
    with name_scope(name, "assert_scalar", [tensor]):
        found = convert_to_tensor(tensor)
        if found.shape.rank != 0:
            raise ValueError(
                f"{message or ''}Expected scalar shape for {found.name}, saw shape: {found.shape}."
            )
        return found


@public("debugging.assert_shapes")
def assert_shapes(
    shapes: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
    data: Sequence[Any] | None = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Node:
    """Check tensors against shapes whose sizes may be names: equal names mean equal sizes.

    `assert_shapes([(x, ("N", 3)), (y, ("N", "D"))])`. None and "." admit any size; a leading
    "..." any number of axes.
    """
    pairs = list(cast(Any, shapes).items() if isinstance(shapes, Mapping) else shapes)
    with name_scope(name, "assert_shapes", [data]):
        named: dict[Any, Tensor] = {}
        checks: list[Node] = []
        for tensor, wanted in pairs:
            checks += _shape_checks(convert_to_tensor(tensor), wanted, named, message, summarize)
        return basic.group(*checks, name="shapes_ok")


def _shape_checks(
    tensor: Tensor, wanted: Any, named: dict[Any, Tensor], message: str | None, limit: int | None
) -> list[Node]:
    sizes = list(cast("Iterable[Any]", wanted)) if isinstance(wanted, Iterable) else [wanted]
    open_rank = bool(sizes) and sizes[0] in (Ellipsis, "...")
    sizes = sizes[1:] if open_rank else sizes
    check_rank = assert_rank_at_least if open_rank else assert_rank
    checks = [check_rank(tensor, len(sizes), message=message)]
    actual = shaping.shape(tensor)
    for index, size in enumerate(sizes):
        if size is None or size == ".":
            continue
        found = actual[index - len(sizes)]
        known = convert_to_tensor(size) if isinstance(size, int) else named.setdefault(size, found)
        if known is not found:
            words = f"{message or ''} Tensor {tensor.name} dimension {index} must have size {size}:"
            checks.append(assert_equal(found, known, [words, found, known], limit))
    return checks


# Dtypes


@public("assert_integer", "debugging.assert_integer")
def assert_integer(x: Any, message: str | None = None, name: str | None = None) -> Node:
    """Check that `x` has an integer dtype."""
    with name_scope(name, "assert_integer", [x]):
        tensor = convert_to_tensor(x, name="x")
        if not tensor.dtype.is_integer:
            raise TypeError(
                f'{message or ""}  Expected "x" to be integer type.  Found: {tensor.name} of dtype '
                f"{tensor.dtype}"
            )
        return basic.no_op(name="statically_determined_was_integer")


@public("assert_type", "debugging.assert_type")
def assert_type(
    tensor: Any, tf_type: Any, message: str | None = None, name: str | None = None
) -> Node:
    """Check the dtype of a tensor."""
    with name_scope(name, "assert_type", [tensor]):
        found = convert_to_tensor(tensor, name="tensor")
        if found.dtype != as_dtype(tf_type):
            raise TypeError(f"{message or ''}  {found.op.name} must be of type {tf_type!s}")
        return basic.no_op(name="statically_determined_correct_type")


@public("assert_same_float_dtype", "debugging.assert_same_float_dtype")
def assert_same_float_dtype(tensors: Sequence[Any] | None = None, dtype: Any = None) -> DType:
    """The one floating dtype of all `tensors` (float32 if there are none); else a ValueError."""
    found = [t.dtype.base_dtype for t in tensors or () if t is not None]
    kinds = found if dtype is None else [as_dtype(dtype).base_dtype, *found]
    for kind in kinds:
        if kind is not kinds[0]:
            raise ValueError(f"Tensors must all be of type {kinds[0].name}, got {kind.name}")
    chosen = kinds[0] if kinds else dtypes.float32
    if not chosen.is_floating:
        raise ValueError(f"Expected floating point type, got {chosen.name}.")
    return chosen


@public("is_numeric_tensor", "debugging.is_numeric_tensor")
def is_numeric_tensor(tensor: UserObject) -> bool:
    """Whether this is a tensor of numbers (not of bools or strings)."""
    numeric = dtypes.NUMERIC | dtypes.QUANTIZED
    return isinstance(tensor, Tensor) and tensor.dtype.base_dtype in numeric


@public("assert_proper_iterable", "debugging.assert_proper_iterable")
def assert_proper_iterable(values: UserObject) -> None:
    """Raise a TypeError unless `values` is an iterable other than a string, tensor or array."""
    if isinstance(values, Tensor | SparseTensor | np.ndarray | str | bytes):
        raise TypeError(
            'Expected argument "values" to be a "proper" iterable.  '
            f"Found: {type(cast(Any, values))}"
        )
    if not hasattr(values, "__iter__"):
        raise TypeError(f'Expected argument "values" to be iterable.  Found: {type(values)}')


# Order


@public("is_non_decreasing", "debugging.is_non_decreasing", "math.is_non_decreasing")
def is_non_decreasing(x: Any, name: str | None = None) -> Tensor:
    """Whether no element is smaller than the one before it, in row-major order."""
    with name_scope(name, "is_non_decreasing", [x]):
        flat = _flat_numbers(x)
        return reduce.reduce_all(flat[:-1] <= flat[1:])


@public("is_strictly_increasing", "debugging.is_strictly_increasing", "math.is_strictly_increasing")
def is_strictly_increasing(x: Any, name: str | None = None) -> Tensor:
    """Whether every element is larger than the one before it, in row-major order."""
    with name_scope(name, "is_strictly_increasing", [x]):
        flat = _flat_numbers(x)
        return reduce.reduce_all(flat[:-1] < flat[1:])


def _flat_numbers(x: Any) -> Tensor:
    tensor = convert_to_tensor(x, name="x")
    if not is_numeric_tensor(tensor):
        raise TypeError(f"Expected x to be numeric, instead found: {tensor}")
    return shaping.reshape(tensor, [-1])


# Finite values


class CheckNumerics(Op):
    """y = x; fails the step if an element is infinite or not a number"""

    signature = "tensor: T -> output: T; T: floating"
    host_only = True  # a loop cannot fail the step
    message: str

    def shape(self, tensor: Tensor) -> TensorShape:
        return tensor.shape

    def numpy(self, tensor: Array) -> Array:
        found = ["Inf"] * bool(np.any(np.isinf(tensor))) + ["NaN"] * bool(np.any(np.isnan(tensor)))
        if found:
            raise errors.invalid(f"{self.message} : Tensor had {' and '.join(found)} values")
        return tensor

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        words = "Not a number (NaN) or infinity (Inf) values detected in gradient."
        return check_numerics(dy, f"{words} {self.message}")


@public("check_numerics", "debugging.check_numerics")
def check_numerics(tensor: Any, message: str, name: str | None = None) -> Tensor:
    """`tensor`; the step fails if an element is infinite or not a number.

    Args:
        tensor: a floating tensor.
        message: a text for the error.
        name: the name of the node.

    Returns:
        A tensor of the value of `tensor`.

    Raises:
        InvalidArgumentError: when the step runs.

    Example:
        >>> sess.run(tf.check_numerics([1.0, 2.0], "the logits"))
        array([1., 2.], dtype=float32)
    """
    return CheckNumerics(message=message)(tensor, name=name)


@public("verify_tensor_all_finite", "debugging.assert_all_finite")
def verify_tensor_all_finite(
    t: Any = None,
    msg: str | None = None,
    name: str | None = None,
    x: Any = None,
    message: str | None = None,
) -> Tensor:
    """The tensor; the step fails with the message if an element is infinite or not a number."""
    with name_scope(name, "VerifyFinite", [t if x is None else x]):
        tensor = convert_to_tensor(t if x is None else x, name="t")
        text = msg if message is None else message
        with get_default_graph().colocate_with(tensor.op):
            check = check_numerics(tensor, text or "")
            return basic.with_dependencies([check], tensor)


@public("add_check_numerics_ops")
def add_check_numerics_ops() -> Node:
    """A node that checks every floating tensor of the graph, in topological order."""
    check: list[Tensor] = []
    for node in get_default_graph().get_operations():
        for output in node.outputs:
            if output.dtype in dtypes.FLOATING:
                with control_dependencies(check):
                    check = [check_numerics(output, output.name)]
    return basic.group(*check)
