"""`tf.feature_column`: descriptions of features, as graph code on Thalweg's own ops.

`feature_kinds` has the columns that these functions make, `feature_layers` layers of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np

from thalweg.alias import names
from thalweg.alias.feature_kinds import (
    BucketizedColumn,
    CategoricalColumn,
    CrossedColumn,
    DenseColumn,
    EmbeddingColumn,
    FeatureColumn,
    Features,
    HashedCategoricalColumn,
    IdentityCategoricalColumn,
    IndicatorColumn,
    NumericColumn,
    VocabularyCategoricalColumn,
    WeightedCategoricalColumn,
    feature_of,
)
from thalweg.alias.feature_layers import InputLayer, LinearModel, input_layer, linear_model

tf = names.root()


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
    result: dict[str, Any] = {}
    for column in feature_columns:
        for key, spec in column.parse_example_spec.items():
            if result.setdefault(key, spec) != spec:
                raise ValueError(f"feature_columns contain different parse_spec for key {key}.")
    return result


make_parse_example_spec_v2 = make_parse_example_spec


class FeatureTransformationCache:
    """Features by key, and columns computed of them, each once."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._made: dict[Any, Any] = {}

    def get(self, key: Any, state_manager: Any = None) -> Any:
        """A feature, or what a dense column makes of the features."""
        if isinstance(key, str):
            return feature_of(self._features, key)
        if key not in self._made:
            self._made[key] = key.dense(self._features)
        return self._made[key]


_LazyBuilder = FeatureTransformationCache


def is_feature_column_v2(feature_columns: Iterable[FeatureColumn]) -> bool:
    """False: columns follow the rules of TensorFlow 1."""
    return False


_LinearModel, _FeatureColumn, _NumericColumn = LinearModel, FeatureColumn, NumericColumn
DenseFeatures = InputLayer
__all__ = ["DenseColumn", "InputLayer", "LinearModel", "input_layer", "linear_model"]
