"""The specs of features of Example protobufs, and the functions that parse them.

A feature is specified by `FixedLenFeature` (a tensor), `VarLenFeature` or `SparseFeature` (a
SparseTensor), or `FixedLenSequenceFeature` (a tensor whose first size varies). The result is a dict
with the same keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from thalweg.graph import dtypes, nest
from thalweg.graph.composite import SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.ops.core import shaping
from thalweg.ops.core.basic import constant
from thalweg.ops.examples.parse_example import ParseExample, ParseSingleExample
from thalweg.ops.examples.parse_sequence import ParseSequenceExample, ParseSingleSequenceExample
from thalweg.ops.sparse import sparse_pieces
from thalweg.platform.compat import as_bytes
from thalweg.public import public

Tensors = dict[str, Any]


@public("VarLenFeature", "io.VarLenFeature")
class VarLenFeature(NamedTuple):
    """How to parse a feature of varying length: a SparseTensor.

    Args:
        dtype: float32, int64 or string.

    Example:
        >>> parsed = tf.parse_example([b"", b""], {"words": tf.VarLenFeature(tf.string)})
        >>> sess.run(parsed["words"]).dense_shape
        array([2, 0])
    """

    dtype: Any


@public("SparseFeature", "io.SparseFeature")
class SparseFeature(NamedTuple):
    """How to parse values of one feature at indices in one or several others: a SparseTensor."""

    index_key: Any
    value_key: str
    dtype: Any
    size: Any
    already_sorted: bool = False


@public("FixedLenFeature", "io.FixedLenFeature")
class FixedLenFeature(NamedTuple):
    """How to parse a feature that has a fixed shape: a tensor of that shape.

    Args:
        shape: the shape of the feature in one example.
        dtype: float32, int64 or string.
        default_value: the value for examples without the feature; if None they are errors.

    Example:
        >>> features = {"x": tf.FixedLenFeature([2], tf.float32, default_value=[0.0, 0.0])}
        >>> parsed = tf.parse_single_example(tf.constant(b""), features)
        >>> sess.run(parsed["x"])
        array([0., 0.], dtype=float32)
    """

    shape: Any
    dtype: Any
    default_value: Any = None


@public("FixedLenSequenceFeature", "io.FixedLenSequenceFeature")
class FixedLenSequenceFeature(NamedTuple):
    """How to parse a feature that is a sequence of items of a fixed shape: a tensor of items.

    Args:
        shape: the shape of an item.
        dtype: float32, int64 or string.
        allow_missing: whether an example may lack it.
        default_value: the padding of shorter sequences in a batch.

    Example:
        >>> features = {"x": tf.FixedLenSequenceFeature([], tf.float32, allow_missing=True)}
        >>> sess.run(tf.parse_example([b""], features))["x"].shape
        (1, 0)
    """

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


Feature = VarLenFeature | SparseFeature | FixedLenFeature | FixedLenSequenceFeature


@dataclass
class ParseArguments:
    """The arguments of a parsing op for some features, by key."""

    sparse: dict[str, DType] = field(default_factory=dict[str, DType])
    dense: dict[str, DType] = field(default_factory=dict[str, DType])
    shapes: dict[str, TensorShape] = field(default_factory=dict[str, TensorShape])
    defaults: Tensors = field(default_factory=Tensors)

    def add(self, key: str, feature: Any, allowed: Sequence[type[Any]]) -> None:
        """Add a feature of one of the allowed types."""
        if not isinstance(feature, Feature):
            raise ValueError(f"Invalid feature {key}:{feature}.")
        if type(feature) not in allowed:
            raise ValueError(f"Unsupported {type(feature).__name__} {feature}.")
        if not feature.dtype:
            raise ValueError(f"Missing type for feature {key}.")
        if isinstance(feature, VarLenFeature):
            self._add_sparse(key, as_dtype(feature.dtype))
        elif isinstance(feature, SparseFeature):
            self._add_placed(feature)
        else:
            self._add_dense(key, feature)

    def _add_sparse(self, key: str, dtype: DType) -> None:
        known = self.sparse.setdefault(key, dtype)
        if known is not dtype:
            raise ValueError(f"Conflicting type {known.name} vs {dtype.name} for feature {key}.")

    def _add_placed(self, feature: SparseFeature) -> None:
        for part in ("index_key", "value_key"):
            if not getattr(feature, part):
                raise ValueError(f"Missing {part} for SparseFeature {feature}.")
        for key in sorted(nest.as_list(feature.index_key)):
            self._add_sparse(key, dtypes.int64)
        self._add_sparse(feature.value_key, as_dtype(feature.dtype))

    def _add_dense(self, key: str, feature: FixedLenFeature | FixedLenSequenceFeature) -> None:
        if feature.shape is None:
            raise ValueError(f"Missing shape for feature {key}.")
        shape = as_shape(feature.shape)
        self.dense[key], self.shapes[key] = as_dtype(feature.dtype), shape
        if isinstance(feature, FixedLenSequenceFeature):
            if feature.allow_missing:
                self.defaults[key] = None
        elif not shape.is_fully_defined():
            raise ValueError(
                f"All dimensions of shape for feature {key} need to be known but received {shape}."
            )
        if feature.default_value is not None:
            self.defaults[key] = feature.default_value

    def check(self, what: str = "") -> None:
        """Raise if a key is both sparse and dense."""
        both = set(self.sparse) & set(self.dense)
        if both:
            raise ValueError(
                f"{what}Dense and {what.lower()}sparse keys must not intersect; intersection: "
                f"{both}"
            )

    def default_tensors(self) -> list[Tensor]:
        """The default of each dense feature; an empty tensor for none."""
        return [self._default(key) for key in self.dense]

    def _default(self, key: str) -> Tensor:
        value, dtype, shape = self.defaults.get(key), self.dense[key], self.shapes[key]
        if shape.sizes and shape.sizes[0] is None:
            padding = ("" if dtype is dtypes.string else 0) if value is None else value
            return shaping.reshape(
                convert_to_tensor(padding, dtype, name=f"padding_{_safe(key)}"), []
            )
        if value is None:
            return constant([], dtype)
        if isinstance(value, Tensor):
            return value
        return shaping.reshape(convert_to_tensor(value, dtype, name=f"key_{_safe(key)}"), shape)


def _safe(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.\-/]", "_", key)


def parse_arguments(
    features: Mapping[str, Any] | None, allowed: Sequence[type[Any]]
) -> ParseArguments:
    """The arguments for features, which must be of the allowed types, in the order of keys."""
    result = ParseArguments()
    for key in sorted(features or {}):
        result.add(key, cast("Mapping[str, Any]", features)[key], allowed)
    return result


def _varying(features: Mapping[str, Any]) -> dict[str, Any]:
    """The features, with an unknown first size added to the shapes of sequences."""
    return {
        key: _varying_one(feature) if isinstance(feature, FixedLenSequenceFeature) else feature
        for key, feature in features.items()
    }


def _varying_one(feature: FixedLenSequenceFeature) -> FixedLenSequenceFeature:
    if not feature.allow_missing:
        raise ValueError("Unsupported: FixedLenSequenceFeature requires allow_missing to be True.")
    if feature.shape is None:
        return feature
    return feature._replace(shape=[None, *as_shape(feature.shape).as_list()])


_OF_EXAMPLES = (VarLenFeature, SparseFeature, FixedLenFeature, FixedLenSequenceFeature)


def _placed(features: Mapping[str, Any], tensors: Tensors) -> Tensors:
    """The tensors of features; indices and values of a SparseFeature are merged."""
    result: Tensors = {}
    for key in sorted(features):
        feature = features[key]
        if isinstance(feature, SparseFeature):
            ids: Any = [tensors[part] for part in nest.as_list(feature.index_key)]
            sizes: Any = nest.as_list(feature.size)
            result[key] = sparse_pieces.sparse_merge(
                ids, tensors[feature.value_key], sizes, already_sorted=feature.already_sorted
            )
        else:
            result[key] = tensors[key]
    return result


def _sparse_tensors(indices: Any, values: Any, shapes: Any) -> list[SparseTensor]:
    return [SparseTensor(*parts) for parts in zip(indices, values, shapes, strict=True)]


# Examples


@public("parse_example", "io.parse_example")
def parse_example(
    serialized: Any, features: Any, name: str | None = None, example_names: Any = None
) -> Tensors:
    """The features of a vector of serialized `tf.train.Example`s.

    Args:
        serialized: a vector of strings.
        features: a dict from names to `tf.FixedLenFeature`, `tf.VarLenFeature` or another of them.
        name: the name of the node.
        example_names: strings that errors name the examples by.

    Returns:
        A dict from names to tensors or SparseTensors; the first axis is that of the vector.

    Raises:
        InvalidArgumentError: if the bytes are not an Example, or a feature without a default is
            missing.

    Example:
        >>> features = {"x": tf.FixedLenFeature([], tf.float32, default_value=0.5)}
        >>> sess.run(tf.parse_example([b"", b""], features))["x"]
        array([0.5, 0.5], dtype=float32)
    """
    if not features:
        raise ValueError(f"Missing: features was {features}.")
    features = _varying(features)
    asked = parse_arguments(features, _OF_EXAMPLES)
    asked.check()
    return _placed(features, _parse_batch(serialized, example_names, asked, name))


def _parse_batch(serialized: Any, names: Any, asked: ParseArguments, name: str | None) -> Tensors:
    op = ParseExample(
        Tdense=tuple(asked.dense.values()),
        sparse_types=tuple(asked.sparse.values()),
        dense_shapes=tuple(asked.shapes.values()),
    )
    with name_scope(name, "ParseExample", [serialized, names]):
        outputs = op(
            convert_to_tensor(serialized, dtypes.string),
            convert_to_tensor([] if names is None else names, dtypes.string),
            [constant(as_bytes(key), dtypes.string) for key in asked.sparse],
            [constant(as_bytes(key), dtypes.string) for key in asked.dense],
            asked.default_tensors(),
            name=name,
        )
    return _by_key(outputs, asked)


def _by_key(outputs: Any, asked: ParseArguments) -> Tensors:
    sparse = _sparse_tensors(outputs.sparse_indices, outputs.sparse_values, outputs.sparse_shapes)
    return dict(zip([*asked.sparse, *asked.dense], [*sparse, *outputs.dense_values], strict=True))


@public("parse_single_example", "io.parse_single_example")
def parse_single_example(
    serialized: Any, features: Any, name: str | None = None, example_names: Any = None
) -> Tensors:
    """The features of one serialized `tf.train.Example`.

    Args:
        serialized: a scalar string.
        features: a dict from names to `tf.FixedLenFeature`, `tf.VarLenFeature` or another of them.
        name: the name of the node.
        example_names: a scalar string that errors name the example by.

    Returns:
        A dict from names to tensors or SparseTensors, without an axis for a batch.

    Raises:
        InvalidArgumentError: if the bytes are not an Example, or a feature without a default is
            missing.

    Example:
        >>> ids = tf.train.Feature(int64_list=tf.train.Int64List(value=[7]))
        >>> example = tf.train.Example(features=tf.train.Features(feature={"id": ids}))
        >>> parsed = tf.parse_single_example(
        ...     example.SerializeToString(), {"id": tf.FixedLenFeature([], tf.int64)}
        ... )
        >>> sess.run(parsed["id"])
        np.int64(7)
    """
    if not features:
        raise ValueError("Missing features.")
    features = _varying(features)
    asked = parse_arguments(features, _OF_EXAMPLES)
    asked.check()
    with name_scope(name, "ParseSingleExample", [serialized, example_names]):
        message = _scalar(serialized, "serialized")
        if example_names is None:
            tensors = _parse_one(message, asked, name)
        else:
            names = shaping.expand_dims(_scalar(example_names, "names"), 0)
            batch = _parse_batch(shaping.expand_dims(message, 0), names, asked, name)
            tensors = {key: _only_row(key, tensor) for key, tensor in batch.items()}
    return _placed(features, tensors)


def _scalar(value: Any, what: str) -> Tensor:
    tensor = convert_to_tensor(value, dtypes.string)
    if tensor.shape.rank not in (None, 0):
        raise ValueError(f"Input {what} must be a scalar")
    return tensor


def _parse_one(message: Tensor, asked: ParseArguments, name: str | None) -> Tensors:
    op = ParseSingleExample(
        num_sparse=len(asked.sparse),
        Tdense=tuple(asked.dense.values()),
        sparse_keys=tuple(asked.sparse),
        dense_keys=tuple(asked.dense),
        sparse_types=tuple(asked.sparse.values()),
        dense_shapes=tuple(asked.shapes.values()),
    )
    return _by_key(op(message, asked.default_tensors(), name=name), asked)


def _only_row(key: str, tensor: Any) -> Any:
    """The row of a batch of one."""
    if not isinstance(tensor, SparseTensor):
        return shaping.squeeze(tensor, [0], name=f"Squeeze_{_safe(key)}")
    return SparseTensor(tensor.indices[:, 1:], tensor.values, tensor.dense_shape[1:])


# Sequence examples

_OF_CONTEXTS = (VarLenFeature, FixedLenFeature)
_OF_LISTS = (VarLenFeature, FixedLenSequenceFeature)


def _sequence_features(
    context_features: Any, sequence_features: Any
) -> tuple[ParseArguments, ParseArguments]:
    if not (context_features or sequence_features):
        raise ValueError("Missing features.")
    context, lists = (
        parse_arguments(context_features, _OF_CONTEXTS),
        parse_arguments(sequence_features, _OF_LISTS),
    )
    context.check("Context_")
    lists.check("Feature_list_")
    for key, value in lists.defaults.items():
        if value is not None:
            raise ValueError(f"Value feature_list_dense_defaults[{key}] must be None")
    return context, lists


def _sequence_outputs(
    outputs: Any, context: ParseArguments, lists: ParseArguments
) -> tuple[Tensors, Tensors]:
    of_context = _sparse_tensors(
        outputs.context_sparse_indices,
        outputs.context_sparse_values,
        outputs.context_sparse_shapes,
    )
    of_lists = _sparse_tensors(
        outputs.feature_list_sparse_indices,
        outputs.feature_list_sparse_values,
        outputs.feature_list_sparse_shapes,
    )
    context_tensors = [*of_context, *outputs.context_dense_values]
    list_tensors = [*of_lists, *outputs.feature_list_dense_values]
    return (
        dict(zip([*context.sparse, *context.dense], context_tensors, strict=True)),
        dict(zip([*lists.sparse, *lists.dense], list_tensors, strict=True)),
    )


@public("parse_single_sequence_example", "io.parse_single_sequence_example")
def parse_single_sequence_example(
    serialized: Any,
    context_features: Any = None,
    sequence_features: Any = None,
    example_name: Any = None,
    name: str | None = None,
) -> tuple[Tensors, Tensors]:
    """(context features, feature lists) of one serialised SequenceExample.

    Args:
        serialized: a string scalar, a serialised SequenceExample.
        context_features: the features of the context, by name: FixedLenFeature or VarLenFeature.
        sequence_features: the feature lists, by name: FixedLenSequenceFeature or
            VarLenFeature.
        example_name: a name to show in errors.
        name: the name of the nodes.

    Returns:
        (context, lists): two dicts of tensors.

    Example:
        >>> one = tf.train.Feature(int64_list=tf.train.Int64List(value=[7]))
        >>> twice = tf.train.FeatureList(feature=[one, one])
        >>> lists = tf.train.FeatureLists(feature_list={"ids": twice})
        >>> text = tf.train.SequenceExample(feature_lists=lists).SerializeToString()
        >>> wanted = {"ids": tf.FixedLenSequenceFeature([], tf.int64)}
        >>> _, found = tf.parse_single_sequence_example(text, sequence_features=wanted)
        >>> sess.run(found["ids"])
        array([7, 7])
    """
    context, lists = _sequence_features(context_features, sequence_features)
    with name_scope(name, "ParseSingleSequenceExample", [serialized]):
        op = ParseSingleSequenceExample(
            Tcontext_dense=tuple(context.dense.values()),
            context_sparse_types=tuple(context.sparse.values()),
            feature_list_dense_types=tuple(lists.dense.values()),
            context_dense_shapes=tuple(context.shapes.values()),
            feature_list_sparse_types=tuple(lists.sparse.values()),
            feature_list_dense_shapes=tuple(lists.shapes.values()),
        )
        keys = (context.sparse, context.dense, lists.sparse, lists.dense)
        outputs = op(
            convert_to_tensor(serialized, dtypes.string),
            constant(list(lists.defaults), dtypes.string),
            *[[constant(as_bytes(key), dtypes.string) for key in part] for part in keys],
            context.default_tensors(),
            convert_to_tensor("" if example_name is None else example_name, dtypes.string),
            name=name,
        )
        return _sequence_outputs(outputs, context, lists)


@public("io.parse_sequence_example")
def parse_sequence_example(
    serialized: Any,
    context_features: Any = None,
    sequence_features: Any = None,
    example_names: TensorLike | None = None,
    name: str | None = None,
) -> tuple[Tensors, Tensors, dict[str, Tensor]]:
    """(context features, feature lists, lengths) of a vector of serialised SequenceExamples."""
    context, lists = _sequence_features(context_features, sequence_features)
    with name_scope(name, "ParseSequenceExample", [serialized, example_names]):
        op = ParseSequenceExample(
            feature_list_dense_missing_assumed_empty=tuple(lists.defaults),
            context_sparse_keys=tuple(context.sparse),
            context_dense_keys=tuple(context.dense),
            feature_list_sparse_keys=tuple(lists.sparse),
            feature_list_dense_keys=tuple(lists.dense),
            Ncontext_sparse=len(context.sparse),
            Ncontext_dense=len(context.dense),
            Nfeature_list_sparse=len(lists.sparse),
            Nfeature_list_dense=len(lists.dense),
            Tcontext_dense=tuple(context.dense.values()),
            context_sparse_types=tuple(context.sparse.values()),
            feature_list_dense_types=tuple(lists.dense.values()),
            context_dense_shapes=tuple(context.shapes.values()),
            feature_list_sparse_types=tuple(lists.sparse.values()),
            feature_list_dense_shapes=tuple(lists.shapes.values()),
        )
        names: Any = [] if example_names is None else example_names
        outputs = op(
            convert_to_tensor(serialized, dtypes.string),
            convert_to_tensor(names, dtypes.string),
            context.default_tensors(),
            name=name,
        )
        lengths = dict(zip(lists.dense, outputs.feature_list_dense_lengths, strict=True))
        return *_sequence_outputs(outputs, context, lists), lengths
