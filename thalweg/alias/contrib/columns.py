"""The feature columns of `tf.contrib.layers`: the older names of those in `tf.feature_column`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from thalweg.alias import feature_columns as columns
from thalweg.alias import names
from thalweg.alias.feature_layers import linear_model
from thalweg.graph import nest

tf = names.root()

#: The key of hashes of crossed columns, which the columns of today have too.
SPARSE_FEATURE_CROSS_DEFAULT_HASH_KEY = 0xDECAFCAFFE


def real_valued_column(
    column_name: str,
    dimension: int = 1,
    default_value: Any = None,
    dtype: Any = tf.float32,
    normalizer: Callable[[Any], Any] | None = None,
) -> Any:
    """Numbers as they are, or as a function of them."""
    return columns.numeric_column(column_name, (dimension,), default_value, dtype, normalizer)


def sparse_column_with_hash_bucket(
    column_name: str, hash_bucket_size: int, combiner: str = "sum", dtype: Any = tf.string
) -> Any:
    """Strings or integers by their hash."""
    return columns.categorical_column_with_hash_bucket(column_name, hash_bucket_size, dtype)


def sparse_column_with_keys(
    column_name: str,
    keys: Sequence[Any],
    default_value: int = -1,
    combiner: str = "sum",
    dtype: Any = tf.string,
) -> Any:
    """Strings or integers by their place in a list."""
    return columns.categorical_column_with_vocabulary_list(
        column_name, keys, dtype=dtype, default_value=default_value
    )


def sparse_column_with_vocabulary_file(
    column_name: str,
    vocabulary_file: str,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    combiner: str = "sum",
    dtype: Any = tf.string,
) -> Any:
    """Strings or integers by their line in a file."""
    return columns.categorical_column_with_vocabulary_file(
        column_name,
        vocabulary_file,
        vocabulary_size=vocab_size,
        num_oov_buckets=num_oov_buckets,
        default_value=None if num_oov_buckets else default_value,
        dtype=dtype,
    )


def sparse_column_with_integerized_feature(
    column_name: str, bucket_size: int, combiner: str = "sum", dtype: Any = tf.int64
) -> Any:
    """Integers that are ids already; those outside of the range are counted from its start."""
    if not tf.as_dtype(dtype).is_integer:
        raise ValueError(f"dtype must be an integer. dtype: {dtype}, column_name: {column_name}")
    return columns.categorical_column_with_identity(column_name, bucket_size)


def weighted_sparse_column(
    sparse_id_column: Any, weight_column_name: str, dtype: Any = tf.float32
) -> Any:
    """The ids of a column with weights."""
    return columns.weighted_categorical_column(sparse_id_column, weight_column_name, dtype)


def bucketized_column(source_column: Any, boundaries: Sequence[float]) -> Any:
    """Which interval between boundaries a number is in."""
    return columns.bucketized_column(source_column, sorted(set(boundaries)))


def crossed_column(
    columns_: Iterable[Any] = (),
    hash_bucket_size: int = 0,
    combiner: str = "sum",
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    hash_key: int | None = None,
    **named: Any,
) -> Any:
    """Combinations of values of columns, by their hash."""
    crossed = named.pop("columns", columns_)
    if named:
        raise TypeError(f"crossed_column got an unexpected argument {next(iter(named))!r}")
    parts = [_crossable(part) for part in crossed]
    return columns.crossed_column(parts, hash_bucket_size, hash_key)


def _crossable(column: Any) -> Any:
    """A column that is crossed: one that would be hashed, by its values."""
    if isinstance(column, columns.HashedCategoricalColumn):
        return column.key
    return column


def one_hot_column(sparse_id_column: Any) -> Any:
    """Ids as counts."""
    return columns.indicator_column(sparse_id_column)


def embedding_column(
    sparse_id_column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> Any:
    """Ids as learnt vectors."""
    return columns.embedding_column(
        sparse_id_column,
        dimension,
        combiner,
        initializer,
        ckpt_to_load_from,
        tensor_name_in_ckpt,
        max_norm,
        trainable,
    )


def create_feature_spec_for_parsing(feature_columns: Iterable[Any]) -> dict[str, Any]:
    """What `tf.parse_example` must read for some columns."""
    return columns.make_parse_example_spec(feature_columns)


def input_from_feature_columns(
    columns_to_tensors: Mapping[str, Any],
    feature_columns: Iterable[Any],
    weight_collections: Any = None,
    trainable: bool = True,
    scope: str | None = None,
) -> Any:
    """All columns side by side, [batch, size]."""
    with tf.variable_scope(scope, default_name="input_from_feature_columns"):
        return tf.feature_column.input_layer(
            columns_to_tensors, feature_columns, weight_collections, trainable
        )


def weighted_sum_from_feature_columns(
    columns_to_tensors: Mapping[str, Any],
    feature_columns: Iterable[Any],
    num_outputs: int,
    weight_collections: Any = None,
    trainable: bool = True,
    scope: str | None = None,
) -> tuple[Any, dict[Any, Any], Any]:
    """(A linear model of the columns, the variables of each column, the bias)."""
    found: dict[Any, Any] = {}
    with tf.variable_scope(scope, default_name="weighted_sum_from_feature_columns"):
        total = linear_model(
            columns_to_tensors,
            feature_columns,
            units=num_outputs,
            weight_collections=weight_collections,
            trainable=trainable,
            cols_to_vars=found,
        )
    return total, found, nest.as_list(found.pop("bias"))[0]
