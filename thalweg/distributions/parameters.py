"""Parameters as tensors, checked where that was asked for, and seeds for several random ops."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import basic, checks, choosing, filling
from thalweg.ops.math import reduce, rounding, transcendental
from thalweg.ops.nn import softmax


def floats(*values: Any) -> list[Tensor]:
    """Tensors of one floating dtype; Python numbers take that of the tensors beside them."""
    kinds = [as_dtype(v.dtype).base_dtype for v in values if hasattr(v, "dtype")]
    kind = kinds[0] if kinds else None
    tensors = [convert_to_tensor(value, kind) for value in values]
    checks.assert_same_float_dtype(tensors)
    return tensors


def after(assertions: Sequence[Node], tensor: Tensor, name: str | None = None) -> Tensor:
    """`tensor` under its own name, once the assertions hold."""
    return basic.with_dependencies(assertions, tensor, name=name)


def logits_and_probs(
    logits: Any, probs: Any, many_classes: bool, validate_args: bool, name: str
) -> tuple[Tensor, Tensor]:
    """(log-odds, probabilities) from one of the two; log-probabilities for many classes."""
    if (logits is None) == (probs is None):
        raise ValueError("Must pass probs or logits, but not both.")
    with name_scope(name, values=[logits, probs]):
        if probs is None:
            (given,) = floats(logits)
            normalise = softmax.softmax if many_classes else transcendental.sigmoid
            return given, normalise(given, name="probs")
        (given,) = floats(probs)
        if validate_args:
            given = after(_probability_checks(given, many_classes), given)
        logarithm = transcendental.log(given)
        return logarithm if many_classes else logarithm - transcendental.log1p(-given), given


def _probability_checks(probs: Tensor, many_classes: bool) -> list[Node]:
    one = convert_to_tensor(1, probs.dtype)
    positive = checks.assert_non_negative(probs, message="probs has negative components.")
    if not many_classes:
        most = checks.assert_less_equal(probs, one, message="probs has components greater than 1.")
        return [positive, most]
    total = reduce.reduce_sum(probs, axis=-1)
    return [positive, checks.assert_near(total, one, message="probs does not sum to 1.")]


def is_integer(x: Tensor, message: str) -> list[Node]:
    """Checks that the elements are integers, whatever their dtype."""
    if x.dtype.is_integer:
        return []
    return [checks.assert_equal(x, rounding.floor(x), message=message)]


def is_count(x: Tensor, what: str) -> list[Node]:
    """Checks that the elements are integers and not negative."""
    return [
        checks.assert_non_negative(x, message=f"{what} must be non-negative."),
        *is_integer(x, f"{what} cannot contain fractional components."),
    ]


def defined(value: Tensor, where: Tensor, allowed: bool, message: str) -> Tensor:
    """`value` where a moment is defined; elsewhere nan, or an error if nan is not allowed."""
    if not allowed:
        return after([checks.Assert(reduce.reduce_all(where), [message])], value)
    return choose(where, value, math.nan)


def choose(condition: Tensor, x: Tensor, y: Any) -> Tensor:
    """Elements of `x` where the condition holds, else of `y`, all broadcast together."""
    return choosing.where_v2(condition, x, convert_to_tensor(y, x.dtype.base_dtype))


def broadcast_all(*tensors: Tensor) -> list[Tensor]:
    """The tensors, broadcast to one shape."""
    zeros = sum(filling.zeros_like(tensor) for tensor in tensors)
    return [tensor + zeros for tensor in tensors]


def event_axes(event_ndims: Any) -> int:
    """The number of axes of an event, which must be known when the graph is built."""
    known = constant_value(event_ndims) if isinstance(event_ndims, Tensor) else event_ndims
    if known is None or int(known) != known:
        raise ValueError(f"event_ndims must be an integer known now, got {event_ndims!r}")
    return int(known)


def new_seed(seed: int | None, salt: str) -> int | None:
    """A seed for the next random op of a sampler, so that its numbers are independent."""
    if seed is None:
        return None
    digest = hashlib.md5(f"{seed}{salt}".encode(), usedforsecurity=False).hexdigest()
    return int(digest[:8], 16) & 0x7FFFFFFF
