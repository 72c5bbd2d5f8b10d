"""Datasets of tables: rows of CSV files, and batches of features of Examples.

The names and dtypes of columns are given, or inferred from the files when the dataset is made.
"""

from __future__ import annotations

import csv
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import numpy as np

from thalweg.data.dataset import Dataset
from thalweg.data.file_datasets import TextLineDataset, TFRecordDataset
from thalweg.data.transformations.experimental import ignore_errors as errors_ignored
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype, float32, float64, int32, int64, string
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.ops.core import shaping
from thalweg.ops.examples.parsing import parse_example
from thalweg.ops.text import decoding
from thalweg.platform.files import gfile
from thalweg.platform.files.records import opened
from thalweg.public import public

_BLOCK = 1 << 20
_KINDS = (int32, int64, float32, float64, string)  # of columns, the narrowest first


@public("data.experimental.CsvDataset", "contrib.data.CsvDataset")
class CsvDataset(Dataset):
    """The rows of CSV files: a tuple with one scalar per column.

    Args:
        filenames: the paths of the files.
        record_defaults: for each column a dtype, or a tensor with the value of empty fields.
        compression_type: "", "ZLIB" or "GZIP".
        buffer_size: how many bytes are read at a time; chosen automatically if None.
        header: whether the first line of each file is skipped.
        field_delim: the separator of fields.
        use_quote_delim: whether quotes may enclose a field.
        na_value: the text of a missing value.
        select_cols: the indices of the selected columns; all if None.

    Example:
        >>> with open("rows.csv", "w") as file:
        ...     written = file.write("1,a\\n2,b\\n")
        >>> rows = tf.data.experimental.CsvDataset("rows.csv", [tf.int32, tf.string])
        >>> sess.run(rows.make_one_shot_iterator().get_next())
        (np.int32(1), b'a')
    """

    def __init__(
        self,
        filenames: TensorLike,
        record_defaults: Sequence[Any],
        compression_type: Any = None,
        buffer_size: Any = None,
        header: bool = False,
        field_delim: str = ",",
        use_quote_delim: bool = True,
        na_value: str = "",
        select_cols: Sequence[int] | None = None,
    ) -> None:
        defaults = [_default(record_default) for record_default in record_defaults]

        def lines(name: Any) -> Dataset:
            result = TextLineDataset(name, compression_type, buffer_size)
            return result.skip(1) if header else result

        def fields(line: Tensor) -> tuple[Tensor, ...]:
            result = decoding.decode_csv(
                line,
                defaults,
                field_delim,
                use_quote_delim,
                na_value=na_value,
                select_cols=select_cols,
            )
            return tuple(result)

        names = filenames if isinstance(filenames, Dataset) else _each(filenames)
        made = names.flat_map(lines).map(fields)
        super().__init__(made.variant, made.element_spec)


def _default(value: Any) -> Any:
    """A column's default; for a dtype an empty vector: each row must have a value."""
    if isinstance(value, DType | type):
        return np.empty(0, as_dtype(value).as_numpy_dtype)
    return value


def _each(filenames: Any) -> Dataset:
    return Dataset.from_tensor_slices(shaping.reshape(convert_to_tensor(filenames, string), [-1]))


@public("data.experimental.make_csv_dataset", "contrib.data.make_csv_dataset")
def make_csv_dataset(
    file_pattern: str | Sequence[str],
    batch_size: TensorLike,
    column_names: Sequence[str] | None = None,
    column_defaults: Sequence[Any] | None = None,
    label_name: str | None = None,
    select_columns: Sequence[Any] | None = None,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    header: bool = True,
    num_epochs: TensorLike | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: TensorLike = 10000,
    shuffle_seed: TensorLike | None = None,
    prefetch_buffer_size: TensorLike | None = None,
    num_parallel_reads: TensorLike | None = None,
    sloppy: bool = False,
    num_rows_for_inference: int | None = 100,
    compression_type: Any = None,
    ignore_errors: bool = False,
) -> Dataset:
    """Batches of rows of CSV files: a mapping by column name, or (mapping, label).

    Args:
        file_pattern: paths of files, or patterns.
        batch_size: how many rows make a batch.
        column_names: the names of the columns; read from the first line if None.
        column_defaults: for each column a dtype, or the value of empty fields; inferred if None.
        label_name: the column that becomes the label.
        select_columns: the names or indices of the selected columns.
        field_delim: the separator of fields.
        use_quote_delim: whether quotes may enclose a field.
        na_value: the text of a missing value.
        header: whether the files begin with column names.
        num_epochs: how often the rows are repeated; indefinitely if None.
        shuffle: whether rows are shuffled.
        shuffle_buffer_size: the size of the shuffle buffer, in rows.
        shuffle_seed: the seed of the shuffle.
        prefetch_buffer_size: how many batches are prefetched.
        num_parallel_reads: how many files are read in parallel.
        sloppy: taken for old programs.
        num_rows_for_inference: how many rows are read to infer dtypes; all if None.
        compression_type: "", "ZLIB" or "GZIP".
        ignore_errors: whether rows that cannot be parsed are skipped.

    Returns:
        A dataset.

    Example:
        >>> with open("rows.csv", "w") as file:
        ...     written = file.write("size,kind\\n1,a\\n2,b\\n")
        >>> read = tf.data.experimental.make_csv_dataset
        >>> rows = read("rows.csv", 2, label_name="kind", shuffle=False)
        >>> features, labels = rows.make_one_shot_iterator().get_next()
        >>> sess.run([features["size"], labels])
        [array([1, 2], dtype=int32), array([b'a', b'b'], dtype=object)]
    """
    files = _files(file_pattern)
    table = _Table(files, field_delim, header, na_value, compression_type)
    names = list(column_names) if column_names is not None else table.header()
    if len(set(names)) != len(names):
        raise ValueError("Cannot have duplicate column names.")
    chosen = _chosen(names, select_columns)
    kept = [names[place] for place in chosen]
    if label_name is not None and label_name not in kept:
        raise ValueError(f"`label_name` provided must be one of the columns: {kept}")
    defaults = column_defaults
    if defaults is None:
        defaults = table.defaults(chosen, num_rows_for_inference)
    elif len(defaults) == len(names) and len(chosen) < len(names):
        defaults = [defaults[place] for place in chosen]

    def read(name: Tensor) -> Dataset:
        places = chosen if len(chosen) < len(names) else None
        style = (field_delim, use_quote_delim, na_value, places)
        return CsvDataset(name, defaults, compression_type, None, header, *style)

    def features(*columns: Tensor) -> Any:
        found = OrderedDict(zip(kept, columns, strict=True))
        return found if label_name is None else (found, found.pop(label_name))

    rows = _read(_each(files), read, shuffle, shuffle_seed, len(files), num_parallel_reads)
    if ignore_errors:
        rows = rows.apply(errors_ignored())
    rows = _shuffled(rows.map(features), shuffle, shuffle_buffer_size, shuffle_seed, num_epochs)
    # An infinite dataset has no remainder, so the batch size is static.
    batches = rows.batch(batch_size, drop_remainder=num_epochs is None)
    return batches.prefetch(1 if prefetch_buffer_size is None else prefetch_buffer_size)


def _read(
    files: Dataset,
    read: Callable[[Tensor], Dataset],
    shuffle: bool,
    seed: Any,
    count: int,
    parallel: Any,
) -> Dataset:
    """The rows of files, interleaved if several are read in parallel."""
    names = files.shuffle(count, seed) if shuffle else files
    if parallel is None or parallel == 1:
        return names.flat_map(read)
    return names.interleave(read, cycle_length=parallel, num_parallel_calls=parallel)


def _shuffled(rows: Dataset, shuffle: bool, size: Any, seed: Any, epochs: Any) -> Dataset:
    rows = rows.shuffle(size, seed) if shuffle else rows
    return rows.repeat(epochs) if epochs != 1 else rows


def _files(pattern: Any) -> list[str]:
    patterns: Any = [pattern] if isinstance(pattern, str | bytes) else pattern
    result: list[str] = []
    for each in patterns:
        matching = sorted(gfile.Glob(each))
        if not matching:
            raise ValueError(f"No files match {each}.")
        result += matching
    return result


def _chosen(names: Sequence[str], selected: Sequence[Any] | None) -> list[int]:
    """The indices of the selected columns, which are given by name or index."""
    if selected is None:
        return list(range(len(names)))
    places = [each if isinstance(each, int) else _place(names, each) for each in selected]
    if len(set(places)) != len(places):
        raise ValueError("select_columns has a column more than once.")
    if any(not 0 <= place < len(names) for place in places):
        raise ValueError(f"select_columns has a column that is not there: {list(selected)}")
    return sorted(places)


def _place(names: Sequence[str], name: str) -> int:
    if name not in names:
        raise ValueError(f"Value of select_columns, {name!r}, is no column: {list(names)}")
    return list(names).index(name)


class _Table:
    """The columns of some CSV files."""

    def __init__(
        self, files: Sequence[str], delimiter: str, has_header: bool, na_value: str, packed: Any
    ) -> None:
        self._files = files
        self._delimiter = delimiter
        self._has_header = has_header
        self._missing = {"", na_value}
        self._packed = packed or ""

    def _rows(self, name: str) -> Iterator[list[str]]:
        source = opened(name, self._packed)
        text = b"".join(iter(lambda: source.read(_BLOCK), b"")).decode()
        source.close()
        yield from csv.reader(text.splitlines(), delimiter=self._delimiter)

    def header(self) -> list[str]:
        """The names of the columns, which must be equal in all files."""
        if not self._has_header:
            raise ValueError("Cannot infer column names without a header line.")
        headers = [row for name in self._files for row in islice(self._rows(name), 1)]
        if not headers or any(row != headers[0] for row in headers):
            raise ValueError("All input CSV files should have the same column names in the header.")
        return headers[0]

    def defaults(self, chosen: Sequence[int], most: int | None) -> list[Any]:
        """A default per column, of the narrowest dtype that holds all its values."""
        kinds = [0] * len(chosen)
        for row in islice(self._all_rows(), most):
            for column, place in enumerate(chosen):
                while not self._fits(row[place], _KINDS[kinds[column]]):
                    kinds[column] += 1
        return [np.zeros(1, _KINDS[k].as_numpy_dtype) if k < 4 else [""] for k in kinds]

    def _all_rows(self) -> Iterator[list[str]]:
        for name in self._files:
            yield from islice(self._rows(name), int(self._has_header), None)

    def _fits(self, value: str, kind: DType) -> bool:
        if value in self._missing or kind is string:
            return True
        try:
            number = float(value) if kind.is_floating else int(value)
        except ValueError:
            return False
        return kind is float64 or abs(number) <= kind.max


@public(
    "data.experimental.make_batched_features_dataset",
    "contrib.data.make_batched_features_dataset",
    "contrib.data.read_batch_features",
)
def make_batched_features_dataset(
    file_pattern: str | Sequence[str],
    batch_size: TensorLike,
    features: Mapping[str, Any],
    reader: Callable[..., Dataset] = TFRecordDataset,
    label_key: str | None = None,
    reader_args: Sequence[Any] | None = None,
    num_epochs: TensorLike | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: TensorLike = 10000,
    shuffle_seed: TensorLike | None = None,
    prefetch_buffer_size: TensorLike | None = None,
    reader_num_threads: TensorLike | None = None,
    parser_num_threads: TensorLike | None = None,
    sloppy_ordering: bool = False,
    drop_final_batch: bool = False,
) -> Dataset:
    """Batches of features of Examples in files: a mapping, or (mapping, label).

    Args:
        file_pattern: paths of files, or patterns.
        batch_size: how many Examples make a batch.
        features: the features to parse, by name, as for `tf.parse_example`.
        reader: the class of the dataset that reads the files.
        label_key: the feature that becomes the label.
        reader_args: further arguments of the reader.
        num_epochs: how often the Examples are repeated; indefinitely if None.
        shuffle: whether they are shuffled.
        shuffle_buffer_size: the size of the shuffle buffer, in Examples.
        shuffle_seed: the seed of the shuffle.
        prefetch_buffer_size: how many batches are prefetched.
        reader_num_threads: how many files are read in parallel.
        parser_num_threads: how many batches are parsed in parallel.
        sloppy_ordering: taken for old programs.
        drop_final_batch: whether a smaller last batch is dropped.

    Returns:
        A dataset.

    Example:
        >>> age = tf.train.Feature(int64_list=tf.train.Int64List(value=[7]))
        >>> example = tf.train.Example(features=tf.train.Features(feature={"age": age}))
        >>> with tf.python_io.TFRecordWriter("examples") as writer:
        ...     writer.write(example.SerializeToString())
        >>> batches = tf.data.experimental.make_batched_features_dataset(
        ...     "examples", 2, {"age": tf.FixedLenFeature([], tf.int64)}
        ... )
        >>> sess.run(batches.make_one_shot_iterator().get_next()["age"])
        array([7, 7])
    """
    files = _files(file_pattern)

    def parsed(serialized: Tensor) -> Any:
        found = dict(cast("Any", parse_example(serialized, features)))
        return found if label_key is None else (found, found.pop(label_key))

    if label_key is not None and label_key not in features:
        raise ValueError(f"The `label_key` provided ({label_key!r}) must be one of the features.")
    records = _read(
        _each(files),
        lambda name: reader(name, *(reader_args or ())),
        shuffle,
        shuffle_seed,
        len(files),
        reader_num_threads,
    )
    records = _shuffled(records, shuffle, shuffle_buffer_size, shuffle_seed, num_epochs)
    batches = records.batch(batch_size, drop_remainder=drop_final_batch or num_epochs is None)
    made = batches.map(parsed, num_parallel_calls=parser_num_threads)
    return made.prefetch(1 if prefetch_buffer_size is None else prefetch_buffer_size)
