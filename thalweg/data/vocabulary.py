"""Vocabularies: tables from words to ids and back, from a list or the lines of a file.

Out-of-vocabulary words get a default id, or that of a bucket after the vocabulary by their hash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

from thalweg.data.lookup import (
    HashTable,
    KeyValueTensorInitializer,
    LookupInterface,
    TextFileIdTableInitializer,
    TextFileStringTableInitializer,
)
from thalweg.graph.composite import SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype, int64, string
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import basic, casting, choosing, filling, shaping
from thalweg.ops.math import compare
from thalweg.ops.rare import hashing
from thalweg.ops.state.lookup import LINE_NUMBER, WHOLE_LINE
from thalweg.ops.text import decoding
from thalweg.public import public, publish_value

if TYPE_CHECKING:
    from thalweg.data.lookup import TableInitializerBase

# Hashes of out-of-vocabulary words


@public("contrib.lookup.HasherSpec")
class HasherSpec(NamedTuple):
    """A hash function of strings: its name and its key."""

    hasher: str
    key: tuple[int, int] | None


FastHashSpec = HasherSpec("fasthash", None)
publish_value("contrib.lookup.FastHashSpec", FastHashSpec)


@public("contrib.lookup.StrongHashSpec")
def strong_hash_spec(key: Sequence[Any]) -> HasherSpec:
    """A keyed hash, for which no set of words that collide can be constructed without the key."""
    if len(key) != 2:
        raise ValueError(f"key must have size 2, got {len(key)}.")
    if not all(isinstance(part, int) and part >= 0 for part in key):
        raise TypeError(f"Invalid key {key}: two unsigned integers.")
    return HasherSpec("stronghash", (key[0], key[1]))


_HASHERS: dict[str, Callable[[HasherSpec, Tensor, int], Tensor]] = {
    "fasthash": lambda _, words, count: hashing.string_to_hash_bucket_fast(words, count),
    "legacy": lambda _, words, count: hashing.string_to_hash_bucket(words, count),
    "stronghash": lambda spec, words, count: hashing.string_to_hash_bucket_strong(
        words, count, spec.key or ()
    ),
}


def _checked(spec: Any) -> HasherSpec:
    if not isinstance(spec, HasherSpec):
        raise TypeError(f"hasher_spec must be of type HasherSpec, got {spec}")
    if spec.hasher not in _HASHERS:
        raise ValueError(f"Unknown hasher {spec.hasher}: use FastHashSpec or StrongHashSpec.")
    return spec


# Tables


@public("contrib.lookup.IdTableWithHashBuckets")
class IdTableWithHashBuckets(LookupInterface):
    """The ids of a table, followed by ids of hash buckets for all other keys."""

    def __init__(
        self,
        table: Any,
        num_oov_buckets: int,
        hasher_spec: HasherSpec = FastHashSpec,
        name: str | None = None,
        key_dtype: Any = None,
    ) -> None:
        if table is None and num_oov_buckets <= 0:
            raise ValueError("oov_buckets must be > 0 if no table is supplied.")
        kind = as_dtype(key_dtype or (string if table is None else table.key_dtype))
        _check_word_type(kind)
        if table is not None:
            _check_ids(table, kind)
        super().__init__(kind, int64, name or (table.name if table else "hash_bucket"))
        self._table = table
        self._buckets = num_oov_buckets
        self._spec = _checked(hasher_spec)

    @property
    def initializer(self) -> Node:
        """The node that fills the table."""
        return basic.no_op() if self._table is None else self._table.initializer

    @property
    def init(self) -> Node:
        """The node that fills the table."""
        return self.initializer

    @property
    def resource_handle(self) -> Tensor | None:
        """The handle of the table, or None."""
        return None if self._table is None else self._table.resource_handle

    table_ref = resource_handle

    def size(self, name: str | None = None) -> Tensor:
        """The number of ids, including buckets."""
        with name_scope(name, f"{self.name}_Size") as scope:
            inner = 0 if self._table is None else self._table.size()
            return basic.identity(inner + basic.constant(self._buckets, int64), name=scope)

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The ids of keys; a SparseTensor for sparse keys."""
        if isinstance(keys, SparseTensor):
            found = self.lookup(keys.values, name)
            return SparseTensor(keys.indices, found, keys.dense_shape)
        words = keys if isinstance(keys, Tensor) else convert_to_tensor(keys, self._key_dtype)
        if words.dtype.base_dtype is not self._key_dtype:
            raise TypeError(
                f"Signature mismatch. Keys of table {self.name!r} must be dtype "
                f"{self._key_dtype.name}, got {words.dtype.name}."
            )
        with name_scope(name, f"{self.name}_Lookup", [words]):
            return self._ids(words)

    def _ids(self, words: Tensor) -> Tensor:
        if self._table is None:
            return self._bucket(words)
        inner: DType = self._table.key_dtype
        ids = self._table.lookup(casting.cast(words, inner) if inner.is_integer else words)
        if not self._buckets:
            return ids
        beyond = self._bucket(words) + self._table.size()
        is_known = compare.not_equal(ids, self._table.default_value)
        return choosing.where(is_known, ids, beyond)

    def _bucket(self, words: Tensor) -> Tensor:
        plain = decoding.as_string(words) if words.dtype.is_integer else words
        return _HASHERS[self._spec.hasher](self._spec, plain, self._buckets)


def _is_word(kind: DType) -> bool:
    return kind.is_integer or kind.base_dtype is string


def _check_word_type(kind: DType) -> None:
    if not _is_word(kind):
        raise TypeError(f"Invalid key_dtype, expected integer or string, got {kind.name}.")


def _check_ids(table: Any, kind: DType) -> None:
    if table.key_dtype.is_integer != kind.is_integer:
        raise TypeError(f"Invalid key dtype {kind.name}: the table has {table.key_dtype.name}.")
    if table.key_dtype not in (int64, string):
        raise TypeError(f"Invalid key_dtype {table.key_dtype.name}: int64 or string.")
    if table.value_dtype is not int64:
        raise TypeError(f"Invalid value_dtype, expected int64, got {table.value_dtype.name}.")


@public("lookup.StaticVocabularyTable")
class StaticVocabularyTable(IdTableWithHashBuckets):
    """The ids of an initializer, followed by ids of hash buckets for all other keys."""

    def __init__(
        self,
        initializer: TableInitializerBase | None,
        num_oov_buckets: int,
        lookup_key_dtype: Any = None,
        name: str | None = None,
    ) -> None:
        if num_oov_buckets <= 0:
            raise ValueError("oov_buckets must be > 0: use StaticHashTable without buckets.")
        table = None if initializer is None else HashTable(initializer, -1)
        super().__init__(table, num_oov_buckets, name=name, key_dtype=lookup_key_dtype)


def _with_buckets(
    table: HashTable, buckets: int, spec: Any, kind: Any, name: str | None
) -> HashTable | IdTableWithHashBuckets:
    if not buckets and table.key_dtype is as_dtype(kind):
        return table
    return IdTableWithHashBuckets(table, buckets, spec, name, kind)


def _check_buckets(buckets: int) -> None:
    if buckets < 0:
        raise ValueError(f"num_oov_buckets must be greater or equal than 0, got {buckets}.")


def _table_dtype(kind: Any) -> DType:
    """The dtype in which keys are looked up: int64 for all integers."""
    dtype = as_dtype(kind)
    if not _is_word(dtype):
        raise TypeError(f"Only integer and string keys are supported, not {dtype.name}.")
    return int64 if dtype.is_integer else string


@public("contrib.lookup.index_table_from_file")
def index_table_from_file(
    vocabulary_file: TensorLike | PathLike[str] | None = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: HasherSpec = FastHashSpec,
    key_dtype: Any = string,
    name: str | None = None,
    key_column_index: int = WHOLE_LINE,
    value_column_index: int = LINE_NUMBER,
    delimiter: str = "\t",
) -> Any:
    """A table from the lines of a file to their numbers."""
    filename = _checked_file(vocabulary_file, vocab_size)
    _check_buckets(num_oov_buckets)
    inner = _table_dtype(key_dtype)
    with name_scope(name, "string_to_index") as scope:
        initializer = TextFileIdTableInitializer(
            filename,
            key_column_index,
            value_column_index,
            vocab_size,
            delimiter,
            "table_init",
            inner,
        )
        table = HashTable(initializer, default_value, name="hash_table")
        return _with_buckets(table, num_oov_buckets, hasher_spec, key_dtype, scope.rstrip("/"))


def _checked_file(
    vocabulary_file: TensorLike | PathLike[str] | None, vocab_size: int | None
) -> TensorLike | PathLike[str]:
    if not isinstance(vocabulary_file, Tensor) and not vocabulary_file:
        raise ValueError("vocabulary_file must be specified and must not be empty.")
    if vocab_size is not None and vocab_size < 1:
        raise ValueError(f"vocab_size must be greater than 0, got {vocab_size}.")
    return vocabulary_file


@public("contrib.lookup.index_table_from_tensor")
def index_table_from_tensor(
    mapping: Any = None,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: HasherSpec = FastHashSpec,
    dtype: Any = string,
    name: str | None = None,
    vocabulary_list: Any = None,
) -> Any:
    """A table from the elements of a list or tensor to their positions.

    Args:
        mapping: a vector of strings or integers.
        num_oov_buckets: the number of hash buckets for other words, after the last position.
        default_value: the position of other words if there are no buckets.
        hasher_spec: the hash function.
        dtype: the dtype of the keys.
        name: the name of the nodes.
        vocabulary_list: another name of `mapping`.

    Returns:
        A table; run `tf.tables_initializer()` before its `lookup`.

    Example:
        >>> table = tf.contrib.lookup.index_table_from_tensor(["a", "b"], default_value=-1)
        >>> sess.run(tf.tables_initializer())
        >>> sess.run(table.lookup(tf.constant(["b", "x"])))
        array([ 1, -1])
    """
    words = _listed(mapping if vocabulary_list is None else vocabulary_list, "mapping")
    _check_buckets(num_oov_buckets)
    kind, inner = as_dtype(dtype), _table_dtype(dtype)
    with name_scope(name, "string_to_index") as scope:
        keys = words if isinstance(words, Tensor) else convert_to_tensor(words)
        if not _is_word(keys.dtype) or keys.dtype.is_integer != kind.is_integer:
            raise ValueError(f"Expected {kind.name}, got {keys.dtype.name}.")
        if inner is int64:
            keys = casting.cast(keys, int64)
        initializer = KeyValueTensorInitializer(keys, _positions(keys), name="table_init")
        table = HashTable(initializer, default_value, name="hash_table")
        return _with_buckets(table, num_oov_buckets, hasher_spec, kind, scope.rstrip("/"))


def _listed(words: Any, what: str) -> Any:
    if words is None:
        raise ValueError(f"{what} must be specified.")
    return words


def _positions(words: Tensor) -> Tensor:
    return casting.cast(filling.range(shaping.size(words)), int64)


@public("contrib.lookup.index_to_string_table_from_file")
def index_to_string_table_from_file(
    vocabulary_file: TensorLike | PathLike[str],
    vocab_size: int | None = None,
    default_value: Any = "UNK",
    name: str | None = None,
    key_column_index: int = LINE_NUMBER,
    value_column_index: int = WHOLE_LINE,
    delimiter: str = "\t",
) -> HashTable:
    """A table from the numbers of a file's lines to the lines."""
    filename = _checked_file(vocabulary_file, vocab_size)
    with name_scope(name, "index_to_string"):
        initializer = TextFileStringTableInitializer(
            filename, key_column_index, value_column_index, vocab_size, delimiter
        )
        return HashTable(initializer, default_value)


@public("contrib.lookup.index_to_string_table_from_tensor")
def index_to_string_table_from_tensor(
    mapping: Any = None,
    default_value: Any = "UNK",
    name: str | None = None,
    vocabulary_list: Any = None,
) -> HashTable:
    """A table from positions in a list or tensor of strings to its elements.

    Args:
        mapping, vocabulary_list: the strings, by the old or new name.
        default_value: the value of other positions.
        name: the name of the table.

    Returns:
        A table with `lookup`.

    Example:
        >>> table = tf.contrib.lookup.index_to_string_table_from_tensor(["a", "b"])
        >>> sess.run(tf.tables_initializer())
        >>> sess.run(table.lookup(tf.constant([0, 5], tf.int64)))
        array([b'a', b'UNK'], dtype=object)
    """
    words = _listed(mapping if vocabulary_list is None else vocabulary_list, "mapping")
    with name_scope(name, "index_to_string"):
        values = convert_to_tensor(words, string)
        initializer = KeyValueTensorInitializer(_positions(values), values, name="table_init")
        return HashTable(initializer, default_value, name="hash_table")


# Older names of these functions


@public("contrib.lookup.string_to_index_table_from_file")
def string_to_index_table_from_file(
    vocabulary_file: TensorLike | PathLike[str] | None = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: HasherSpec = FastHashSpec,
    name: str | None = None,
) -> Any:
    """A table from the lines of a file to their numbers.

    Args:
        vocabulary_file: the path of a file with a word on each line.
        num_oov_buckets: the number of hash buckets for words that are not in it.
        vocab_size: how many lines are read; all if None.
        default_value: the number of other words if there are no buckets.
        hasher_spec: the hash function.
        name: the name of the table.

    Returns:
        A table with `lookup`.

    Example:
        >>> with open("words.txt", "w") as file:
        ...     written = file.write("a\\nb\\n")
        >>> table = tf.contrib.lookup.string_to_index_table_from_file("words.txt")
        >>> sess.run(tf.tables_initializer())
        >>> sess.run(table.lookup(tf.constant(["b", "z"])))
        array([ 1, -1])
    """
    sizes = num_oov_buckets, vocab_size, default_value, hasher_spec
    return index_table_from_file(vocabulary_file, *sizes, name=name)


@public("contrib.lookup.string_to_index_table_from_tensor")
def string_to_index_table_from_tensor(
    mapping: Any,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: HasherSpec = FastHashSpec,
    name: str | None = None,
) -> Any:
    """A table from the elements of a list of strings to their positions.

    Args:
        mapping: the strings.
        num_oov_buckets: the number of hash buckets for other strings.
        default_value: the number of other strings if there are no buckets.
        hasher_spec: the hash function.
        name: the name of the table.

    Returns:
        A table with `lookup`.

    Example:
        >>> table = tf.contrib.lookup.string_to_index_table_from_tensor(["a", "b"])
        >>> sess.run(tf.tables_initializer())
        >>> sess.run(table.lookup(tf.constant(["b", "z"])))
        array([ 1, -1])
    """
    return index_table_from_tensor(mapping, num_oov_buckets, default_value, hasher_spec, name=name)


@public("contrib.lookup.string_to_index")
def string_to_index(
    tensor: TensorLike, mapping: Any, default_value: int = -1, name: str | None = None
) -> Tensor:
    """The positions of strings in a list."""
    return index_table_from_tensor(mapping, 0, default_value, name=name).lookup(tensor)


@public("contrib.lookup.index_to_string")
def index_to_string(
    tensor: TensorLike, mapping: Any, default_value: Any = "UNK", name: str | None = None
) -> Tensor:
    """The strings at positions of a list.

    Args:
        tensor: int64 positions.
        mapping: the strings.
        default_value: the value of other positions.
        name: the name of the nodes.

    Returns:
        A string tensor.

    Example:
        >>> words = tf.contrib.lookup.index_to_string(tf.constant([1, 5], tf.int64), ["a", "b"])
        >>> sess.run(tf.tables_initializer())
        >>> sess.run(words)
        array([b'b', b'UNK'], dtype=object)
    """
    return index_to_string_table_from_tensor(mapping, default_value, name).lookup(tensor)
