"""Readers: ops that read the records of files whose names come from a queue.

A reader is created once and read by any number of steps: `key, value = reader.read(queue)`. The ops
named V2 do the same with resource handles, for imported graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg import errors
from thalweg.graph.analysis.effects import Resource, reads, writes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import int64
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar, vector
from thalweg.ops.core.context import Context
from thalweg.ops.io import reader_state
from thalweg.ops.io.reader_state import Reader
from thalweg.ops.state.queue_state import Queue
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.platform.described import described
from thalweg.platform.files.records import TFRecordOptions
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.ops.state.queues import QueueBase


# Handles


class ReaderHandle(Op, abstract=True):
    """A reference to one of the session's readers."""

    signature = "-> reader_handle: &string"
    stateful = True
    not_differentiable = True
    host_only = True
    container: str = ""
    shared_name: str = ""

    def shape(self) -> TensorShape:
        return vector(2)

    def make(self, name: str) -> Reader:
        """A new reader of this kind."""
        raise TypeError(f"{type(self).__name__} must define make")

    def kernel(self, context: Context) -> Reader:
        name = self.shared_name or context.node.name
        result: Any = context.resource(name, self.container, lambda: self.make(name))
        wanted = self.type_name.removesuffix("V2")
        if not isinstance(result, Reader) or result.kind != wanted:
            raise errors.invalid(f"'{name}' is a {type(result).__name__}, not a {wanted}")
        return result


class IdentityReaderOp(ReaderHandle, name="IdentityReader"):
    """A reference to a reader whose records are the work units themselves."""

    def make(self, name: str) -> Reader:
        return reader_state.IdentityReader(name)


class WholeFileReaderOp(ReaderHandle, name="WholeFileReader"):
    """A reference to a reader whose records are whole files."""

    def make(self, name: str) -> Reader:
        return reader_state.WholeFileReader(name)


class TextLineReaderOp(ReaderHandle, name="TextLineReader"):
    """A reference to a reader whose records are lines."""

    skip_header_lines: int = 0

    def make(self, name: str) -> Reader:
        return reader_state.TextLineReader(name, self.skip_header_lines)


class FixedLengthRecordReaderOp(ReaderHandle, name="FixedLengthRecordReader"):
    """A reference to a reader of records of a fixed length."""

    record_bytes: int
    header_bytes: int = 0
    footer_bytes: int = 0
    hop_bytes: int = 0
    encoding: str = ""

    def shape(self) -> TensorShape:
        self._check()
        return vector(2)

    def _check(self) -> None:
        if self.record_bytes <= 0:
            raise ValueError(f"record_bytes must be > 0, got {self.record_bytes}")
        for name in ("header_bytes", "footer_bytes", "hop_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.encoding not in ("", "ZLIB", "GZIP"):
            raise ValueError(f"encoding must be '', 'ZLIB' or 'GZIP', got {self.encoding!r}")

    def make(self, name: str) -> Reader:
        return reader_state.FixedLengthRecordReader(
            name,
            self.record_bytes,
            self.header_bytes,
            self.footer_bytes,
            self.hop_bytes,
            self.encoding,
        )


class TFRecordReaderOp(ReaderHandle, name="TFRecordReader"):
    """A reference to a reader of TFRecord files."""

    compression_type: str = ""

    def make(self, name: str) -> Reader:
        return reader_state.TFRecordReader(name, self.compression_type)


class IdentityReaderV2(IdentityReaderOp):
    """As IdentityReader, by a resource handle."""

    signature = "-> reader_handle: resource"

    def shape(self) -> TensorShape:
        return scalar()


class WholeFileReaderV2(WholeFileReaderOp):
    """As WholeFileReader, by a resource handle."""

    signature = "-> reader_handle: resource"

    def shape(self) -> TensorShape:
        return scalar()


class TextLineReaderV2(TextLineReaderOp):
    """As TextLineReader, by a resource handle."""

    signature = "-> reader_handle: resource"

    def shape(self) -> TensorShape:
        return scalar()


class FixedLengthRecordReaderV2(FixedLengthRecordReaderOp):
    """As FixedLengthRecordReader, by a resource handle."""

    signature = "-> reader_handle: resource"

    def shape(self) -> TensorShape:
        self._check()
        return scalar()


class TFRecordReaderV2(TFRecordReaderOp):
    """As TFRecordReader, by a resource handle."""

    signature = "-> reader_handle: resource"

    def shape(self) -> TensorShape:
        return scalar()


# Operations


class ReaderOp(Op, abstract=True):
    """An op on a reader."""

    stateful = True
    not_differentiable = True
    host_only = True


class ReaderRead(ReaderOp):
    """The next record"""

    signature = "reader_handle: &string, queue_handle: &string -> key: string, value: string"
    effects = (writes("reader_handle"), writes("queue_handle"), reads(Resource.FILES))
    blocking = True

    def shape(self, *_: Tensor) -> list[TensorShape]:
        return [scalar(), scalar()]

    def kernel(self, context: Context, reader: Reader, queue: Queue) -> tuple[Array, Array]:
        ((key, value),) = reader.read(queue, context.cancellation)
        return text.text_array(key), text.text_array(value)


class ReaderReadUpTo(ReaderOp):
    """Several next records, fewer at the end of a work unit"""

    signature = (
        "reader_handle: &string, queue_handle: &string, num_records: int64 "
        "-> keys: string, values: string"
    )
    effects = (writes("reader_handle"), writes("queue_handle"), reads(Resource.FILES))
    blocking = True

    def shape(self, reader: Tensor, queue: Tensor, num_records: Tensor) -> list[TensorShape]:
        num_records.shape.assert_has_rank(0)
        return [vector(None), vector(None)]

    def kernel(
        self, context: Context, reader: Reader, queue: Queue, num_records: Array
    ) -> tuple[Array, Array]:
        most = int(num_records)
        if most <= 0:
            raise errors.invalid(f"num_records must be positive, got {most}")
        found = reader.read(queue, context.cancellation, most)
        return text.text_of(key for key, _ in found), text.text_of(value for _, value in found)


class ReaderNumRecordsProduced(ReaderOp):
    """The number of records that a reader has produced"""

    signature = "reader_handle: &string -> records_produced: int64"
    effects = (reads("reader_handle"),)

    def shape(self, reader: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, reader: Reader) -> Any:
        return np.int64(reader.state.records_produced)


class ReaderNumWorkUnitsCompleted(ReaderOp):
    """The number of work units that a reader has finished"""

    signature = "reader_handle: &string -> units_completed: int64"
    effects = (reads("reader_handle"),)

    def shape(self, reader: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, reader: Reader) -> Any:
        return np.int64(reader.state.work_finished)


class ReaderSerializeState(ReaderOp):
    """The state of a reader, serialized"""

    signature = "reader_handle: &string -> state: string"
    effects = (reads("reader_handle"),)

    def shape(self, reader: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, reader: Reader) -> Array:
        return text.text_array(reader.state.to_bytes())


class ReaderRestoreState(ReaderOp):
    """Restores the state of a reader."""

    signature = "reader_handle: &string, state: string ->"

    def shape(self, reader: Tensor, state: Tensor) -> list[TensorShape]:
        state.shape.assert_has_rank(0)
        return []

    def kernel(self, context: Context, reader: Reader, state: Array) -> tuple[()]:
        reader.restore(text.text_item(state))
        return ()


class ReaderReset(ReaderOp):
    """Drops a reader's current work unit and resets its counts."""

    signature = "reader_handle: &string ->"

    def shape(self, reader: Tensor) -> list[TensorShape]:
        return []

    def kernel(self, context: Context, reader: Reader) -> tuple[()]:
        reader.reset()
        return ()


class ReaderReadV2(ReaderRead):
    """As ReaderRead, by resource handles."""

    signature = "reader_handle: resource, queue_handle: resource -> key: string, value: string"


class ReaderReadUpToV2(ReaderReadUpTo):
    """As ReaderReadUpTo, by resource handles."""

    signature = (
        "reader_handle: resource, queue_handle: resource, num_records: int64 "
        "-> keys: string, values: string"
    )


class ReaderNumRecordsProducedV2(ReaderNumRecordsProduced):
    """As ReaderNumRecordsProduced, by a resource handle."""

    signature = "reader_handle: resource -> records_produced: int64"


class ReaderNumWorkUnitsCompletedV2(ReaderNumWorkUnitsCompleted):
    """As ReaderNumWorkUnitsCompleted, by a resource handle."""

    signature = "reader_handle: resource -> units_completed: int64"


class ReaderSerializeStateV2(ReaderSerializeState):
    """As ReaderSerializeState, by a resource handle."""

    signature = "reader_handle: resource -> state: string"


class ReaderRestoreStateV2(ReaderRestoreState):
    """As ReaderRestoreState, by a resource handle."""

    signature = "reader_handle: resource, state: string ->"


class ReaderResetV2(ReaderReset):
    """As ReaderReset, by a resource handle."""

    signature = "reader_handle: resource ->"


# The public classes


def _queue_reference(queue: Any) -> Tensor:
    reference = queue if isinstance(queue, Tensor) else getattr(queue, "queue_ref", None)
    if reference is None:
        raise TypeError(f"A reader reads from a queue of file names, not from {queue!r}")
    return reference


@public("ReaderBase")
class ReaderBase:
    """Reads records of work units that it takes from a queue of strings."""

    def __init__(self, reader_ref: Tensor, supports_serialize: bool = False) -> None:
        self._reader_ref = reader_ref
        self._supports_serialize = supports_serialize

    def __repr__(self) -> str:
        return described(self, self._reader_ref.op.name)

    @property
    def reader_ref(self) -> Tensor:
        """The reference to the reader."""
        return self._reader_ref

    @property
    def supports_serialize(self) -> bool:
        """Whether the state of the reader can be saved."""
        return self._supports_serialize

    def read(self, queue: QueueBase | Tensor, name: str | None = None) -> Any:
        """(key, value) of the next record; waits for a work unit if there is no current one."""
        return ReaderRead()(self._reader_ref, _queue_reference(queue), name=name)

    def read_up_to(
        self, queue: QueueBase | Tensor, num_records: Any, name: str | None = None
    ) -> Any:
        """(keys, values) of up to `num_records` records; fewer at the end of a work unit."""
        count = convert_to_tensor(num_records, int64)
        return ReaderReadUpTo()(self._reader_ref, _queue_reference(queue), count, name=name)

    def num_records_produced(self, name: str | None = None) -> Tensor:
        """The number of records produced so far."""
        return ReaderNumRecordsProduced()(self._reader_ref, name=name)

    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """The number of finished work units."""
        return ReaderNumWorkUnitsCompleted()(self._reader_ref, name=name)

    def serialize_state(self, name: str | None = None) -> Tensor:
        """The state of the reader, serialized."""
        return ReaderSerializeState()(self._reader_ref, name=name)

    def restore_state(self, state: Any, name: str | None = None) -> Node:
        """Restore a state from `serialize_state`."""
        return ReaderRestoreState()(self._reader_ref, state, name=name)

    def reset(self, name: str | None = None) -> Node:
        """Drop the current work unit and reset the counts."""
        return ReaderReset()(self._reader_ref, name=name)


def _container() -> str:
    return get_default_graph().container_name


@public("WholeFileReader")
class WholeFileReader(ReaderBase):
    """Reads the name and the contents of files, one per `read`, from a queue of file names.

    Args:
        name: the name of the node.

    Example:
        >>> tf.gfile.GFile("a.txt", "w").write("hello")
        >>> queue = tf.FIFOQueue(1, tf.string)
        >>> key, contents = tf.WholeFileReader().read(queue)
        >>> sess.run(queue.enqueue("a.txt"))
        >>> sess.run([key, contents])
        [b'a.txt', b'hello']
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(WholeFileReaderOp(container=_container())(name=name), True)


@public("TextLineReader")
class TextLineReader(ReaderBase):
    r"""Reads the lines of files, one per `read`, from a queue of file names.

    Args:
        skip_header_lines: how many lines at the start of each file are skipped.
        name: the name of the node.

    Example:
        >>> tf.gfile.GFile("a.txt", "w").write("one\ntwo\n")
        >>> queue = tf.FIFOQueue(1, tf.string)
        >>> key, line = tf.TextLineReader(skip_header_lines=1).read(queue)
        >>> sess.run(queue.enqueue("a.txt"))
        >>> sess.run([key, line])
        [b'a.txt:2', b'two']
    """

    def __init__(self, skip_header_lines: int | None = None, name: str | None = None) -> None:
        op = TextLineReaderOp(skip_header_lines=skip_header_lines or 0, container=_container())
        super().__init__(op(name=name), True)


@public("FixedLengthRecordReader")
class FixedLengthRecordReader(ReaderBase):
    """Reads the records of files with records of a fixed length, from a queue of file names.

    Args:
        record_bytes: the length of a record.
        header_bytes, footer_bytes: how many bytes to skip at the start and the end of a file.
        hop_bytes: the distance between records; `record_bytes` if None or 0.
        name: the name of the node.
        encoding: "", "ZLIB" or "GZIP".

    Example:
        >>> tf.gfile.GFile("data.bin", "wb").write(b"aabb")
        >>> queue = tf.FIFOQueue(1, tf.string)
        >>> key, record = tf.FixedLengthRecordReader(2).read(queue)
        >>> sess.run(queue.enqueue("data.bin"))
        >>> sess.run(record), sess.run(record)
        (b'aa', b'bb')
    """

    def __init__(
        self,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        hop_bytes: int | None = None,
        name: str | None = None,
        encoding: str | None = None,
    ) -> None:
        op = FixedLengthRecordReaderOp(
            record_bytes=record_bytes,
            header_bytes=header_bytes or 0,
            footer_bytes=footer_bytes or 0,
            hop_bytes=hop_bytes or 0,
            encoding=encoding or "",
            container=_container(),
        )
        super().__init__(op(name=name), True)


@public("TFRecordReader")
class TFRecordReader(ReaderBase):
    """Reads the records of TFRecord files, one per `read`, from a queue of file names.

    Args:
        name: the name of the node.
        options: a `tf.python_io.TFRecordOptions` if the files are compressed.

    Example:
        >>> with tf.python_io.TFRecordWriter("data.tfrecord") as writer:
        ...     writer.write(b"first")
        >>> queue = tf.FIFOQueue(1, tf.string)
        >>> key, record = tf.TFRecordReader().read(queue)
        >>> sess.run(queue.enqueue("data.tfrecord"))
        >>> sess.run([key, record])
        [b'data.tfrecord:0', b'first']
    """

    def __init__(
        self, name: str | None = None, options: TFRecordOptions | int | str | None = None
    ) -> None:
        kind = TFRecordOptions.get_compression_type_string(options)
        op = TFRecordReaderOp(compression_type=kind, container=_container())
        super().__init__(op(name=name), True)


@public("IdentityReader")
class IdentityReader(ReaderBase):
    """Reads (work unit, work unit)."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(IdentityReaderOp(container=_container())(name=name), True)
