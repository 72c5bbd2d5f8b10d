"""`tensorflow.python.saved_model.model_utils`: what a model exports for serving, by its mode."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from thalweg.alias import names
from thalweg.graph import nest

tf = names.root()

SINGLE_FEATURE_DEFAULT_NAME = "feature"
SINGLE_LABEL_DEFAULT_NAME = "label"
SINGLE_RECEIVER_DEFAULT_NAME = "input"
_ATTEMPTS = 10


class EstimatorModeKeys:
    """What a model function is called for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class KerasModeKeys:
    """What a Keras model is run for."""

    TRAIN = "train"
    TEST = "test"
    PREDICT = "predict"


_signatures = tf.saved_model.signature_constants
EXPORT_TAG_MAP = {
    "infer": [tf.saved_model.tag_constants.SERVING],
    "train": [tf.saved_model.tag_constants.TRAINING],
    "eval": ["eval"],
}
SIGNATURE_KEY_MAP = {
    "train": "train",
    "eval": "eval",
    "infer": _signatures.DEFAULT_SERVING_SIGNATURE_DEF_KEY,
}


class ExportOutput:
    """An output of a model for serving."""

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """The signature from the inputs that a server receives to this output."""
        raise NotImplementedError

    def _wrap_default(self, outputs: Any, name: str) -> dict[str, Any]:
        """A dict with text as keys of what is a dict or a single tensor."""
        given = _named(outputs, name)
        result = {
            key if isinstance(key, str) else "/".join(key): tf.convert_to_tensor(value)
            for key, value in given.items()
        }
        if not result:
            raise ValueError(f"{name}s must be set and cannot be empty.")
        return result


class ClassificationOutput(ExportOutput):
    """Scores of classes, their names, or both."""

    def __init__(self, scores: Any = None, classes: Any = None) -> None:
        if scores is not None and not (isinstance(scores, tf.Tensor) and scores.dtype.is_floating):
            raise ValueError(f"Classification scores must be a float32 Tensor; got {scores}")
        if classes is not None and not (
            isinstance(classes, tf.Tensor) and classes.dtype is tf.string
        ):
            raise ValueError(f"Classification classes must be a string Tensor; got {classes}")
        if scores is None and classes is None:
            raise ValueError("At least one of scores and classes must be set.")
        self.scores, self.classes = scores, classes

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """A classification of serialized examples."""
        examples = _single_string(receiver_tensors, "Classification")
        return tf.saved_model.signature_def_utils.classification_signature_def(
            examples, self.classes, self.scores
        )


class RegressionOutput(ExportOutput):
    """A value for each example."""

    def __init__(self, value: Any) -> None:
        if not (isinstance(value, tf.Tensor) and value.dtype.is_floating):
            raise ValueError(f"Regression output value must be a float32 Tensor; got {value}")
        self.value = value

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """A regression of serialized examples."""
        examples = _single_string(receiver_tensors, "Regression")
        return tf.saved_model.signature_def_utils.regression_signature_def(examples, self.value)


def _single_string(receivers: Mapping[str, Any], what: str) -> Any:
    values = list(receivers.values())
    if len(values) != 1 or values[0].dtype is not tf.string:
        raise ValueError(f"{what} input must be a single string Tensor; got {receivers}")
    return values[0]


class PredictOutput(ExportOutput):
    """Any outputs by name."""

    def __init__(self, outputs: Any) -> None:
        self.outputs = self._wrap_default(outputs, "output")

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """A prediction of any inputs."""
        return tf.saved_model.signature_def_utils.predict_signature_def(
            receiver_tensors, self.outputs
        )


class _SupervisedOutput(ExportOutput):
    """Loss, predictions and metrics of a model that is trained or evaluated."""

    method_name: ClassVar[str] = ""

    def __init__(self, loss: Any = None, predictions: Any = None, metrics: Any = None) -> None:
        self.loss = None if loss is None else self._wrap_default(loss, "loss")
        self.predictions = (
            None if predictions is None else self._wrap_default(predictions, "predictions")
        )
        self.metrics = {} if metrics is None else self._flat(metrics)

    def _flat(self, metrics: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, (value, update) in _named(metrics, "metrics").items():
            result[f"{name}/value"] = tf.convert_to_tensor(value)
            with tf.control_dependencies([update]):
                result[f"{name}/update_op"] = (
                    tf.constant([]) if isinstance(update, tf.Operation) else tf.identity(update)
                )
        return result

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """A signature with the method of this mode."""
        build = tf.saved_model.utils.build_tensor_info
        outputs = {**(self.loss or {}), **(self.predictions or {}), **self.metrics}
        return tf.saved_model.signature_def_utils.build_signature_def(
            {name: build(tensor) for name, tensor in receiver_tensors.items()},
            {name: build(tensor) for name, tensor in outputs.items()},
            self.method_name,
        )


class TrainOutput(_SupervisedOutput):
    """What is exported of a training graph."""

    method_name = "tensorflow/supervised/training"


class EvalOutput(_SupervisedOutput):
    """What is exported of an evaluation graph."""

    method_name = "tensorflow/supervised/eval"


def build_all_signature_defs(
    receiver_tensors: Any, export_outputs: Any, receiver_tensors_alternatives: Any = None,
    serving_only: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The signatures of all outputs, those for other receivers too."""
    receivers = _named(receiver_tensors, SINGLE_RECEIVER_DEFAULT_NAME)
    default = _signatures.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    found = {
        key or default: output.as_signature_def(receivers) for key, output in export_outputs.items()
    }
    others: dict[str, Any] = receiver_tensors_alternatives or {}
    for other, tensors in others.items():
        for key, output in export_outputs.items():
            name = f"{other or ''}:{key or default}".lstrip(":")
            found[name] = output.as_signature_def(_named(tensors, SINGLE_RECEIVER_DEFAULT_NAME))
    return {key: value for key, value in found.items() if _is_valid(value)}


def _is_valid(signature: Any) -> bool:
    return bool(signature.method_name)


def _named(values: Any, name: str) -> Mapping[Any, Any]:
    """A dict as it is; anything else under a name."""
    return values if nest.is_mapping(values) else {name: values}


def export_outputs_for_mode(
    mode: str, serving_export_outputs: Any = None, predictions: Any = None, loss: Any = None,
    metrics: Any = None,
) -> Any:  # fmt: skip
    """The outputs that a mode exports."""
    if mode not in SIGNATURE_KEY_MAP:
        raise ValueError(f"Export output type not found for mode: {mode}")
    if mode == EstimatorModeKeys.PREDICT:
        return get_export_outputs(serving_export_outputs, predictions)
    kind = TrainOutput if mode == EstimatorModeKeys.TRAIN else EvalOutput
    return {SIGNATURE_KEY_MAP[mode]: kind(loss=loss, predictions=predictions, metrics=metrics)}


def get_export_outputs(export_outputs: Any, predictions: Any) -> dict[str, Any]:
    """The outputs of a model by name, one of them the default."""
    default = _signatures.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    found = (
        {default: PredictOutput(predictions or {})} if export_outputs is None else export_outputs
    )
    if not isinstance(found, dict):
        raise TypeError(f"export_outputs must be dict, given: {export_outputs}")
    outputs: dict[str, Any] = dict(found)  # pyright: ignore[reportUnknownArgumentType] - of users
    for value in outputs.values():
        if not isinstance(value, ExportOutput):
            raise TypeError(f"Values in export_outputs must be ExportOutput objects: {outputs}")
    if len(outputs) == 1:
        ((only, value),) = outputs.items()
        return outputs if only == default else {**outputs, default: value}
    if outputs and default not in outputs:
        raise ValueError(f"Multiple export_outputs were provided, but none of them is {default}.")
    return outputs


def get_timestamped_export_dir(export_dir_base: Any) -> bytes:
    """A folder that does not exist yet, named by the time."""
    for _ in range(_ATTEMPTS):
        folder = os.path.join(tf.compat.as_bytes(export_dir_base), str(int(time.time())).encode())
        if not tf.gfile.Exists(folder):
            return folder
        time.sleep(1)
    raise RuntimeError(f"Failed to obtain a unique export directory name after {_ATTEMPTS} tries.")


def get_temp_export_dir(timestamped_export_dir: Any) -> bytes:
    """A folder to write into before it gets its name."""
    folder, name = os.path.split(bytes(tf.compat.as_bytes(timestamped_export_dir)))
    return os.path.join(folder, b"temp-" + name)
