"""`tf.data.experimental` and `tf.contrib.data`: transformations for `Dataset.apply`, and more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.data import structure
from thalweg.data.dataset import Dataset
from thalweg.data.functions import Traced
from thalweg.data.iterator import Iterator, leaves
from thalweg.data.iterator_ops import DatasetToSingleElement
from thalweg.data.structure import DatasetSpec
from thalweg.data.transformations.caching import IgnoreErrorsDataset
from thalweg.data.transformations.grouping import GroupByWindowDataset
from thalweg.functions.traced.tensor_spec import TensorSpec
from thalweg.graph.dtypes import as_dtype, int64, string
from thalweg.graph.likes import Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.ops.core import casting
from thalweg.ops.math import arithmetic
from thalweg.public import public
from thalweg.saved.saveables import SaveableObject, SaveSpec

Transformation = Callable[[Dataset], Dataset]


def _names(name: str) -> tuple[str, str]:
    return f"data.experimental.{name}", f"contrib.data.{name}"


@public(*_names("shuffle_and_repeat"))
def shuffle_and_repeat(
    buffer_size: TensorLike, count: TensorLike | None = None, seed: TensorLike | None = None
) -> Transformation:
    """Shuffles, and repeats, reshuffling each time."""
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


@public(*_names("map_and_batch"), *_names("map_and_batch_with_legacy_function"))
def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: TensorLike,
    num_parallel_batches: TensorLike | None = None,
    drop_remainder: TensorLike = False,
    num_parallel_calls: TensorLike | None = None,
) -> Transformation:
    """Batches of a function of each element."""
    if num_parallel_batches is not None and num_parallel_calls is not None:
        raise ValueError(
            "The `num_parallel_batches` and `num_parallel_calls` arguments are mutually exclusive."
        )
    calls = num_parallel_calls
    if num_parallel_batches is not None:
        calls = arithmetic.multiply(batch_size, num_parallel_batches)

    def apply(dataset: Dataset) -> Dataset:
        return dataset.map(map_func, calls).batch(batch_size, drop_remainder)

    return apply


@public(*_names("ignore_errors"))
def ignore_errors() -> Transformation:
    """Leaves out the elements that cannot be made."""

    def apply(dataset: Dataset) -> Dataset:
        spec = dataset.element_spec
        op = IgnoreErrorsDataset(**leaves(spec))
        return Dataset(op(dataset.variant, name=op.type_name), spec)

    return apply


@public(*_names("unbatch"))
def unbatch() -> Transformation:
    """The rows of the elements."""
    return lambda dataset: dataset.unbatch()


@public("contrib.data.batch_and_drop_remainder")
def batch_and_drop_remainder(batch_size: TensorLike) -> Transformation:
    """Batches of exactly `batch_size` elements."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


@public("contrib.data.padded_batch_and_drop_remainder")
def padded_batch_and_drop_remainder(
    batch_size: TensorLike, padded_shapes: Structure, padding_values: Structure = None
) -> Transformation:
    """Batches of exactly `batch_size` elements that are filled up to one shape."""
    return lambda dataset: dataset.padded_batch(batch_size, padded_shapes, padding_values, True)


@public(*_names("enumerate_dataset"))
def enumerate_dataset(start: TensorLike = 0) -> Transformation:
    """Each element with its number."""
    return lambda dataset: dataset.enumerate(start)


@public(*_names("parallel_interleave"))
def parallel_interleave(
    map_func: Callable[..., Any],
    cycle_length: TensorLike,
    block_length: TensorLike = 1,
    sloppy: bool = False,
    buffer_output_elements: TensorLike | None = None,
    prefetch_input_elements: TensorLike | None = None,
) -> Transformation:
    """The elements of several datasets in turn, each read by a thread; the order is fixed."""
    return lambda dataset: dataset.interleave(
        map_func, cycle_length, block_length, num_parallel_calls=cycle_length
    )


@public(*_names("prefetch_to_device"))
def prefetch_to_device(device: str, buffer_size: TensorLike | None = None) -> Transformation:
    """Elements prefetched to where the device finds them."""
    return lambda dataset: dataset.prefetch(1 if buffer_size is None else buffer_size)


@public(*_names("copy_to_device"))
def copy_to_device(target_device: str, source_device: str = "/cpu:0") -> Transformation:
    """Elements where the device finds them."""
    return lambda dataset: dataset.prefetch(0)


@public(*_names("group_by_window"))
def group_by_window(
    key_func: Callable[..., Any],
    reduce_func: Callable[[Tensor, Dataset], Dataset],
    window_size: TensorLike | None = None,
    window_size_func: Callable[[Tensor], Any] | None = None,
) -> Transformation:
    """Gathers elements by key; `reduce_func(key, dataset)` of each group, when it is full."""
    if (window_size is None) == (window_size_func is None):
        raise ValueError("Must pass either window_size or window_size_func, and not both.")

    def size(key: Tensor) -> Any:
        return window_size if window_size_func is None else window_size_func(key)

    def apply(dataset: Dataset) -> Dataset:
        spec, key = dataset.element_spec, TensorSpec([], int64)
        keys = Traced(key_func, "the key function of group_by_window", spec)
        sizes = Traced(size, "the size function of group_by_window", key)
        reduced = Traced(
            reduce_func, "the reduce function of group_by_window", key, DatasetSpec(spec)
        )
        if not isinstance(reduced.spec, DatasetSpec):
            raise TypeError("`reduce_func` must return a `Dataset` object.")
        given = reduced.spec.element_spec
        op = GroupByWindowDataset(
            key_func=keys.function,
            reduce_func=reduced.function,
            window_size_func=sizes.function,
            **leaves(given),
        )
        captured = (keys.captured, reduced.captured, sizes.captured)
        return Dataset(op(dataset.variant, *captured, name=op.type_name), given)

    return apply


@public(*_names("get_single_element"))
def get_single_element(dataset: Dataset) -> Structure:
    """The only element of a dataset, as tensors."""
    spec = dataset.element_spec
    kinds = structure.all_kinds(spec)
    op = DatasetToSingleElement(
        output_types=tuple(dtype for dtype, _ in kinds),
        output_shapes=tuple(shape for _, shape in kinds),
    )
    return structure.structure_of(spec, op(dataset.variant, name=op.type_name))


@public(*_names("Counter"))
def Counter(start: TensorLike = 0, step: TensorLike = 1, dtype: Any = int64) -> Dataset:
    """Numbers without end."""

    def number(place: Tensor) -> Tensor:
        return casting.cast(place * step + start, as_dtype(dtype))

    return Dataset.range(2**63 - 1).map(number)


# State


class _IteratorSaveable(SaveableObject):
    """Where an iterator is, as a part of a checkpoint."""

    def __init__(self, iterator: Iterator) -> None:
        self._iterator = iterator
        name = f"{iterator.handle.op.name}-iterator_state"
        spec = SaveSpec(iterator.save_state(name="save_state"), "", name, string)
        super().__init__(iterator.handle, [spec], name)

    def restore(self, restored_tensors: Sequence[Tensor], restored_shapes: Any) -> Any:
        return self._iterator.restore_state(restored_tensors[0])


@public(*_names("make_saveable_from_iterator"))
def make_saveable_from_iterator(iterator: Iterator) -> SaveableObject:
    """What a Saver saves of an iterator: restored, it gives the very next element.

    Put it into the `SAVEABLE_OBJECTS` collection, or into a Saver's `var_list`. A state that is
    restored before the initializer runs is where the initializer then starts.
    """
    return _IteratorSaveable(iterator)


# Options


class _Settings:
    """Settings by name: what is not set is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return None


@public("data.experimental.OptimizationOptions")
class OptimizationOptions(_Settings):
    """How pipelines may be rewritten: whatever is set, results are the same."""


@public("data.experimental.ThreadingOptions")
class ThreadingOptions(_Settings):
    """How many threads pipelines may use: whatever is set, results are the same."""


@public("data.experimental.DistributeOptions")
class DistributeOptions(_Settings):
    """How pipelines are spread over workers."""


@public("data.Options")
class Options(_Settings):
    """What a dataset is told by `with_options`. The order of elements is always fixed."""

    def __init__(self) -> None:
        self.experimental_optimization = OptimizationOptions()
        self.experimental_threading = ThreadingOptions()
        self.experimental_distribute = DistributeOptions()
