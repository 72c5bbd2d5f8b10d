"""`tf.case`: the first of several predicates that holds decides, by a chain of conditionals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from thalweg.control.branches import cond
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import bool as boolean
from thalweg.graph.dtypes import int32
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.origin import user_line
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import joining
from thalweg.ops.core import casting, checks
from thalweg.ops.math import compare, reduce
from thalweg.public import public

Function = Callable[[], Any]
Pair = tuple[Tensor, Function]


@public("case")
def case(
    pred_fn_pairs: Mapping[Tensor, Callable[[], Structure]]
    | Sequence[tuple[TensorLike, Callable[[], Structure]]],
    default: Function | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Structure:
    """What the function of the first predicate that holds returns.

    Args:
        pred_fn_pairs: a list of (scalar bool tensor, function), or a dict.
        default: a function for when none holds; without one, that is an error of the step.
        exclusive: whether more than one that holds is an error of the step.
        strict: keep a list of one element as it is, instead of giving the element.
        name: the name of the nodes.

    Returns:
        What the functions return: the same structure of tensors, of the same dtypes.

    Example:
        >>> x = tf.placeholder(tf.int32, [])
        >>> pairs = [(x < 10, lambda: tf.constant(1)), (x < 100, lambda: tf.constant(2))]
        >>> digits = tf.case(pairs, default=lambda: tf.constant(3))
        >>> sess.run(digits, {x: 42})
        np.int32(2)
    """
    with name_scope(name, "case"):
        pairs = _pairs(pred_fn_pairs)
        if default is not None and not callable(default):
            raise TypeError("default must be callable.")
        asserts: list[Any] = []
        truths = joining.stack([predicate for predicate, _ in pairs])
        if exclusive:
            asserts.append(_at_most_one(truths))
        rest = pairs
        if default is None:
            asserts.append(_at_least_one(truths))
            default, rest = pairs[-1][1], pairs[:-1]
        with get_default_graph().control_dependencies(asserts):
            return _chain(rest, default, strict, asserts)


def _chain(pairs: Sequence[Pair], default: Function, strict: bool, asserts: Sequence[Any]) -> Any:
    """Nested conditionals, the last one innermost."""
    function = default
    for predicate, chosen in reversed(pairs[1:]):
        function = _choice(predicate, chosen, function)
    if not pairs:
        always = convert_to_tensor(True)
        return cond(always, function, function, strict=strict)
    predicate, chosen = pairs[0]
    return cond(predicate, chosen, function, strict=strict)


def _choice(predicate: Tensor, chosen: Function, otherwise: Function) -> Function:
    return lambda: cond(predicate, chosen, otherwise, strict=True)


def _at_most_one(truths: Tensor) -> Any:
    count = reduce.reduce_sum(casting.cast(truths, int32))
    message = "More than one condition evaluated as True but exclusive=True."
    return checks.Assert(compare.less_equal(count, 1), [message, truths], summarize=10)


def _at_least_one(truths: Tensor) -> Any:
    message = "None of the conditions evaluated as True, and there is no default."
    return checks.Assert(reduce.reduce_any(truths), [message, truths], summarize=10)


def _pairs(given: Any) -> list[Pair]:
    if isinstance(given, Mapping):
        items: list[Any] = list(cast("Mapping[Any, Any]", given).items())
    elif isinstance(given, list | tuple):
        items = list(cast("Sequence[Any]", given))
    else:
        raise TypeError(f"pred_fn_pairs must be a list, tuple, or dict (at {user_line()})")
    if not items:
        raise ValueError(f"pred_fn_pairs must not be empty (at {user_line()})")
    return [_pair(item) for item in items]


def _pair(item: Any) -> Pair:
    if not isinstance(item, tuple) or len(cast("Any", item)) != 2:
        raise TypeError(
            f"Each entry in pred_fn_pairs must be a 2-tuple, not {item!r} (at {user_line()})"
        )
    predicate, function = cast("tuple[Any, Any]", item)
    if predicate is None:
        raise TypeError(f"pred must be of type bool, not None (at {user_line()})")
    if not callable(function):
        raise TypeError(f"fn for pred {predicate!r} must be callable. (at {user_line()})")
    tensor = convert_to_tensor(predicate)
    if tensor.dtype.base_dtype is not boolean:
        raise TypeError(f"pred must be of type bool: {predicate!r} (at {user_line()})")
    return tensor, function
