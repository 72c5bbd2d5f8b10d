"""RecordInput: the records of many files in random order, read by background threads.

Steps draw records from a shuffle buffer, which must be at least half full. Each epoch reads the
files in another order, and begins only after all records of the previous one have been drawn.
"""

from __future__ import annotations

import glob
import itertools
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.analysis.effects import Resource, reads, writes
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, scalar, vector
from thalweg.ops.arrays import splitting
from thalweg.ops.core import shaping
from thalweg.ops.core.context import Context
from thalweg.ops.state.queue_elements import Components, Element
from thalweg.ops.state.queue_state import RandomShuffleQueue
from thalweg.platform.files.records import RecordReader, TFRecordOptions


class _Uncancelled:
    """The cancellation of reading threads, which closing the buffer ends instead."""

    def on_cancel(self, wake: Callable[[], None]) -> Callable[[], None]:
        return wake

    def check(self) -> None:
        """Does nothing."""


class Buffer(RandomShuffleQueue):
    """The shuffle buffer, with records of one epoch at a time."""

    kind = "RecordInput"

    def __init__(self, name: str, size: int, seed: int) -> None:
        self.has_records = False
        self._is_ending = False
        self._error: errors.OpError | None = None
        self._drained = threading.Event()
        components = Components([dtypes.string], [scalar()])
        super().__init__(name, components, max(size, 1), max(size // 2 - 1, 0), (seed, size))

    def available(self, wanted: int) -> int:
        return len(self) if self._is_ending else super().available(wanted)

    def add(self, elements: Iterable[Element]) -> None:
        self.has_records = True
        super().add(elements)

    def remove(self, number: int) -> list[Element]:
        taken = super().remove(number)
        if self._is_ending and not len(self):
            self._drained.set()
        return taken

    def finish_epoch(self) -> None:
        """Make all remaining records available to steps, and block until they are drawn."""
        with self._lock:
            if self.is_closed or not len(self):
                return
            self._drained.clear()
            self._is_ending = True
            self._advance_pending()
        self._notify()
        self._drained.wait()
        self._is_ending = False

    def stop(self, error: errors.OpError | None = None) -> None:
        """Close the buffer: steps get an error, readers stop."""
        self._error = self._error or error
        self.close_now()
        self._drained.set()

    def exhausted(self, wanted: int) -> errors.OpError:
        return self._error or super().exhausted(wanted)


class Readers:
    """The threads that fill a buffer. They stop when this object is dropped with its session."""

    def __init__(self, op: RecordInputOp, name: str) -> None:
        self.buffer = Buffer(name, op.file_buffer_size, op.file_random_seed)
        weakref.finalize(self, self.buffer.stop).atexit = False
        threading.Thread(
            target=_read_epochs, args=(op, self.buffer), name=f"RecordInput-{name}", daemon=True
        ).start()


def _read_epochs(op: RecordInputOp, buffer: Buffer) -> None:
    for epoch in itertools.count(1):
        if buffer.is_closed:
            return
        names = _file_order(op, epoch)
        if not names:
            message = f"Found no files at {op.file_pattern}"
            buffer.stop(errors.NotFoundError(None, None, message))
            return
        _read_in_parallel(op, names, buffer)
        if not buffer.has_records:
            message = f"Found no records at {op.file_pattern}"
            buffer.stop(errors.NotFoundError(None, None, message))
        buffer.finish_epoch()


def _file_order(op: RecordInputOp, epoch: int) -> list[str]:
    """The files in the order of an epoch: shuffled, then rotated."""
    names = sorted(glob.glob(op.file_pattern))
    random.Random(f"{op.file_random_seed},{epoch}").shuffle(names)
    shift = int(op.file_shuffle_shift_ratio * len(names))
    return names[shift:] + names[:shift]


def _read_in_parallel(op: RecordInputOp, names: Sequence[str], buffer: Buffer) -> None:
    count = min(max(op.file_parallelism, 1), len(names))
    threads = [
        threading.Thread(
            target=_read_files,
            args=(names[first::count], op.compression_type, buffer),
            daemon=True,
        )
        for first in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _read_files(names: Sequence[str], compression_type: str, buffer: Buffer) -> None:
    uncancelled = _Uncancelled()
    try:
        for name in names:
            for record in RecordReader(name, compression_type):
                buffer.enqueue([record], uncancelled, -1)
    except errors.CancelledError:
        return  # the buffer was stopped
    except errors.OpError as error:
        buffer.stop(error)


class RecordInputOp(Op, name="RecordInput"):
    """Records of the files that match a pattern, in random order"""

    signature = "-> records: string"
    effects = (reads(Resource.FILES), writes(Resource.STREAM))
    stateful = True
    blocking = True
    host_only = True
    not_differentiable = True
    file_pattern: str
    file_random_seed: int = 301
    file_shuffle_shift_ratio: float = 0.0
    file_buffer_size: int = 10000
    file_parallelism: int = 16
    batch_size: int = 32
    compression_type: str = ""

    def shape(self) -> TensorShape:
        return vector(self.batch_size)

    def kernel(self, context: Context) -> Any:
        readers = context.state(lambda: Readers(self, context.node.name))
        taken = readers.buffer.dequeue_many(self.batch_size, False, context.cancellation, -1)
        return taken[0]


class RecordInput:
    """Reads the records of files on background threads, in random order."""

    def __init__(
        self,
        file_pattern: str,
        batch_size: int = 1,
        buffer_size: int = 1,
        parallelism: int = 1,
        shift_ratio: float = 0,
        seed: int = 0,
        name: str | None = None,
        batches: int | None = None,
        compression_type: Any = None,
    ) -> None:
        self._name = name
        self._batches = batches
        options = None if compression_type is None else TFRecordOptions(compression_type)
        self._op = RecordInputOp(
            file_pattern=file_pattern,
            file_buffer_size=buffer_size,
            file_parallelism=parallelism,
            file_shuffle_shift_ratio=float(shift_ratio),
            batch_size=batch_size * (batches or 1),
            file_random_seed=seed,
            compression_type=TFRecordOptions.get_compression_type_string(options),
        )

    def get_yield_op(self) -> Any:
        """A tensor of the next records; with `batches`, lists of scalars."""
        records: Tensor = self._op(name=self._name)
        if self._batches is None:
            return records
        with name_scope(self._name, "RecordInput"):
            single = [
                shaping.reshape(part, [])
                for part in splitting.split(records, self._op.batch_size, 0)
            ]
        return [single[first :: self._batches] for first in range(self._batches)]
