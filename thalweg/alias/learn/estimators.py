"""Estimators with `fit(x, y)`, made of those of `tf.estimator`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from thalweg.alias import names
from thalweg.alias.contrib import columns
from thalweg.alias.learn.keys import MetricSpec, ModelFnOps
from thalweg.graph import nest

tf = names.root()

#: The feature that an array of inputs is.
_FEATURE = ""


class Estimator:
    """A model function with `fit`, `evaluate` and `predict`, on arrays or input functions.

    Args:
        model_fn: (features, labels, mode, params, config, …) -> (predictions, loss, train op), a
            `ModelFnOps` or an EstimatorSpec.
        model_dir: where checkpoints go.
        config: a RunConfig.
        params: what the model function gets as `params`.
        feature_engineering_fn: (features, labels) -> (features, labels), applied first.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any] | None = None,
        model_dir: str | None = None,
        config: Any = None,
        params: Any = None,
        feature_engineering_fn: Callable[..., Any] | None = None,
    ) -> None:
        if model_fn is None:
            raise ValueError("model_fn must be provided to Estimator.")
        called = _giving_specs(model_fn, feature_engineering_fn)
        self._start(tf.estimator.Estimator(called, model_dir, config, params))

    def _start(self, estimator: Any) -> None:
        self._estimator = estimator

    @property
    def model_dir(self) -> str:
        """Where checkpoints are."""
        return self._estimator.model_dir

    @property
    def config(self) -> Any:
        """The RunConfig."""
        return self._estimator.config

    @property
    def params(self) -> Any:
        """What the model function gets."""
        return self._estimator.params

    def get_variable_names(self) -> list[str]:
        """The variables of the last checkpoint."""
        return self._estimator.get_variable_names()

    def get_variable_value(self, name: str) -> Any:
        """The value of a variable in the last checkpoint."""
        return self._estimator.get_variable_value(name)

    def latest_checkpoint(self) -> str | None:
        """The last checkpoint."""
        return self._estimator.latest_checkpoint()

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        input_fn: Callable[..., Any] | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        monitors: Sequence[Any] | None = None,
        max_steps: int | None = None,
    ) -> Any:
        """Train on arrays, or on what `input_fn` gives, for `steps` more or to `max_steps`."""
        given = _inputs(x, y, input_fn, batch_size, shuffle=True, num_epochs=None)
        self._estimator.train(given, hooks=monitors, steps=steps, max_steps=max_steps)
        return self

    def partial_fit(self, *args: Any, **kwargs: Any) -> Any:
        """Train on: `fit` starts from the last checkpoint."""
        return self.fit(*args, **kwargs)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        input_fn: Callable[..., Any] | None = None,
        feed_fn: Any = None,
        batch_size: int | None = None,
        steps: int | None = None,
        metrics: dict[str, Any] | None = None,
        name: str | None = None,
        checkpoint_path: str | None = None,
        hooks: Sequence[Any] | None = None,
    ) -> dict[str, Any]:
        """The metrics on arrays, or on what `input_fn` gives."""
        given = _inputs(x, y, input_fn, batch_size, shuffle=False, num_epochs=1)
        estimator = self._estimator
        if metrics:
            estimator = tf.estimator.add_metrics(estimator, _metric_function(metrics))
        return estimator.evaluate(given, steps, hooks, checkpoint_path, name)

    def predict(
        self,
        x: Any = None,
        input_fn: Callable[..., Any] | None = None,
        batch_size: int | None = None,
        outputs: Sequence[str] | None = None,
        as_iterable: bool = True,
    ) -> Any:
        """What the model predicts, example by example, or as arrays if not `as_iterable`."""
        given = _inputs(x, None, input_fn, batch_size, shuffle=False, num_epochs=1)
        found = self._estimator.predict(given, predict_keys=outputs)
        return found if as_iterable else _stacked(found)

    def export_savedmodel(self, *args: Any, **kwargs: Any) -> Any:
        """Write a saved model."""
        return self._estimator.export_savedmodel(*args, **kwargs)


def _giving_specs(model_fn: Callable[..., Any], prepare: Any) -> Callable[..., Any]:
    """A model function that gives an EstimatorSpec, whatever it gave."""
    asked = inspect.signature(model_fn).parameters
    counted = len([name for name in asked if name not in ("mode", "params", "config", "model_dir")])

    def called(features: Any, labels: Any, mode: str, params: Any, config: Any) -> Any:
        if prepare is not None:
            features, labels = prepare(features, labels)
        wanted = "infer" if mode == tf.estimator.ModeKeys.PREDICT else mode
        options = {"mode": wanted, "params": params, "config": config}
        options = {name: value for name, value in options.items() if name in asked}
        inputs = [_sole(features), _sole(labels)][:counted]
        return _as_spec(model_fn(*inputs, **options), mode)

    return called


def _sole(values: Any) -> Any:
    """The inputs, where they are one array and no dict of features."""
    named = _by_name(values)
    return named[_FEATURE] if set(named) == {_FEATURE} else values


def _by_name(values: Any) -> dict[str, Any]:
    """Features by name; those that are one array or tensor have the name of that."""
    return cast("dict[str, Any]", values) if isinstance(values, dict) else {_FEATURE: values}


def _as_spec(found: Any, mode: str) -> Any:
    """What a model function gave, as an EstimatorSpec."""
    if isinstance(found, tf.estimator.EstimatorSpec):
        return found
    if not isinstance(found, ModelFnOps):
        predictions, loss, train_op = found
        found = ModelFnOps(mode, predictions, loss, train_op)
    predictions = found.predictions
    if predictions is not None and not isinstance(predictions, dict):
        predictions = {"predictions": predictions}
    return tf.estimator.EstimatorSpec(
        mode,
        predictions=predictions,
        loss=found.loss,
        train_op=found.train_op,
        eval_metric_ops=found.eval_metric_ops,
        training_hooks=found.training_hooks,
        training_chief_hooks=found.training_chief_hooks,
        scaffold=found.scaffold,
    )


def _inputs(
    x: Any, y: Any, input_fn: Any, batch_size: int | None, shuffle: bool, num_epochs: int | None
) -> Callable[..., Any]:
    """An input function of arrays, or the one that is given."""
    if (x is None) == (input_fn is None):
        raise ValueError("Exactly one of x and input_fn must be given.")
    if input_fn is not None:
        return input_fn
    features = {name: np.asarray(value) for name, value in _by_name(x).items()}
    count = len(next(iter(features.values())))
    return tf.estimator.inputs.numpy_input_fn(
        features,
        None if y is None else np.asarray(y),
        batch_size=batch_size or count,
        num_epochs=num_epochs,
        shuffle=shuffle,
    )


def _metric_function(metrics: dict[str, Any]) -> Callable[..., Any]:
    """The function that `tf.estimator.add_metrics` takes."""

    def made(features: Any, labels: Any, predictions: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, metric in metrics.items():
            title, *key = nest.as_list(name)
            spec = metric if isinstance(metric, MetricSpec) else MetricSpec(metric, *key)
            result[title] = spec.create_metric_ops(features, labels, predictions)
        return result

    return made


def _stacked(rows: Iterator[Any]) -> Any:
    """Predictions of examples as arrays."""
    listed = list(rows)
    if not listed or not isinstance(listed[0], dict):
        return np.array(listed)
    return {key: np.array([row[key] for row in listed]) for key in _by_name(listed[0])}


class _Canned(Estimator):
    """An estimator of `tf.estimator` under its older name."""

    kind = ""
    old_names: dict[str, str] = {}  # noqa: RUF012 - read only, and subclasses have their own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        made = getattr(tf.estimator, self.kind)
        taken = inspect.signature(made.__init__).parameters
        kwargs.pop("enable_centered_bias", None)
        clip = kwargs.pop("gradient_clip_norm", None)
        if clip is not None:
            raise ValueError("gradient_clip_norm: clip in an optimizer of your own instead.")
        renamed = {self.old_names.get(name, name): value for name, value in kwargs.items()}
        renamed["feature_columns"] = renamed.get("feature_columns", ())
        if "feature_columns" not in taken:
            del renamed["feature_columns"]
        self._start(made(*args, **renamed))


_WEIGHTS = {"weight_column_name": "weight_column"}


class _Classifier(_Canned):
    """An estimator of classes."""

    def predict_classes(self, x: Any = None, input_fn: Any = None, **options: Any) -> Any:
        """The class of each example."""
        return self._column("class_ids", x, input_fn, options, np.ravel)

    def predict_proba(self, x: Any = None, input_fn: Any = None, **options: Any) -> Any:
        """The probabilities of the classes of each example."""
        return self._column("probabilities", x, input_fn, options, np.asarray)

    def predict(self, x: Any = None, input_fn: Any = None, **options: Any) -> Any:
        """The class of each example, or some outputs."""
        if options.get("outputs") is not None:
            return super().predict(x, input_fn, **options)
        return self.predict_classes(x, input_fn, **options)

    def _column(self, key: str, x: Any, given: Any, options: Any, shape: Any) -> Any:
        as_iterable = options.pop("as_iterable", True)
        rows = Estimator.predict(self, x, given, **options)
        found = (shape(row[key]) for row in rows)
        scalars = (row[0] if row.ndim == 1 and key == "class_ids" else row for row in found)
        return scalars if as_iterable else np.array(list(scalars))


class _Regressor(_Canned):
    """An estimator of numbers."""

    def predict_scores(self, x: Any = None, input_fn: Any = None, **options: Any) -> Any:
        """The number of each example."""
        as_iterable = options.pop("as_iterable", True)
        rows = Estimator.predict(self, x, input_fn, **options)
        found = (np.ravel(row["predictions"])[0] for row in rows)
        return found if as_iterable else np.array(list(found))

    def predict(self, x: Any = None, input_fn: Any = None, **options: Any) -> Any:
        """The number of each example, or some outputs."""
        if options.get("outputs") is not None:
            return super().predict(x, input_fn, **options)
        return self.predict_scores(x, input_fn, **options)


class DNNClassifier(_Classifier):
    """A network of dense layers that classifies."""

    kind, old_names = "DNNClassifier", _WEIGHTS


class DNNRegressor(_Regressor):
    """A network of dense layers that gives numbers."""

    kind, old_names = "DNNRegressor", _WEIGHTS


class LinearClassifier(_Classifier):
    """A linear model that classifies."""

    kind, old_names = "LinearClassifier", _WEIGHTS


class LinearRegressor(_Regressor):
    """A linear model that gives numbers."""

    kind, old_names = "LinearRegressor", _WEIGHTS


class DNNLinearCombinedClassifier(_Classifier):
    """A linear model and a network side by side, which classify."""

    kind, old_names = "DNNLinearCombinedClassifier", _WEIGHTS


class DNNLinearCombinedRegressor(_Regressor):
    """A linear model and a network side by side, which give numbers."""

    kind, old_names = "DNNLinearCombinedRegressor", _WEIGHTS


class SKCompat:
    """An estimator with the methods of scikit-learn: arrays in, arrays out."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator

    def fit(
        self, x: Any, y: Any, batch_size: int = 128, steps: int | None = None, **options: Any
    ) -> SKCompat:
        """Train on arrays."""
        self._estimator.fit(x, y, batch_size=batch_size, steps=steps, **options)
        return self

    def score(
        self, x: Any, y: Any, batch_size: int = 128, steps: int | None = None, metrics: Any = None
    ) -> Any:
        """The metrics on arrays."""
        return self._estimator.evaluate(x, y, batch_size=batch_size, steps=steps, metrics=metrics)

    def predict(self, x: Any, batch_size: int = 128, outputs: Any = None) -> Any:
        """The predictions as arrays."""
        return Estimator.predict(
            self._estimator, x, batch_size=batch_size, outputs=outputs, as_iterable=False
        )


def infer_real_valued_columns_from_input(x: Any) -> list[Any]:
    """A column for an array of numbers, or one for each array of a dict."""
    arrays = _by_name(x)
    result: list[Any] = []
    for name, values in sorted(arrays.items()):
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            raise ValueError(f"A feature is of dtype {array.dtype}, which is no number.")
        width = int(np.prod(array.shape[1:], initial=1))
        result.append(columns.real_valued_column(name, width, dtype=tf.as_dtype(array.dtype)))
    return result


def infer_real_valued_columns_from_input_fn(input_fn: Callable[[], Any]) -> list[Any]:
    """A column for each feature that an input function gives."""
    with tf.Graph().as_default():
        features: Any = input_fn()[0]
        tensors = _by_name(features)
        result: list[Any] = []
        for name, tensor in sorted(tensors.items()):
            sizes: list[int] = tensor.shape.as_list()[1:]
            result.append(columns.real_valued_column(name, math.prod(sizes), dtype=tensor.dtype))
        return result
