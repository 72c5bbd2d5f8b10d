"""Signatures of saved models: which tensors go in and out of a use of a graph, and its name.

Also the constants that saved models are made with, under their public names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg import protos
from thalweg.graph.composite import SparseTensor
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.node import Tensor
from thalweg.public import public, publish_value
from thalweg.variables.save_slice import with_scope

DEFAULT_SERVING_SIGNATURE_DEF_KEY = "serving_default"
CLASSIFY_INPUTS = "inputs"
CLASSIFY_METHOD_NAME = "tensorflow/serving/classify"
CLASSIFY_OUTPUT_CLASSES = "classes"
CLASSIFY_OUTPUT_SCORES = "scores"
PREDICT_INPUTS = "inputs"
PREDICT_METHOD_NAME = "tensorflow/serving/predict"
PREDICT_OUTPUTS = "outputs"
REGRESS_INPUTS = "inputs"
REGRESS_METHOD_NAME = "tensorflow/serving/regress"
REGRESS_OUTPUTS = "outputs"

SERVING = "serve"
TRAINING = "train"
EVAL = "eval"
GPU = "gpu"
TPU = "tpu"

for _name in (
    "DEFAULT_SERVING_SIGNATURE_DEF_KEY",
    "CLASSIFY_INPUTS",
    "CLASSIFY_METHOD_NAME",
    "CLASSIFY_OUTPUT_CLASSES",
    "CLASSIFY_OUTPUT_SCORES",
    "PREDICT_INPUTS",
    "PREDICT_METHOD_NAME",
    "PREDICT_OUTPUTS",
    "REGRESS_INPUTS",
    "REGRESS_METHOD_NAME",
    "REGRESS_OUTPUTS",
):
    publish_value(f"saved_model.signature_constants.{_name}", globals()[_name])
    publish_value(f"saved_model.{_name}", globals()[_name])
for _name in ("SERVING", "TRAINING", "GPU", "TPU"):
    publish_value(f"saved_model.tag_constants.{_name}", globals()[_name])
    publish_value(f"saved_model.{_name}", globals()[_name])
publish_value("saved_model.tag_constants.EVAL", EVAL)


@public("saved_model.utils.build_tensor_info", "saved_model.build_tensor_info")
def build_tensor_info(tensor: Tensor | SparseTensor) -> Any:
    """The TensorInfo of a tensor or sparse tensor: its names, dtype and shape.

    Args:
        tensor: a tensor or sparse tensor of the graph to save.

    Returns:
        A `TensorInfo`.

    Example:
        >>> info = tf.saved_model.utils.build_tensor_info(tf.zeros([2, 3], name="z"))
        >>> info.name, [dim.size for dim in info.tensor_shape.dim]
        ('z:0', [2, 3])
    """
    info = protos.TensorInfo(dtype=as_dtype(tensor.dtype).as_datatype_enum)
    info.tensor_shape.CopyFrom(tensor.get_shape().as_proto())
    if isinstance(tensor, SparseTensor):
        info.coo_sparse.values_tensor_name = tensor.values.name
        info.coo_sparse.indices_tensor_name = tensor.indices.name
        info.coo_sparse.dense_shape_tensor_name = tensor.dense_shape.name
    else:
        info.name = tensor.name
    return info


@public("saved_model.utils.get_tensor_from_tensor_info", "saved_model.get_tensor_from_tensor_info")
def get_tensor_from_tensor_info(
    tensor_info: protos.TensorInfo, graph: Graph | None = None, import_scope: str | None = None
) -> Tensor | SparseTensor:
    """The tensor or sparse tensor of a TensorInfo."""
    found = graph or get_default_graph()

    def element(name: str) -> Any:
        return found.get_tensor_by_name(with_scope(name, import_scope))

    if tensor_info.WhichOneof("encoding") != "coo_sparse":
        return element(tensor_info.name)
    parts = tensor_info.coo_sparse
    return SparseTensor(
        element(parts.indices_tensor_name),
        element(parts.values_tensor_name),
        element(parts.dense_shape_tensor_name),
    )


@public("saved_model.signature_def_utils.build_signature_def", "saved_model.build_signature_def")
def build_signature_def(
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    method_name: str | None = None,
) -> Any:
    """A SignatureDef of TensorInfos by their keys.

    Args:
        inputs: TensorInfos by their keys.
        outputs: TensorInfos by their keys.
        method_name: what is computed, such as "tensorflow/serving/predict".

    Returns:
        A `SignatureDef`.

    Example:
        >>> x = tf.placeholder(tf.float32, [None], name="x")
        >>> info = tf.saved_model.utils.build_tensor_info(x)
        >>> signature = tf.saved_model.signature_def_utils.build_signature_def({"x": info})
        >>> signature.inputs["x"].name
        'x:0'
    """
    signature = protos.SignatureDef()
    for key, info in (inputs or {}).items():
        signature.inputs[key].CopyFrom(protos.as_message(info, protos.TensorInfo))
    for key, info in (outputs or {}).items():
        signature.outputs[key].CopyFrom(protos.as_message(info, protos.TensorInfo))
    if method_name is not None:
        signature.method_name = method_name
    return signature


@public(
    "saved_model.signature_def_utils.regression_signature_def",
    "saved_model.regression_signature_def",
)
def regression_signature_def(examples: Tensor, predictions: Tensor) -> Any:
    """The signature of a regression: serialised examples in, numbers out."""
    _require("Regression input", examples)
    _require("Regression output", predictions)
    inputs = {REGRESS_INPUTS: build_tensor_info(examples)}
    outputs = {REGRESS_OUTPUTS: build_tensor_info(predictions)}
    return build_signature_def(inputs, outputs, REGRESS_METHOD_NAME)


@public(
    "saved_model.signature_def_utils.classification_signature_def",
    "saved_model.classification_signature_def",
)
def classification_signature_def(
    examples: Tensor, classes: Tensor | None, scores: Tensor | None
) -> Any:
    """The signature of a classification: serialised examples in, classes or scores out."""
    _require("Classification input", examples)
    if classes is None and scores is None:
        raise ValueError("Classification classes and scores cannot both be None.")
    inputs = {CLASSIFY_INPUTS: build_tensor_info(examples)}
    outputs: dict[str, Any] = {}
    if classes is not None:
        outputs[CLASSIFY_OUTPUT_CLASSES] = build_tensor_info(classes)
    if scores is not None:
        outputs[CLASSIFY_OUTPUT_SCORES] = build_tensor_info(scores)
    return build_signature_def(inputs, outputs, CLASSIFY_METHOD_NAME)


@public(
    "saved_model.signature_def_utils.predict_signature_def", "saved_model.predict_signature_def"
)
def predict_signature_def(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    """The signature of a prediction: any tensors in and out, by their keys.

    Args:
        inputs: tensors by their keys.
        outputs: tensors by their keys.

    Returns:
        A `SignatureDef`.

    Example:
        >>> x = tf.placeholder(tf.float32, [None], name="x")
        >>> make = tf.saved_model.signature_def_utils.predict_signature_def
        >>> signature = make({"x": x}, {"y": x * 2})
        >>> sorted(signature.outputs), signature.method_name
        (['y'], 'tensorflow/serving/predict')
    """
    if not inputs:
        raise ValueError("Prediction inputs cannot be None or empty.")
    if not outputs:
        raise ValueError("Prediction outputs cannot be None or empty.")
    return build_signature_def(
        {key: build_tensor_info(tensor) for key, tensor in inputs.items()},
        {key: build_tensor_info(tensor) for key, tensor in outputs.items()},
        PREDICT_METHOD_NAME,
    )


@public("saved_model.signature_def_utils.is_valid_signature", "saved_model.is_valid_signature")
def is_valid_signature(signature_def: protos.SignatureDef) -> bool:
    """Whether a signature has what its method needs."""
    method = signature_def.method_name
    inputs, outputs = dict(signature_def.inputs), dict(signature_def.outputs)
    if method == PREDICT_METHOD_NAME:
        return bool(inputs) and bool(outputs)
    if method == REGRESS_METHOD_NAME:
        return _has(inputs, REGRESS_INPUTS, "string") and _has(outputs, REGRESS_OUTPUTS, "float32")
    if method == CLASSIFY_METHOD_NAME:
        return _has(inputs, CLASSIFY_INPUTS, "string") and _are_classes(outputs)
    return False


def _are_classes(outputs: dict[str, Any]) -> bool:
    kinds = {CLASSIFY_OUTPUT_CLASSES: "string", CLASSIFY_OUTPUT_SCORES: "float32"}
    return bool(outputs) and all(
        key in kinds and _is_of(info, kinds[key]) for key, info in outputs.items()
    )


def _has(infos: dict[str, Any], key: str, dtype: str) -> bool:
    return set(infos) == {key} and _is_of(infos[key], dtype)


def _is_of(info: Any, dtype: str) -> bool:
    return info.dtype == as_dtype(dtype).as_datatype_enum


def _require(what: str, value: Any) -> None:
    if value is None:
        raise ValueError(f"{what} cannot be None.")
