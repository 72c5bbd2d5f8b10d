"""Names of `tf.keras` that Keras 2.3.1 has elsewhere or not at all."""

from __future__ import annotations

import importlib
from typing import Any

from thalweg.alias import names
from thalweg.graph import nest

_KERAS: Any = importlib.import_module("keras")


class Reduction:
    """How the losses of examples become one."""

    NONE = "none"
    SUM = "sum"
    SUM_OVER_BATCH_SIZE = "sum_over_batch_size"
    AUTO = "sum_over_batch_size"

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """All of them."""
        return (cls.NONE, cls.SUM, cls.SUM_OVER_BATCH_SIZE)

    @classmethod
    def validate(cls, key: str) -> None:
        """Raise ValueError unless it is one of them."""
        if key not in cls.all():
            raise ValueError(f"Invalid Reduction Key {key}.")


class AbstractRNNCell(_KERAS.layers.Layer):
    """The base of recurrent cells: a subclass gives `call(inputs, states)` and `state_size`."""

    def call(self, inputs: Any, states: Any) -> Any:
        """(the output of a step, its states)."""
        raise NotImplementedError("Abstract method")

    @property
    def state_size(self) -> Any:
        """The size of the state, or of each."""
        raise NotImplementedError("Abstract method")

    @property
    def output_size(self) -> Any:
        """The size of the output."""
        raise NotImplementedError("Abstract method")

    def get_initial_state(
        self, inputs: Any = None, batch_size: Any = None, dtype: Any = None
    ) -> Any:
        """States of zeros."""
        tf = names.root()
        if inputs is not None:
            batch_size, dtype = tf.shape(inputs)[0], inputs.dtype
        zeros = [tf.zeros([batch_size, size], dtype) for size in nest.as_list(self.state_size)]
        return zeros if nest.is_sequence(self.state_size) else zeros[0]


class VarianceScaling(_KERAS.initializers.VarianceScaling):
    """Keras' initializer, with the normal distributions that TensorFlow's copy tells apart."""

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "normal",
        seed: int | None = None,
    ) -> None:
        kind = distribution.lower()
        self.is_untruncated = kind == "untruncated_normal"
        inherited: Any = super()
        inherited.__init__(scale, mode, "normal" if kind.endswith("_normal") else kind, seed)

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        inherited: Any = super()
        if not self.is_untruncated:
            return inherited.__call__(shape, dtype)
        return names.root().variance_scaling_initializer(**self.get_config())(shape, dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        inherited: Any = super()
        kind = {"distribution": "untruncated_normal"} if self.is_untruncated else {}
        return {**inherited.get_config(), **kind}


def find_in_estimator(name: str) -> Any:
    """A name of `tf.keras.estimator`: they are in the package Estimator."""
    if name != "model_to_estimator":
        raise AttributeError(name)
    return importlib.import_module("tensorflow_estimator.python.estimator.keras").model_to_estimator


def find_in_experimental(name: str) -> Any:
    """A name of `tf.keras.experimental`."""
    if name != "export_saved_model":
        raise AttributeError(name)
    return export_saved_model


def export_saved_model(
    model: Any,
    saved_model_path: str,
    custom_objects: Any = None,
    as_text: bool = False,
    input_signature: Any = None,
    serving_only: bool = False,
) -> None:
    """Write a saved model that serves a model of Keras."""
    tf = names.root()
    inputs = {tensor.name.partition(":")[0]: tensor for tensor in model.inputs}
    outputs = dict(zip(model.output_names, model.outputs, strict=True))
    session = _KERAS.backend.get_session()
    tf.saved_model.simple_save(session, saved_model_path, inputs, outputs)
