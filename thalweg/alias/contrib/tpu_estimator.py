"""The estimator of `tf.contrib.tpu`, on the package Estimator."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# The base classes are those of a package without types.

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from thalweg.alias import names
from thalweg.alias.contrib.tpu import TPUConfig

tf = names.root()
_BASE: Any = importlib.import_module("tensorflow_estimator.python.estimator.model_fn")


class RunConfig(tf.estimator.RunConfig):
    """A RunConfig with a `TPUConfig`."""

    def __init__(
        self,
        tpu_config: TPUConfig | None = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if master is not None and cluster is not None:
            raise ValueError("Both master and cluster are set.")
        self.tpu_config, self.cluster = tpu_config or TPUConfig(), cluster
        self._master = master or (cluster.master() if cluster else self._master)
        self._evaluation_master = evaluation_master or self._master


class TPUEstimatorSpec(_BASE._TPUEstimatorSpec):
    """What a model function gives: as an EstimatorSpec, but metrics are (function, tensors)."""

    def __new__(cls, mode: str, *args: Any, **kwargs: Any) -> Any:
        for which in ("training_hooks", "evaluation_hooks", "prediction_hooks"):
            kwargs[which] = tuple(kwargs.get(which) or ())
        return super().__new__(cls, mode, *args, **kwargs)

    def as_estimator_spec(self) -> Any:
        """The EstimatorSpec of the same; the function of the host runs after each step."""
        metrics = None if self.eval_metrics is None else _applied(*self.eval_metrics)
        hooks = ()
        if self.host_call is not None:
            hooks = (_HostCall(_applied(*self.host_call)),)
        return _BASE.EstimatorSpec(
            mode=self.mode,
            predictions=self.predictions,
            loss=self.loss,
            train_op=self.train_op,
            eval_metric_ops=metrics,
            export_outputs=self.export_outputs,
            scaffold=self.scaffold_fn() if self.scaffold_fn else None,
            training_hooks=self.training_hooks + hooks,
            evaluation_hooks=self.evaluation_hooks + hooks,
            prediction_hooks=self.prediction_hooks + hooks,
        )


class TPUEstimator(tf.estimator.Estimator):
    """An Estimator whose functions find the size of a batch in `params["batch_size"]`."""

    def __init__(
        self,
        model_fn: Callable[..., Any] | None = None,
        model_dir: str | None = None,
        config: Any = None,
        params: Any = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Any = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: Any = None,
        **_: Any,
    ) -> None:
        if use_tpu:
            raise ValueError("There is no TPU here: TPUEstimator needs use_tpu=False.")
        if params is not None and "batch_size" in params:
            raise ValueError("batch_size are reserved keys but existed in params.")
        modes = tf.estimator.ModeKeys
        self._batch_sizes = {
            modes.TRAIN: train_batch_size,
            modes.EVAL: eval_batch_size or train_batch_size,
            modes.PREDICT: predict_batch_size or train_batch_size,
        }
        self._mode: Any = None
        super().__init__(
            model_fn=model_fn,
            model_dir=model_dir,
            config=config,
            params=params or {},
            warm_start_from=warm_start_from,
        )

    def _assert_members_are_not_overridden(self) -> None:
        """The base forbids to override what this class does."""

    @property
    def params(self) -> Any:
        """The parameters, and the size of a batch in the mode that is built."""
        given = super().params
        size = self._batch_sizes.get(self._mode)
        if size is not None:
            if hasattr(given, "add_hparam"):
                given.add_hparam("batch_size", size)
            else:
                given["batch_size"] = size
        return given

    def _call_input_fn(self, input_fn: Any, mode: str, input_context: Any = None) -> Any:
        self._mode = mode
        return super()._call_input_fn(input_fn, mode, input_context)

    def _call_model_fn(self, features: Any, labels: Any, mode: str, config: Any) -> Any:
        self._mode = mode
        asked = inspect.signature(self._model_fn).parameters
        if "labels" not in asked and labels is not None:
            raise ValueError("model_fn does not take labels, but input_fn returns labels.")
        options = {"labels": labels, "mode": mode, "params": self.params, "config": config}
        wanted = {name: value for name, value in options.items() if name in asked}
        found = self._model_fn(features=features, **wanted)
        return found.as_estimator_spec() if isinstance(found, TPUEstimatorSpec) else found


class _HostCall(tf.train.SessionRunHook):
    """Runs what the function of the host gave, with each step."""

    def __init__(self, tensors: Any) -> None:
        self._tensors = tensors

    def before_run(self, run_context: Any) -> Any:
        """Ask for it too."""
        return tf.train.SessionRunArgs(self._tensors)


def _applied(function: Callable[..., Any], tensors: Any) -> Any:
    """A function of a list or of a dict of tensors."""
    return function(**tensors) if isinstance(tensors, dict) else function(*tensors)
