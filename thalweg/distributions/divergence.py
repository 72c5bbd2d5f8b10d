"""The Kullback-Leibler divergence: a table from pairs of distribution classes to formulas.

A pair of subclasses finds the formula of the nearest pair of their base classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import basic, checks
from thalweg.ops.math import compare, reduce
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.distributions.base import Distribution

Formula = Callable[..., Tensor]

_formulas: dict[tuple[type, type], Formula] = {}


@public("distributions.RegisterKL", "contrib.distributions.RegisterKL")
class RegisterKL:
    """Decorates the function `(a, b, name=None)` that gives KL(a || b) for two classes."""

    def __init__(self, dist_cls_a: type, dist_cls_b: type) -> None:
        self._pair = dist_cls_a, dist_cls_b

    def __call__(self, kl_fn: Formula) -> Formula:
        if not callable(kl_fn):
            raise TypeError(f"kl_fn must be callable, received: {kl_fn!r}")
        first, second = (kind.__name__ for kind in self._pair)
        if self._pair in _formulas:
            known = _formulas[self._pair]
            raise ValueError(f"KL({first} || {second}) has already been registered to: {known}")
        _formulas[self._pair] = kl_fn
        return kl_fn


@public("distributions.kl_divergence", "contrib.distributions.kl_divergence")
def kl_divergence(
    distribution_a: object,
    distribution_b: object,
    allow_nan_stats: bool = True,
    name: str | None = None,
) -> Tensor:
    """KL(a || b) for each pair of distributions; with `allow_nan_stats=False` a nan fails.

    Args:
        distribution_a, distribution_b: distributions.
        allow_nan_stats: whether undefined values are nan, or an error.
        name: the name of the nodes.

    Returns:
        A tensor.

    Example:
        >>> a, b = tf.distributions.Normal(0.0, 1.0), tf.distributions.Normal(1.0, 1.0)
        >>> sess.run(tf.distributions.kl_divergence(a, b))
        np.float32(0.5)
    """
    formula = _nearest(type(distribution_a), type(distribution_b))
    if formula is None:
        kinds = type(distribution_a).__name__, type(distribution_b).__name__
        raise NotImplementedError(
            "No KL(distribution_a || distribution_b) registered for distribution_a type "
            f"{kinds[0]} and distribution_b type {kinds[1]}"
        )
    with name_scope(name, "KullbackLeibler"):
        value = formula(distribution_a, distribution_b, name=name)
        return value if allow_nan_stats else _without_nan(value, distribution_a, distribution_b)


def _nearest(a: type, b: type) -> Formula | None:
    """The formula of the pair of base classes that is fewest steps up."""
    found = [
        (steps_a + steps_b, _formulas[base_a, base_b])
        for steps_a, base_a in enumerate(a.__mro__)
        for steps_b, base_b in enumerate(b.__mro__)
        if (base_a, base_b) in _formulas
    ]
    return min(found, key=lambda item: item[0])[1] if found else None


def _without_nan(value: Tensor, a: Any, b: Any) -> Tensor:
    words = (
        f"KL calculation between {a.name} and {b.name} returned NaN values (and was called with "
        "allow_nan_stats=False). Values:"
    )
    fine = compare.logical_not(reduce.reduce_any(compare.is_nan(value)))
    return basic.with_dependencies([checks.Assert(fine, [words, value])], value)


@public("distributions.cross_entropy", "contrib.distributions.cross_entropy")
def cross_entropy(
    ref: Distribution, other: Distribution, allow_nan_stats: bool = True, name: str | None = None
) -> Tensor:
    """-E log other(X), X from `ref`."""
    with name_scope(name, "cross_entropy"):
        return ref.entropy() + kl_divergence(ref, other, allow_nan_stats=allow_nan_stats)
