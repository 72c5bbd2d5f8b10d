"""Names that model functions are called with, and that they give."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

from thalweg.alias.inside.training.export_outputs import EstimatorModeKeys


class ModeKeys(EstimatorModeKeys):
    """What a model function is called for."""

    INFER = EstimatorModeKeys.PREDICT


class PredictionKey:
    """Names of the outputs of a classifier."""

    CLASSES = "classes"
    PROBABILITIES = "probabilities"
    LOGITS = "logits"
    LOGISTIC = "logistic"
    SCORES = "scores"
    TOP_K = "top_k"
    GENERIC = "output"


class ProblemType(enum.IntEnum):
    """What a model is for."""

    UNSPECIFIED = 0
    CLASSIFICATION = 1
    LINEAR_REGRESSION = 2
    LOGISTIC_REGRESSION = 3


class TaskType:
    """What a task of a cluster does."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"


class ModelFnOps(NamedTuple):
    """What a model function gives.

    Args:
        mode: what it was called for.
        predictions: a tensor, or a dict of them.
        loss: a scalar.
        train_op: one step of training.
        eval_metric_ops: names -> (value, update).
        output_alternatives: taken for old programs.
        training_chief_hooks, training_hooks: what runs beside training.
        scaffold: how a session begins.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Any = None
    output_alternatives: Any = None
    training_chief_hooks: Any = None
    training_hooks: Any = None
    scaffold: Any = None


class MetricSpec:
    """A metric, and of which prediction, label and weight it is computed.

    Args:
        metric_fn: a function (predictions, labels, weights) -> (value, update), by position or by
            those names.
        prediction_key, label_key, weight_key: which of several to take.
    """

    def __init__(
        self,
        metric_fn: Callable[..., Any],
        prediction_key: str | None = None,
        label_key: str | None = None,
        weight_key: str | None = None,
    ) -> None:
        self.metric_fn = metric_fn
        self.prediction_key, self.label_key, self.weight_key = prediction_key, label_key, weight_key

    def create_metric_ops(self, inputs: Any, labels: Any, predictions: Any) -> Any:
        """The metric of what a model got and gave."""
        weights = None if self.weight_key is None else inputs[self.weight_key]
        given: dict[str, Any] = {
            "labels": _part(labels, self.label_key, "label"),
            "predictions": _part(predictions, self.prediction_key, "prediction"),
        }
        if weights is not None:
            given["weights"] = weights
        return self.metric_fn(**given)


def _part(values: Any, key: str | None, what: str) -> Any:
    """The one value, or that of a key."""
    if not isinstance(values, dict):
        return values
    found: dict[Any, Any] = {**values}
    if key is None and len(found) != 1:
        raise ValueError(f"MetricSpec without {what}_key needs one {what}, got {sorted(found)}.")
    return next(iter(found.values())) if key is None else found[key]
