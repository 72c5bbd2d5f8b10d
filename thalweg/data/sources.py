"""Sources of elements: tensors, their rows, ranges, and Python generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.data.channels import Channel, Failure
from thalweg.data.columns import row, row_count
from thalweg.data.flow import CountedFlow, Element, Flow, Rows, Stage
from thalweg.errors import invalid
from thalweg.graph.composite import SparseTensorValue
from thalweg.graph.dtypes import DType, as_dtype, string
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core.python_call import functions
from thalweg.ops.text import text
from thalweg.platform.compat import as_bytes


def leaves(stage: Stage, values: list[Any]) -> list[Any]:
    """One value per leaf from the tensors of an element: three for a sparse leaf."""
    result: list[Any] = []
    rest = iter(values)
    for is_sparse in getattr(stage, "sparse", ()):
        if is_sparse:
            result.append(SparseTensorValue(next(rest), next(rest), next(rest)))
        else:
            result.append(next(rest))
    return result


class TensorFlow(CountedFlow):
    """One element."""

    count = 1

    def open(self, components: list[Any]) -> None:
        self._element = tuple(leaves(self.pipeline.stage, components))

    def element(self, place: int) -> Element:
        return self._element


class TensorDataset(Stage):
    """A dataset of one element."""

    signature = "components: [Toutput_types] -> handle: variant"
    flow = TensorFlow
    sparse: tuple[bool, ...]  # the leaves that are sparse: three tensors each


class SliceFlow(CountedFlow):
    """The rows of values."""

    def open(self, components: list[Any]) -> None:
        self._values = leaves(self.pipeline.stage, components)
        counts = {row_count(value) for value in self._values}
        if len(counts) > 1:
            raise self.failed(invalid(f"the components have different numbers of rows: {counts}"))
        self.count = counts.pop()
        self.gives_rows = self.pipeline.has_rows

    def element(self, place: int) -> Element:
        return tuple([row(value, place) for value in self._values])

    def part(self, start: int, stop: int) -> Rows:
        return tuple([value[start:stop] for value in self._values])


class TensorSliceDataset(Stage):
    """A dataset of the rows of tensors."""

    signature = "components: [Toutput_types] -> handle: variant"
    flow = SliceFlow
    sparse: tuple[bool, ...]  # the leaves that are sparse: three tensors each


class RangeFlow(CountedFlow):
    """An arithmetic sequence."""

    gives_rows = True

    def open(self, start: Any, stop: Any, step: Any) -> None:
        if not step:
            raise self.failed(invalid("step must be a non-zero integer."))
        self._range = range(int(start), int(stop), int(step))
        self.count = len(self._range)

    def element(self, place: int) -> Element:
        return (np.int64(self._range[place]),)

    def part(self, start: int, stop: int) -> Rows:
        part = self._range[start:stop]
        return (np.arange(part.start, part.stop, part.step, dtype=np.int64),)


class RangeDataset(Stage):
    """A dataset of an arithmetic sequence."""

    signature = "start: int64, stop: int64, step: int64 -> handle: variant"
    flow = RangeFlow


# Generators


class GeneratorFlow(Flow):
    """The elements of a Python generator, run by a background thread; the state is their number."""

    def open(self, arguments: list[Any]) -> None:
        self._arguments = [np.array(value) for value in arguments]
        self._position = 0
        self._channel: Channel | None = None
        self._is_over = False

    def _started(self) -> Channel:
        stage: GeneratorDataset = self.pipeline.stage  # pyright: ignore[reportAssignmentType] - its flow
        function = functions.find(stage.token)
        arguments = self._arguments
        iterator = _GeneratorElements(stage, lambda: iter(function(*arguments)), self._position)
        node = self.pipeline.node
        self._channel = Channel(node, iterator.pull, iterator.close, stage.ahead)
        return self._channel

    def next(self) -> Element | None:
        if self._is_over:
            return None
        channel = self._channel or self._started()
        item = channel.take(self.puller)
        self._is_over = item is None
        self._position += not self._is_over
        if isinstance(item, Failure):
            raise self.failed(item.error) from item.error.__cause__
        return item

    def save(self) -> Any:
        return {"given": self._position, "over": self._is_over}

    def load(self, state: Any) -> None:
        self.close()
        self._position, self._is_over = int(state["given"]), bool(state["over"])

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class _GeneratorElements:
    """The elements of a generator as arrays of the declared dtypes and shapes."""

    def __init__(self, stage: GeneratorDataset, start: Any, skipped: int) -> None:
        self._stage = stage
        self._start = start
        self._skipped = skipped
        self._values: Iterator[Any] | None = None

    def pull(self) -> Element | None:
        try:
            if self._values is None:
                self._values = self._begun()
            for value in self._values:
                return self._element(value)
            return None
        except errors.OpError:
            raise
        except Exception as error:
            raise _translated(error) from error

    def _begun(self) -> Iterator[Any]:
        values: Iterator[Any] = self._start()
        for _ in range(self._skipped):
            with suppress(Exception):  # it was raised in the first run, too
                next(values, None)
        return values

    def _element(self, value: list[Any]) -> Element:
        stage = self._stage
        rows = zip(value, stage.output_types, stage.output_shapes, strict=True)
        return tuple([_checked(*row) for row in rows])

    def close(self) -> None:
        end = getattr(self._values, "close", None)
        if end is not None:
            end()


def _checked(value: Any, dtype: DType, shape: TensorShape) -> Any:
    array = _converted(value, dtype)
    if not shape.is_compatible_with(array.shape):
        raise errors.InvalidArgumentError(
            None,
            None,
            f"`generator` yielded an element of shape {array.shape} where an element of shape "
            f"{shape} was expected.",
        )
    return array


def _converted(value: Any, dtype: DType) -> Any:
    try:
        if dtype is string:
            whole = np.asarray(value, dtype=object)
            return text.mapped(as_bytes, whole)
        array = np.asarray(value)
        if array.dtype.kind in "SUO" or not _fits(array, dtype):
            raise TypeError(f"it is of type {array.dtype}")
        return array.astype(dtype.as_numpy_dtype)
    except (TypeError, ValueError) as error:
        raise errors.InvalidArgumentError(
            None,
            None,
            "`generator` yielded an element that could not be converted to the expected type. The "
            f"expected type was {dtype.name}, but the yielded element was {value!r}: {error}",
        ) from error


def _fits(array: Any, dtype: DType) -> bool:
    """Whether numbers convert to a dtype: not from floats to integers or bools, nor from complex to
    real numbers."""
    wanted = as_dtype(dtype)
    if array.dtype.kind in "fc" and (wanted.is_integer or wanted.is_bool):
        return False
    return not (array.dtype.kind == "c" and not wanted.is_complex)


_TRANSLATED: tuple[tuple[type[Exception], type[errors.OpError]], ...] = (
    (NotImplementedError, errors.UnimplementedError),
    (TypeError, errors.InvalidArgumentError),
    (ValueError, errors.InvalidArgumentError),
)


def _translated(error: Exception) -> errors.OpError:
    """The OpError for an exception of the user's generator, which is its cause."""
    message = f"{type(error).__name__}: {error}"
    for kind, ours in _TRANSLATED:
        if isinstance(error, kind):
            return _caused(ours(None, None, message), error)
    return _caused(errors.UnknownError(None, None, message), error)


def _caused(error: errors.OpError, cause: Exception) -> errors.OpError:
    error.__cause__ = cause
    return error


class GeneratorDataset(Stage):
    """A dataset of the elements of a Python generator."""

    signature = "arguments: [Targuments] -> handle: variant"
    flow = GeneratorFlow
    token: str  # of a function that returns an iterator over lists of leaves
    ahead: int = 16  # the maximum number of prefetched elements
