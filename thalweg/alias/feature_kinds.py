"""The kinds of feature columns: what each reads of the features, and the tensors it makes of it.

A dense column gives [batch, size] floats, a categorical one a SparseTensor of int64 ids. Columns
are values: equal descriptions are equal, and may be keys.
"""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from thalweg.alias import names
from thalweg.ops.rare.hashing import fingerprint64

tf = names.root()

Features = Mapping[str, Any]


@dataclass(frozen=True)
class FeatureColumn(ABC):
    """A description of features; `name` orders columns and names their variables."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name."""

    @property
    @abstractmethod
    def parse_example_spec(self) -> dict[str, Any]:
        """What `tf.parse_example` must read, by key."""

    @property
    def var_scope_name(self) -> str:
        """The variable scope of what is learnt of the column."""
        return self.name


class DenseColumn(FeatureColumn):
    """A column of floats."""

    @property
    @abstractmethod
    def variable_shape(self) -> Any:
        """The shape of an example's values."""

    @abstractmethod
    def dense(self, features: Features, trainable: bool, collections: Any) -> Any:
        """[batch, ...] floats."""


class CategoricalColumn(FeatureColumn):
    """A column of ids below `num_buckets`."""

    @property
    @abstractmethod
    def num_buckets(self) -> int:
        """The number of ids."""

    @abstractmethod
    def ids(self, features: Features) -> Any:
        """A SparseTensor of ids; -1 is no id."""

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


def feature_of(features: Features, key: str) -> Any:
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
        tensor = feature_of(features, self.key)
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
        sparse = _sparse(feature_of(features, self.key))
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
        sparse = _sparse(feature_of(features, self.key))
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
        sparse = _sparse(feature_of(features, self.key))
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
        given = feature_of(features, self.weight_feature_key)
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
            _sparse(feature_of(features, key)) if isinstance(key, str) else key.ids(features)
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
