"""Datasets of files: `tf.data.TextLineDataset`, `TFRecordDataset`, `FixedLengthRecordDataset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from thalweg.data import arguments
from thalweg.data.dataset import Dataset
from thalweg.data.files import FixedLengthRecordDatasetV2
from thalweg.data.files import TextLineDataset as TextLineOp
from thalweg.data.files import TFRecordDataset as TFRecordOp
from thalweg.data.iterator import leaves
from thalweg.functions.traced.tensor_spec import TensorSpec
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import string
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.ops.core import shaping
from thalweg.public import public


def _opened(op: Any, filenames: Any, *rest: Any) -> Any:
    spec = TensorSpec([], string)
    made = op(**leaves(spec))
    return made(shaping.reshape(filenames, [-1]), *rest, name=made.type_name), spec


def _of_files(
    filenames: Any, parallel: Any, opened: Callable[[Any], tuple[Tensor, Any]]
) -> tuple[Tensor, Any]:
    """Records of files: of one after the other, or interleaved if several are read in parallel."""
    if not isinstance(filenames, Dataset) and parallel is None:
        return opened(convert_to_tensor(filenames, string))
    if isinstance(filenames, Dataset):
        names = filenames
    else:
        flat = shaping.reshape(convert_to_tensor(filenames, string), [-1])
        names = Dataset.from_tensor_slices(flat)

    def read(name: Tensor) -> Dataset:
        return Dataset(*opened(name))

    made = names.flat_map(read) if parallel is None else _interleaved(names, read, parallel)
    return made.variant, made.element_spec


def _interleaved(names: Dataset, read: Callable[[Tensor], Dataset], parallel: Any) -> Dataset:
    return names.interleave(read, cycle_length=parallel, num_parallel_calls=parallel)


def _text(value: Any) -> Tensor:
    return convert_to_tensor("" if value is None else value, string)


class _Files(Dataset):
    """The base of datasets of files that may be compressed."""

    _op: ClassVar[type[Op]]

    def __init__(
        self,
        filenames: TensorLike | Dataset,
        compression_type: Any = None,
        buffer_size: Any = None,
        num_parallel_reads: TensorLike | None = None,
    ) -> None:
        rest = (_text(compression_type), arguments.as_int64(buffer_size or 0))
        made = _of_files(filenames, num_parallel_reads, lambda n: _opened(self._op, n, *rest))
        super().__init__(*made)


@public("data.TextLineDataset", "contrib.data.TextLineDataset")
class TextLineDataset(_Files):
    r"""The lines of text files, each a string without its line end.

    Args:
        filenames: a name, a vector of names, or a dataset of them.
        compression_type: "", "ZLIB" or "GZIP".
        buffer_size: how many bytes are read at once.
        num_parallel_reads: how many files are read in parallel.

    Example:
        >>> tf.gfile.GFile("lines.txt", "w").write("one\ntwo\n")
        >>> line = tf.data.TextLineDataset("lines.txt").skip(1).make_one_shot_iterator().get_next()
        >>> sess.run(line)
        b'two'
    """

    _op = TextLineOp


@public("data.TFRecordDataset", "contrib.data.TFRecordDataset")
class TFRecordDataset(_Files):
    """The records of TFRecord files, each a string.

    Args:
        filenames: a name, a vector of names, or a dataset of them.
        compression_type: "", "ZLIB" or "GZIP".
        buffer_size: how many bytes are read at once.
        num_parallel_reads: how many files are read in parallel.

    Example:
        >>> with tf.python_io.TFRecordWriter("data.tfrecord") as writer:
        ...     writer.write(b"one")
        >>> data = tf.data.TFRecordDataset("data.tfrecord")
        >>> sess.run(data.make_one_shot_iterator().get_next())
        b'one'
    """

    _op = TFRecordOp


@public("data.FixedLengthRecordDataset", "contrib.data.FixedLengthRecordDataset")
class FixedLengthRecordDataset(Dataset):
    """The records of files with records of a fixed length, each a string.

    Args:
        filenames: a name, a vector of names, or a dataset of them.
        record_bytes: the length of a record.
        header_bytes, footer_bytes: how many bytes to skip at the start and the end of a file.
        buffer_size: how many bytes are read at once.
        compression_type: "", "ZLIB" or "GZIP".
        num_parallel_reads: how many files are read in parallel.

    Example:
        >>> tf.gfile.GFile("data.bin", "wb").write(b"aabb")
        >>> data = tf.data.FixedLengthRecordDataset("data.bin", 2).batch(2)
        >>> sess.run(data.make_one_shot_iterator().get_next()).tolist()
        [b'aa', b'bb']
    """

    def __init__(
        self,
        filenames: TensorLike | Dataset,
        record_bytes: TensorLike,
        header_bytes: TensorLike | None = None,
        footer_bytes: TensorLike | None = None,
        buffer_size: TensorLike | None = None,
        compression_type: Any = None,
        num_parallel_reads: TensorLike | None = None,
    ) -> None:
        sizes = (header_bytes or 0, record_bytes, footer_bytes or 0, buffer_size or 0)
        rest = (*map(arguments.as_int64, sizes), _text(compression_type))
        made = _of_files(
            filenames, num_parallel_reads, lambda n: _opened(FixedLengthRecordDatasetV2, n, *rest)
        )
        super().__init__(*made)
