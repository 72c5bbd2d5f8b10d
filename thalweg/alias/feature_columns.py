"""`tf.feature_column`: descriptions of features, as graph code on Thalweg's own ops.

A dense column gives [batch, size] floats, a categorical one a SparseTensor of int64 ids. Columns
are values: equal descriptions are equal, and may be keys. `feature_layers` makes layers of them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from thalweg.alias import names
from thalweg.ops.rare.hashing import fingerprint64

tf = names.root()

Features = Mapping[str, Any]


@dataclass(frozen=True)
class FeatureColumn:
    """A description of features; `name` orders columns and names their variables."""

    @property
    def name(self) -> str:
        """The name."""
        raise NotImplementedError

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """What `tf.parse_example` must read, by key."""
        raise NotImplementedError

    @property
    def var_scope_name(self) -> str:
        """The variable scope of what is learnt of the column."""
        return self.name


class DenseColumn(FeatureColumn):
    """A column of floats."""

    @property
    def variable_shape(self) -> Any:
        """The shape of an example's values."""
        raise NotImplementedError

    def dense(self, features: Features, trainable: bool, collections: Any) -> Any:
        """[batch, ...] floats."""
        raise NotImplementedError


class CategoricalColumn(FeatureColumn):
    """A column of ids below `num_buckets`."""

    @property
    def num_buckets(self) -> int:
        """The number of ids."""
        raise NotImplementedError

    def ids(self, features: Features) -> Any:
        """A SparseTensor of ids; -1 is no id."""
        raise NotImplementedError

    def weights(self, features: Features) -> Any:
        """A SparseTensor of weights of the ids, or None."""
        return None


def _sparse(value: Any) -> Any:
    """A SparseTensor of what may be dense: empty strings and -1 are nothing."""
    if isinstance(value, tf.SparseTensor):
        return value
    tensor = tf.convert_to_tensor(value)
    if tensor.shape.rank == 1:
        tensor = tf.expand_dims(tensor, -1)
    nothing = "" if tensor.dtype is tf.string else -1
    indices = tf.where(tf.not_equal(tensor, tf.cast(nothing, tensor.dtype) if nothing else nothing))
    return tf.SparseTensor(
        indices, tf.gather_nd(tensor, indices), tf.shape(tensor, out_type=tf.int64)
    )


def _with_values(sparse: Any, values: Any) -> Any:
    return tf.SparseTensor(sparse.indices, values, sparse.dense_shape)


def _feature(features: Features, key: str) -> Any:
    if key not in features:
        raise ValueError(f"Feature {key} is not in features dictionary.")
    return features[key]


@dataclass(frozen=True)
class NumericColumn(DenseColumn):
    """Numbers as they are, or normalized."""

    key: str
    shape: tuple[int, ...]
    default_value: Any
    dtype: Any
    normalizer_fn: Callable[[Any], Any] | None

    @property
    def name(self) -> str:
        return self.key

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return {self.key: tf.FixedLenFeature(self.shape, self.dtype, self.default_value)}

    @property
    def variable_shape(self) -> Any:
        return tf.TensorShape(self.shape)

    def dense(self, features: Features, trainable: bool = True, collections: Any = None) -> Any:
        tensor = _feature(features, self.key)
        if isinstance(tensor, tf.SparseTensor):
            raise ValueError(f"The feature of numeric_column {self.key} must be a Tensor.")
        tensor = tf.convert_to_tensor(tensor)
        if self.normalizer_fn is not None:
            tensor = self.normalizer_fn(tensor)
        tensor = tf.cast(tensor, tf.float32)
        return tf.expand_dims(tensor, -1) if tensor.shape.rank == 1 else tensor


@dataclass(frozen=True)
class BucketizedColumn(DenseColumn, CategoricalColumn):
    """Which of the intervals between boundaries a number is in, as one-hot or as an id."""

    source_column: NumericColumn
    boundaries: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.source_column.name}_bucketized"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return self.source_column.parse_example_spec

    @property
    def variable_shape(self) -> Any:
        return tf.TensorShape([*self.source_column.shape, len(self.boundaries) + 1])

    @property
    def num_buckets(self) -> int:
        return (len(self.boundaries) + 1) * int(np.prod(self.source_column.shape))

    def _bucket(self, features: Features) -> Any:
        values = tf.expand_dims(self.source_column.dense(features), -1)
        passed = tf.greater_equal(values, tf.constant(self.boundaries, tf.float32))
        return tf.reduce_sum(tf.cast(passed, tf.int64), -1)

    def dense(self, features: Features, trainable: bool = True, collections: Any = None) -> Any:
        return tf.one_hot(self._bucket(features), len(self.boundaries) + 1)

    def ids(self, features: Features) -> Any:
        buckets = self._bucket(features)
        count = int(np.prod(self.source_column.shape))
        flat = tf.reshape(buckets, [-1, count])
        offsets = tf.constant([(len(self.boundaries) + 1) * i for i in range(count)], tf.int64)
        shape = tf.shape(flat, out_type=tf.int64)
        indices = tf.where(tf.greater_equal(flat, tf.constant(0, tf.int64)))
        return tf.SparseTensor(indices, tf.reshape(flat + offsets, [-1]), shape)


@dataclass(frozen=True)
class _KeyedColumn(CategoricalColumn):
    """A categorical column of one feature."""

    key: str

    @property
    def name(self) -> str:
        return self.key

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return {self.key: tf.VarLenFeature(cast("Any", self).dtype)}


@dataclass(frozen=True)
class HashedCategoricalColumn(_KeyedColumn):
    """The hash of a string or an integer."""

    hash_bucket_size: int
    dtype: Any

    @property
    def num_buckets(self) -> int:
        return self.hash_bucket_size

    def ids(self, features: Features) -> Any:
        sparse = _sparse(_feature(features, self.key))
        values = sparse.values if self.dtype is tf.string else tf.as_string(sparse.values)
        return _with_values(sparse, tf.string_to_hash_bucket_fast(values, self.hash_bucket_size))


@dataclass(frozen=True)
class VocabularyCategoricalColumn(_KeyedColumn):
    """The place of a value in a list or a file."""

    vocabulary: tuple[Any, ...] | str
    size: int
    dtype: Any
    default_value: int
    num_oov_buckets: int

    @property
    def num_buckets(self) -> int:
        return self.size + self.num_oov_buckets

    def ids(self, features: Features) -> Any:
        options = {"num_oov_buckets": self.num_oov_buckets, "default_value": self.default_value}
        if isinstance(self.vocabulary, str):
            options |= {"vocab_size": self.size, "key_dtype": self.dtype}
            table = tf.contrib.lookup.index_table_from_file(self.vocabulary, **options)
        else:
            listed = tf.constant(self.vocabulary, dtype=self.dtype)
            table = tf.contrib.lookup.index_table_from_tensor(listed, **options)
        sparse = _sparse(_feature(features, self.key))
        values = sparse.values
        if self.dtype is not tf.string:
            values = tf.cast(values, tf.int64)
        return _with_values(sparse, table.lookup(values))


@dataclass(frozen=True)
class IdentityCategoricalColumn(_KeyedColumn):
    """Integers that are ids already."""

    number_buckets: int
    default_value: int | None
    dtype: Any = tf.int64

    @property
    def num_buckets(self) -> int:
        return self.number_buckets

    def ids(self, features: Features) -> Any:
        sparse = _sparse(_feature(features, self.key))
        values = tf.cast(sparse.values, tf.int64)
        limit = tf.constant(self.number_buckets, tf.int64)
        zero = tf.constant(0, tf.int64)
        if self.default_value is None:
            checks = [tf.assert_less(values, limit), tf.assert_greater_equal(values, zero)]
            with tf.control_dependencies(checks):
                return _with_values(sparse, tf.identity(values))
        wrong = tf.logical_or(values < zero, values >= limit)
        default = tf.fill(tf.shape(values), tf.constant(self.default_value, tf.int64))
        return _with_values(sparse, tf.where(wrong, default, values))


@dataclass(frozen=True)
class WeightedCategoricalColumn(CategoricalColumn):
    """The ids of a column, each with a weight from another feature."""

    categorical_column: CategoricalColumn
    weight_feature_key: str
    dtype: Any

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_weighted_by_{self.weight_feature_key}"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        weights = {self.weight_feature_key: tf.VarLenFeature(self.dtype)}
        return self.categorical_column.parse_example_spec | weights

    @property
    def num_buckets(self) -> int:
        return self.categorical_column.num_buckets

    def ids(self, features: Features) -> Any:
        return self.categorical_column.ids(features)

    def weights(self, features: Features) -> Any:
        given = _feature(features, self.weight_feature_key)
        if isinstance(given, tf.SparseTensor):
            return _with_values(given, tf.cast(given.values, tf.float32))
        ids = self.ids(features)
        dense = tf.cast(given, tf.float32)
        return _with_values(ids, tf.gather_nd(dense, ids.indices))


@dataclass(frozen=True)
class CrossedColumn(CategoricalColumn):
    """The hash of every combination of values of several features."""

    keys: tuple[Any, ...]
    hash_bucket_size: int
    hash_key: int | None

    @property
    def name(self) -> str:
        found = (key if isinstance(key, str) else key.name for key in self.keys)
        return "_X_".join(sorted(found))

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        for key in self.keys:
            found = key.parse_example_spec if hasattr(key, "parse_example_spec") else None
            spec |= {key: tf.VarLenFeature(tf.string)} if found is None else found
        return spec

    @property
    def num_buckets(self) -> int:
        return self.hash_bucket_size

    def leaves(self) -> list[Any]:
        """The keys and columns that are crossed; of a crossed column, those that it crosses."""
        nested = ([k] if not isinstance(k, CrossedColumn) else k.leaves() for k in self.keys)
        return [leaf for found in nested for leaf in found]

    def ids(self, features: Features) -> Any:
        columns = [
            _sparse(_feature(features, key)) if isinstance(key, str) else key.ids(features)
            for key in self.leaves()
        ]
        parts = [part for c in columns for part in (c.indices, c.values, c.dense_shape)]
        key = _HASH_KEY if self.hash_key is None else self.hash_key
        cross = functools.partial(_crossed, key, self.hash_bucket_size)
        indices, hashed, shape = tf.py_func(cross, parts, [tf.int64] * 3)
        indices.set_shape([None, 2])
        hashed.set_shape([None])
        shape.set_shape([2])
        return tf.SparseTensor(indices, hashed, shape)


_HASH_KEY = 956888297470  # what hashes of crosses begin with unless told otherwise
_MULTIPLIER = 0xC6A4A7935BD1E995
_WORD = (1 << 64) - 1


def _joined(first: int, second: int) -> int:
    """The fingerprint of a sequence, of that of its beginning and that of its next item."""
    mixed = _shifted(second * _MULTIPLIER & _WORD) * _MULTIPLIER & _WORD
    mixed = (first ^ _MULTIPLIER ^ mixed) * _MULTIPLIER & _WORD
    return _shifted(_shifted(mixed) * _MULTIPLIER & _WORD)


def _shifted(value: int) -> int:
    return value ^ (value >> 47)


def _crossed(key: int, buckets: int, *parts: Any) -> tuple[Any, Any, Any]:
    """Indices, hashes and shape of all combinations within each example."""
    columns = [parts[start : start + 3] for start in range(0, len(parts), 3)]
    batch = max(int(shape[0]) for _, _, shape in columns)
    rows: list[list[list[int]]] = [[[] for _ in columns] for _ in range(batch)]
    for number, (indices, values, _) in enumerate(columns):
        for (row, *_), value in zip(indices, values, strict=True):
            is_text = isinstance(value, bytes)
            rows[int(row)][number].append(fingerprint64(value) if is_text else int(value) & _WORD)
    crossed = [
        [functools.reduce(_joined, values, key) % buckets for values in itertools.product(*row)]
        for row in rows
    ]
    places = [(row, i) for row, values in enumerate(crossed) for i in range(len(values))]
    width = max((len(values) for values in crossed), default=0)
    return (
        np.array(places, np.int64).reshape(-1, 2),
        np.array([value for values in crossed for value in values], np.int64),
        np.array([batch, width], np.int64),
    )


@dataclass(frozen=True)
class IndicatorColumn(DenseColumn):
    """How often an example has each id."""

    categorical_column: CategoricalColumn

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_indicator"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_example_spec

    @property
    def variable_shape(self) -> Any:
        return tf.TensorShape([1, self.categorical_column.num_buckets])

    def dense(self, features: Features, trainable: bool = True, collections: Any = None) -> Any:
        column = self.categorical_column
        ids, weights = column.ids(features), column.weights(features)
        numbers = tf.one_hot(ids.values, column.num_buckets)
        if weights is not None:
            numbers = numbers * tf.expand_dims(weights.values, -1)
        rows = tf.unsorted_segment_sum(numbers, ids.indices[:, 0], ids.dense_shape[0])
        rows.set_shape([None, column.num_buckets])
        return rows


@dataclass(frozen=True)
class EmbeddingColumn(DenseColumn):
    """A learnt vector for each id, combined over the ids of an example."""

    categorical_column: CategoricalColumn
    dimension: int
    combiner: str
    initializer: Any
    ckpt_to_load_from: str | None
    tensor_name_in_ckpt: str | None
    max_norm: float | None
    trainable: bool

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_embedding"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_example_spec

    @property
    def variable_shape(self) -> Any:
        return tf.TensorShape([self.dimension])

    def dense(self, features: Features, trainable: bool = True, collections: Any = None) -> Any:
        column = self.categorical_column
        spread = 1 / np.sqrt(self.dimension)
        table = tf.get_variable(
            "embedding_weights",
            [column.num_buckets, self.dimension],
            tf.float32,
            initializer=self.initializer or tf.truncated_normal_initializer(stddev=spread),
            trainable=self.trainable and trainable,
            collections=collections,
        )
        if self.ckpt_to_load_from is not None:
            tf.train.init_from_checkpoint(self.ckpt_to_load_from, {self.tensor_name_in_ckpt: table})
        return tf.nn.safe_embedding_lookup_sparse(
            table,
            column.ids(features),
            column.weights(features),
            combiner=self.combiner,
            max_norm=self.max_norm,
        )


def numeric_column(
    key: str,
    shape: Any = (1,),
    default_value: Any = None,
    dtype: Any = tf.float32,
    normalizer_fn: Callable[[Any], Any] | None = None,
) -> NumericColumn:
    """Numbers as they are, or as a function of them."""
    sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
    if any(size <= 0 for size in sizes):
        raise ValueError(f"shape dimensions must be greater than 0, shape: {shape}")
    kind = tf.as_dtype(dtype)
    if not (kind.is_integer or kind.is_floating):
        raise ValueError(f"dtype must be convertible to float. dtype: {dtype}, key: {key}")
    default = None
    if default_value is not None:
        default = tuple(np.broadcast_to(default_value, sizes).ravel().tolist())
    return NumericColumn(key, sizes, default, kind, normalizer_fn)


def bucketized_column(
    source_column: NumericColumn, boundaries: Sequence[float]
) -> BucketizedColumn:
    """Which interval between boundaries a number is in."""
    if not isinstance(cast("Any", source_column), NumericColumn) or len(source_column.shape) > 1:
        raise ValueError("source_column must be a one-dimensional numeric column.")
    if not boundaries or any(a >= b for a, b in itertools.pairwise(boundaries)):
        raise ValueError("boundaries must be a sorted list.")
    return BucketizedColumn(source_column, tuple(boundaries))


def categorical_column_with_hash_bucket(
    key: str, hash_bucket_size: int, dtype: Any = tf.string
) -> HashedCategoricalColumn:
    """Values by their hash."""
    if hash_bucket_size < 1:
        raise ValueError(f"hash_bucket_size must be at least 1. column_name: {key}")
    return HashedCategoricalColumn(key, hash_bucket_size, tf.as_dtype(dtype))


def categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Sequence[Any],
    dtype: Any = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
) -> VocabularyCategoricalColumn:
    """Values by their place in a list."""
    if not len(vocabulary_list) or len(set(vocabulary_list)) != len(vocabulary_list):
        raise ValueError(
            f"vocabulary_list {vocabulary_list} must be non-empty and free of duplicates."
        )
    _check_default(default_value, num_oov_buckets, key)
    kind = tf.as_dtype(dtype or np.array(list(vocabulary_list)).dtype)
    kind = kind if kind is tf.string else tf.int64
    items = tuple(vocabulary_list)
    return VocabularyCategoricalColumn(key, items, len(items), kind, default_value, num_oov_buckets)


def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: str,
    vocabulary_size: int | None = None,
    num_oov_buckets: int = 0,
    default_value: int | None = None,
    dtype: Any = tf.string,
) -> VocabularyCategoricalColumn:
    """Values by their line in a file."""
    if not vocabulary_file:
        raise ValueError(f"Missing vocabulary_file in {key}.")
    if vocabulary_size is None:
        with tf.gfile.GFile(vocabulary_file) as file:
            vocabulary_size = sum(1 for _ in file)
    default = -1 if default_value is None else default_value
    _check_default(default, num_oov_buckets, key)
    return VocabularyCategoricalColumn(
        key, str(vocabulary_file), vocabulary_size, tf.as_dtype(dtype), default, num_oov_buckets
    )


def _check_default(default_value: int, num_oov_buckets: int, key: str) -> None:
    if num_oov_buckets and default_value != -1:
        raise ValueError(f"Can't specify both num_oov_buckets and default_value in {key}.")
    if num_oov_buckets < 0:
        raise ValueError(f"Invalid num_oov_buckets {num_oov_buckets} in {key}.")


def categorical_column_with_identity(
    key: str, num_buckets: int, default_value: int | None = None
) -> IdentityCategoricalColumn:
    """Integers that are ids."""
    if num_buckets < 1:
        raise ValueError(f"num_buckets {num_buckets} < 1, column_name {key}")
    if default_value is not None and not 0 <= default_value < num_buckets:
        raise ValueError(f"default_value {default_value} not in range [0, {num_buckets}), {key}")
    return IdentityCategoricalColumn(key, num_buckets, default_value)


def weighted_categorical_column(
    categorical_column: CategoricalColumn, weight_feature_key: str, dtype: Any = tf.float32
) -> WeightedCategoricalColumn:
    """The ids of a column with weights."""
    return WeightedCategoricalColumn(categorical_column, weight_feature_key, tf.as_dtype(dtype))


def crossed_column(
    keys: Iterable[Any], hash_bucket_size: int, hash_key: int | None = None
) -> CrossedColumn:
    """Combinations of values of features, by their hash."""
    listed = tuple(keys)
    if len(listed) < 2:
        raise ValueError(f"keys must be a list with length > 1. Given: {listed}")
    if not hash_bucket_size or hash_bucket_size < 1:
        raise ValueError(f"hash_bucket_size must be > 1. hash_bucket_size: {hash_bucket_size}")
    if any(isinstance(key, HashedCategoricalColumn) for key in listed):
        raise ValueError("categorical_column_with_hash_bucket is not supported for crossing.")
    return CrossedColumn(listed, hash_bucket_size, hash_key)


def indicator_column(categorical_column: CategoricalColumn) -> IndicatorColumn:
    """Ids as counts."""
    return IndicatorColumn(categorical_column)


def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> EmbeddingColumn:
    """Ids as learnt vectors."""
    if dimension < 1:
        raise ValueError(f"Invalid dimension {dimension}.")
    if (ckpt_to_load_from is None) != (tensor_name_in_ckpt is None):
        raise ValueError("Must specify both `ckpt_to_load_from` and `tensor_name_in_ckpt` or none.")
    return EmbeddingColumn(
        categorical_column, dimension, combiner, initializer, ckpt_to_load_from,
        tensor_name_in_ckpt, max_norm, trainable,
    )  # fmt: skip


def make_parse_example_spec(feature_columns: Iterable[FeatureColumn]) -> dict[str, Any]:
    """What `tf.parse_example` must read for some columns."""
    found: dict[str, Any] = {}
    for column in feature_columns:
        for key, spec in column.parse_example_spec.items():
            if found.setdefault(key, spec) != spec:
                raise ValueError(f"feature_columns contain different parse_spec for key {key}.")
    return found


make_parse_example_spec_v2 = make_parse_example_spec


class FeatureTransformationCache:
    """Features by key, and columns computed of them, each once."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._made: dict[Any, Any] = {}

    def get(self, key: Any, state_manager: Any = None) -> Any:
        """A feature, or what a dense column makes of the features."""
        if isinstance(key, str):
            return _feature(self._features, key)
        if key not in self._made:
            self._made[key] = key.dense(self._features)
        return self._made[key]


_LazyBuilder = FeatureTransformationCache


def is_feature_column_v2(feature_columns: Iterable[FeatureColumn]) -> bool:
    """False: columns follow the rules of TensorFlow 1."""
    return False


from thalweg.alias.feature_layers import (  # noqa: E402 - layers of the columns above
    InputLayer,
    LinearModel,
    input_layer,
    linear_model,
)

_LinearModel, _FeatureColumn, _NumericColumn = LinearModel, FeatureColumn, NumericColumn
DenseFeatures = InputLayer
__all__ = ["InputLayer", "LinearModel", "input_layer", "linear_model"]
