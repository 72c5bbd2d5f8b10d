"""Metrics of scores in [0, 1] that are cut at thresholds: counts, precision, recall, AUC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.graph.dtypes import bool as boolean
from thalweg.graph.dtypes import float32, int32
from thalweg.graph.likes import Collections, TensorLike
from thalweg.graph.node import Tensor
from thalweg.losses.matching import match
from thalweg.metrics.local import (
    Metric,
    accumulate,
    metric,
    metric_variable,
    published,
    spread,
)
from thalweg.ops.arrays import searching
from thalweg.ops.core import basic, casting, checks, choosing, filling, shaping
from thalweg.ops.math import arithmetic, compare, division, reduce, transcendental
from thalweg.public import public
from thalweg.variables.scope import variable_scope

_EPSILON = 1e-7  # keeps quotients of counts finite
_NAMES = {
    "tp": "true_positives",
    "fn": "false_negatives",
    "tn": "true_negatives",
    "fp": "false_positives",
}

#: Counts at each threshold by the keys of _NAMES.
Counts = dict[str, Any]


def confusion_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Sequence[float],
    weights: TensorLike | None = None,
    includes: Sequence[str] = tuple(_NAMES),
) -> tuple[Counts, Counts]:
    """The counts so far and the ops that update them, each a vector over the thresholds."""
    labels, predictions, weights = match(
        casting.cast(labels, boolean), _within_one(predictions), weights
    )
    scores = shaping.reshape(predictions, [1, -1])
    cuts = shaping.expand_dims(basic.constant(list(thresholds), float32), 1)
    positive = compare.greater(scores, cuts)
    label = shaping.reshape(labels, [1, -1])
    amounts = None if weights is None else shaping.reshape(spread(weights, predictions), [1, -1])
    values: Counts = {}
    updates: Counts = {}
    for key in includes:
        variable = metric_variable([len(thresholds)], float32, name=_NAMES[key])
        cases = casting.cast(_cases(key, label, positive), float32)
        weighed = cases if amounts is None else cases * amounts
        values[key] = basic.identity(variable)
        updates[key] = accumulate(variable, reduce.reduce_sum(weighed, 1))
    return values, updates


def _within_one(predictions: TensorLike) -> Tensor:
    """The predictions, checked in the step to lie in [0, 1]."""
    scores = casting.cast(predictions, float32)
    message = "predictions must be in [0, 1]"
    low = checks.assert_greater_equal(scores, 0.0, message=message)
    high = checks.assert_less_equal(scores, 1.0, message=message)
    return basic.with_dependencies([low, high], scores)


def _cases(key: str, label: Tensor, positive: Tensor) -> Tensor:
    if key in ("fn", "tn"):
        positive = compare.logical_not(positive)
    if key in ("fp", "tn"):
        label = compare.logical_not(label)
    return compare.logical_and(positive, label)


def _metric(
    name: str | None,
    default_name: str,
    formula: Callable[[Counts, str], Tensor],
    confusion: tuple[Any, ...],
    includes: Sequence[str],
    collections: tuple[Collections, Collections],
) -> Metric:
    """A metric that `formula` makes of the counts."""
    labels, predictions, thresholds, weights = confusion
    with variable_scope(name, default_name, [labels, predictions, weights]):
        values, updates = confusion_at_thresholds(
            labels, predictions, thresholds, weights, includes
        )
        return published(formula(values, "value"), formula(updates, "update_op"), *collections)


def _count_metric(key: str) -> Callable[..., Metric]:
    default_name = _NAMES[key]

    def function(
        labels: TensorLike,
        predictions: TensorLike,
        thresholds: Sequence[float],
        weights: TensorLike | None = None,
        metrics_collections: Collections = None,
        updates_collections: Collections = None,
        name: str | None = None,
    ) -> Metric:
        def formula(counts: Counts, _: str) -> Tensor:
            return counts[key]

        confusion = labels, predictions, thresholds, weights
        collections = metrics_collections, updates_collections
        return _metric(name, default_name, formula, confusion, (key,), collections)

    function.__name__ = function.__qualname__ = f"{default_name}_at_thresholds"
    function.__doc__ = f"The {default_name.replace('_', ' ')} at each threshold."
    described = metric(
        returns="(value, update), vectors.",
        labels="truth values.",
        predictions="floats in [0, 1] of the same shape.",
    )
    return public(f"metrics.{function.__name__}")(described(function))


true_positives_at_thresholds = _count_metric("tp")
false_negatives_at_thresholds = _count_metric("fn")
true_negatives_at_thresholds = _count_metric("tn")
false_positives_at_thresholds = _count_metric("fp")


@public("metrics.precision_at_thresholds")
@metric()
def precision_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Sequence[float],
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The precision at each threshold."""

    def formula(counts: Counts, name: str) -> Tensor:
        predicted = _EPSILON + counts["tp"] + counts["fp"]
        return division.divide(counts["tp"], predicted, name=f"precision_{name}")

    confusion = labels, predictions, thresholds, weights
    collections = metrics_collections, updates_collections
    default = "precision_at_thresholds"
    return _metric(name, default, formula, confusion, ("tp", "fp"), collections)


@public("metrics.recall_at_thresholds")
@metric()
def recall_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Sequence[float],
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The recall at each threshold."""

    def formula(counts: Counts, name: str) -> Tensor:
        positive = _EPSILON + counts["tp"] + counts["fn"]
        return division.divide(counts["tp"], positive, name=f"recall_{name}")

    confusion = labels, predictions, thresholds, weights
    collections = metrics_collections, updates_collections
    return _metric(name, "recall_at_thresholds", formula, confusion, ("tp", "fn"), collections)


def _even_thresholds(count: int) -> list[float]:
    """Thresholds at even distances, the outer ones just beyond [0, 1]."""
    inner = [(i + 1) / (count - 1) for i in range(count - 2)]
    return [-_EPSILON, *inner, 1.0 + _EPSILON]


@public("metrics.sensitivity_at_specificity")
@metric(specificity="the specificity to come near, in [0, 1].")
def sensitivity_at_specificity(
    labels: TensorLike,
    predictions: TensorLike,
    specificity: float,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The sensitivity at the threshold whose specificity is nearest to a given one."""
    if not 0 <= specificity <= 1:
        raise ValueError("`specificity` must be in the range [0, 1].")

    def formula(counts: Counts, name: str) -> Tensor:
        negative = counts["tn"] + counts["fp"] + _EPSILON
        distances = arithmetic.absolute(counts["tn"] / negative - specificity)
        at = casting.cast(searching.argmin(distances, 0), int32)
        found, missed = counts["tp"][at], counts["fn"][at]
        return division.divide(found, found + missed + _EPSILON, name=name)

    confusion = labels, predictions, _even_thresholds(num_thresholds), weights
    collections = metrics_collections, updates_collections
    default = "sensitivity_at_specificity"
    return _metric(name, default, formula, confusion, tuple(_NAMES), collections)


@public("metrics.specificity_at_sensitivity")
@metric(sensitivity="the sensitivity to come near, in [0, 1].")
def specificity_at_sensitivity(
    labels: TensorLike,
    predictions: TensorLike,
    sensitivity: float,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """The specificity at the highest threshold whose sensitivity is nearest to a given one."""
    if not 0 <= sensitivity <= 1:
        raise ValueError("`sensitivity` must be in the range [0, 1].")

    def formula(counts: Counts, name: str) -> Tensor:
        positive = counts["tp"] + counts["fn"] + _EPSILON
        distances = arithmetic.absolute(counts["tp"] / positive - sensitivity)
        at = _last_minimum(distances)
        right, wrong = counts["tn"][at], counts["fp"][at]
        return division.divide(right, right + wrong + _EPSILON, name=name)

    confusion = labels, predictions, _even_thresholds(num_thresholds), weights
    collections = metrics_collections, updates_collections
    default = "specificity_at_sensitivity"
    return _metric(name, default, formula, confusion, tuple(_NAMES), collections)


def _last_minimum(values: Tensor) -> Tensor:
    """The index of the last of the smallest values of a vector."""
    backwards = values[::-1]
    return shaping.size(values) - 1 - casting.cast(searching.argmin(backwards, 0), int32)


_SUMMATIONS = ("trapezoidal", "minoring", "majoring", "careful_interpolation")


@public("metrics.auc")
@metric(
    labels="truth values.",
    predictions="floats in [0, 1] of the same shape.",
    num_thresholds="how many thresholds the curve has.",
    curve='"ROC" or "PR".',
    summation_method='"trapezoidal", "careful_interpolation", "minoring" or "majoring".',
    thresholds="the thresholds, where they are not evenly spaced.",
)
def auc(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    curve: str = "ROC",
    name: str | None = None,
    summation_method: str = "trapezoidal",
    thresholds: Sequence[float] | None = None,
) -> Metric:
    """The area under the ROC or precision-recall curve, over all batches so far.

    Example:
        >>> value, update = tf.metrics.auc([0, 0, 1, 1], [0.1, 0.3, 0.6, 0.9])
        >>> sess.run(tf.local_variables_initializer())
        >>> round(float(sess.run(update)), 3)
        1.0
    """
    if curve not in ("ROC", "PR"):
        raise ValueError(f"curve must be either ROC or PR, {curve} unknown")
    if summation_method not in _SUMMATIONS:
        raise ValueError(f"Invalid summation_method: {summation_method}, not one of {_SUMMATIONS}")

    def formula(counts: Counts, name: str) -> Tensor:
        if curve == "PR" and summation_method == "careful_interpolation":
            return _interpolated_pr_area(counts, name)
        return _area(*_curve(counts, curve), summation_method, name)

    cuts = _even_thresholds(num_thresholds)
    if thresholds is not None:
        cuts = [cuts[0], *sorted(thresholds), cuts[-1]]
    confusion = labels, predictions, cuts, weights
    collections = metrics_collections, updates_collections
    return _metric(name, "auc", formula, confusion, tuple(_NAMES), collections)


def _curve(counts: Counts, curve: str) -> tuple[Tensor, Tensor]:
    """The points of the curve; ε makes an empty class count as all right."""
    epsilon = 1e-6
    recall = (counts["tp"] + epsilon) / (counts["tp"] + counts["fn"] + epsilon)
    if curve == "ROC":
        return counts["fp"] / (counts["fp"] + counts["tn"] + epsilon), recall
    return recall, (counts["tp"] + epsilon) / (counts["tp"] + counts["fp"] + epsilon)


def _area(x: Tensor, y: Tensor, summation_method: str, name: str) -> Tensor:
    widths = x[:-1] - x[1:]
    if summation_method == "minoring":
        heights = arithmetic.minimum(y[:-1], y[1:])
    elif summation_method == "majoring":
        heights = arithmetic.maximum(y[:-1], y[1:])
    else:
        heights = (y[:-1] + y[1:]) / 2.0
    return reduce.reduce_sum(widths * heights, name=name)


def _interpolated_pr_area(counts: Counts, name: str) -> Tensor:
    """The exact area when true positives grow linearly with predicted ones between thresholds."""
    found = counts["tp"]
    predicted = found + counts["fp"]
    steps = found[:-1] - found[1:]
    slope = division.div_no_nan(steps, arithmetic.maximum(predicted[:-1] - predicted[1:], 0))
    intercept = found[1:] - slope * predicted[1:]
    both = compare.logical_and(predicted[:-1] > 0, predicted[1:] > 0)
    growth = choosing.where(
        both,
        division.div_no_nan(predicted[:-1], arithmetic.maximum(predicted[1:], 0)),
        filling.ones_like(predicted[1:]),
    )
    area = slope * (steps + intercept * transcendental.log(growth))
    positive = arithmetic.maximum(found[1:] + counts["fn"][1:], 0)
    return reduce.reduce_sum(division.div_no_nan(area, positive), name=name)
