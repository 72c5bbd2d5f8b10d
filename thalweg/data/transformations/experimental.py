"""`tf.data.experimental` and `tf.contrib.data`: transformations for `Dataset.apply`, and more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.data import structure
from thalweg.data.dataset import Dataset
from thalweg.data.functions import TracedFunction
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
from thalweg.public import public
from thalweg.saved.saveables import SaveableObject, SaveSpec

Transformation = Callable[[Dataset], Dataset]


def names(name: str) -> tuple[str, str]:
    """The public names of a function."""
    return f"data.experimental.{name}", f"contrib.data.{name}"


@public(*names("shuffle_and_repeat"))
def shuffle_and_repeat(
    buffer_size: TensorLike, count: TensorLike | None = None, seed: TensorLike | None = None
) -> Transformation:
    """Shuffles and repeats, reshuffling in each repetition.

    Args:
        buffer_size: the size of the shuffle buffer.
        count: how often the dataset is repeated; indefinitely if None.
        seed: the seed of the shuffle.

    Returns:
        A function from datasets to datasets, for `Dataset.apply`.

    Example:
        >>> apply = tf.contrib.data.shuffle_and_repeat(10, count=2, seed=1)
        >>> numbers = tf.data.Dataset.range(3).apply(apply).batch(6)
        >>> sorted(sess.run(numbers.make_one_shot_iterator().get_next()).tolist())
        [0, 0, 1, 1, 2, 2]
    """
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


@public(*names("map_and_batch"), *names("map_and_batch_with_legacy_function"))
def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: Tensor | int,
    num_parallel_batches: Tensor | int | None = None,
    drop_remainder: TensorLike = False,
    num_parallel_calls: Tensor | int | None = None,
) -> Transformation:
    """Batches of the results of a function for each element.

    Args:
        map_func: the function.
        batch_size: the number of elements of a batch.
        num_parallel_batches: how many batches are computed in parallel.
        drop_remainder: whether a smaller last batch is dropped.
        num_parallel_calls: how many elements are mapped in parallel.

    Returns:
        A function from datasets to datasets, for `Dataset.apply`.

    Example:
        >>> apply = tf.contrib.data.map_and_batch(lambda x: x * x, 3)
        >>> batch = tf.data.Dataset.range(4).apply(apply).make_one_shot_iterator().get_next()
        >>> sess.run(batch), sess.run(batch)
        (array([0, 1, 4]), array([9]))
    """
    if num_parallel_batches is not None and num_parallel_calls is not None:
        raise ValueError(
            "The `num_parallel_batches` and `num_parallel_calls` arguments are mutually exclusive."
        )
    calls = num_parallel_calls
    if num_parallel_batches is not None:
        calls = batch_size * num_parallel_batches

    def apply(dataset: Dataset) -> Dataset:
        return dataset.map(map_func, calls).batch(batch_size, drop_remainder)

    return apply


@public(*names("ignore_errors"))
def ignore_errors() -> Transformation:
    """Skips elements whose computation fails."""

    def apply(dataset: Dataset) -> Dataset:
        spec = dataset.element_spec
        op = IgnoreErrorsDataset(**leaves(spec))
        return Dataset(op(dataset.variant, name=op.type_name), spec)

    return apply


@public(*names("unbatch"))
def unbatch() -> Transformation:
    """The rows of the elements."""
    return lambda dataset: dataset.unbatch()


@public("contrib.data.batch_and_drop_remainder")
def batch_and_drop_remainder(batch_size: TensorLike) -> Transformation:
    """Batches of exactly `batch_size` elements.

    Args:
        batch_size: the number of elements of a batch.

    Returns:
        A function from datasets to datasets, for `Dataset.apply`.

    Example:
        >>> apply = tf.contrib.data.batch_and_drop_remainder(2)
        >>> tf.data.Dataset.range(5).apply(apply).output_shapes.as_list()
        [2]
    """
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


@public("contrib.data.padded_batch_and_drop_remainder")
def padded_batch_and_drop_remainder(
    batch_size: TensorLike, padded_shapes: Structure, padding_values: Structure = None
) -> Transformation:
    """Batches of exactly `batch_size` elements that are padded to one shape."""
    return lambda dataset: dataset.padded_batch(batch_size, padded_shapes, padding_values, True)


@public(*names("enumerate_dataset"))
def enumerate_dataset(start: TensorLike = 0) -> Transformation:
    """Each element with its index."""
    return lambda dataset: dataset.enumerate(start)


@public(*names("parallel_interleave"))
def parallel_interleave(
    map_func: Callable[..., Any],
    cycle_length: TensorLike,
    block_length: TensorLike = 1,
    sloppy: bool = False,
    buffer_output_elements: TensorLike | None = None,
    prefetch_input_elements: TensorLike | None = None,
) -> Transformation:
    """The interleaved elements of several datasets, each prefetched by a thread, in a fixed order.

    Args:
        map_func: a function from an element to a dataset.
        cycle_length: how many datasets are interleaved.
        block_length: how many consecutive elements are taken from each.
        sloppy: taken for old programs.
        buffer_output_elements, prefetch_input_elements: how much is prefetched.

    Returns:
        A function from datasets to datasets, for `Dataset.apply`.

    Example:
        >>> repeated = lambda x: tf.data.Dataset.from_tensors(x).repeat(2)
        >>> apply = tf.contrib.data.parallel_interleave(repeated, cycle_length=2)
        >>> numbers = tf.data.Dataset.range(2).apply(apply).batch(4)
        >>> sess.run(numbers.make_one_shot_iterator().get_next())
        array([0, 1, 0, 1])
    """
    return lambda dataset: dataset.interleave(
        map_func, cycle_length, block_length, num_parallel_calls=cycle_length
    )


@public(*names("prefetch_to_device"))
def prefetch_to_device(device: str, buffer_size: TensorLike | None = None) -> Transformation:
    """Elements prefetched to the memory of a device by a background thread.

    It must be the last stage: elements on a GPU are for steps there.

    Args:
        device: the name of the device.
        buffer_size: how many elements; chosen automatically if None.

    Returns:
        A function from datasets to datasets, for `Dataset.apply`.

    Example:
        >>> apply = tf.contrib.data.prefetch_to_device("/cpu:0")
        >>> number = tf.data.Dataset.range(3).apply(apply).make_one_shot_iterator().get_next()
        >>> sess.run(number)
        np.int64(0)
    """
    size = 1 if buffer_size is None else buffer_size
    return lambda dataset: dataset.copied_to(device).prefetch(size)


@public(*names("copy_to_device"))
def copy_to_device(target_device: str, source_device: str = "/cpu:0") -> Transformation:
    """Elements in the memory of a device."""
    return lambda dataset: dataset.copied_to(target_device)


@public(*names("group_by_window"))
def group_by_window(
    key_func: Callable[..., Any],
    reduce_func: Callable[[Tensor, Dataset], Dataset],
    window_size: TensorLike | None = None,
    window_size_func: Callable[[Tensor], Any] | None = None,
) -> Transformation:
    """Groups elements by key, and concatenates `reduce_func(key, dataset)` of the full groups.

    Args:
        key_func: a function from an element to an int64 scalar.
        reduce_func: a function from (key, dataset of a group) to a dataset.
        window_size: the number of elements of a full group.
        window_size_func: a function from a key to that number; replaces `window_size`.

    Returns:
        A function from datasets to datasets, for `Dataset.apply`.

    Example:
        >>> parity, batched = lambda x: x % 2, lambda key, group: group.batch(2)
        >>> apply = tf.contrib.data.group_by_window(parity, batched, window_size=2)
        >>> pair = tf.data.Dataset.range(4).apply(apply).make_one_shot_iterator().get_next()
        >>> sess.run(pair), sess.run(pair)
        (array([0, 2]), array([1, 3]))
    """
    if (window_size is None) == (window_size_func is None):
        raise ValueError("Must pass either window_size or window_size_func, and not both.")

    def size(key: Tensor) -> Any:
        return window_size if window_size_func is None else window_size_func(key)

    def apply(dataset: Dataset) -> Dataset:
        spec, key = dataset.element_spec, TensorSpec([], int64)
        keys = TracedFunction(key_func, "the key function of group_by_window", spec)
        sizes = TracedFunction(size, "the size function of group_by_window", key)
        reduced = TracedFunction(
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


@public(*names("get_single_element"))
def get_single_element(dataset: Dataset) -> Structure:
    """The only element of a dataset, as tensors."""
    spec = dataset.element_spec
    kinds = structure.all_kinds(spec)
    op = DatasetToSingleElement(
        output_types=tuple(dtype for dtype, _ in kinds),
        output_shapes=tuple(shape for _, shape in kinds),
    )
    return structure.structure_of(spec, op(dataset.variant, name=op.type_name))


@public(*names("Counter"))
def Counter(start: TensorLike = 0, step: TensorLike = 1, dtype: Any = int64) -> Dataset:
    """An infinite arithmetic sequence."""

    def number(place: Tensor) -> Tensor:
        return casting.cast(place * step + start, as_dtype(dtype))

    return Dataset.range(2**63 - 1).map(number)


# State


class _IteratorSaveable(SaveableObject):
    """The position of an iterator as a part of a checkpoint."""

    def __init__(self, iterator: Iterator) -> None:
        self._iterator = iterator
        name = f"{iterator.handle.op.name}-iterator_state"
        spec = SaveSpec(iterator.save_state(name="save_state"), "", name, string)
        super().__init__(iterator.handle, [spec], name)

    def restore(self, restored_tensors: Sequence[Tensor], restored_shapes: Any) -> Any:
        return self._iterator.restore_state(restored_tensors[0])


@public(*names("make_saveable_from_iterator"))
def make_saveable_from_iterator(iterator: Iterator) -> SaveableObject:
    """The saveable of an iterator's position: after a restore it continues with the next element.

    Add it to the `SAVEABLE_OBJECTS` collection, or to a Saver's `var_list`. If the state is
    restored before the initializer runs, the initializer starts there.
    """
    return _IteratorSaveable(iterator)


# Options


class _Settings:
    """Settings by name; None if not set."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return None


@public("data.experimental.OptimizationOptions")
class OptimizationOptions(_Settings):
    """Options for rewriting pipelines, which never change results."""


@public("data.experimental.ThreadingOptions")
class ThreadingOptions(_Settings):
    """Options for the threads of pipelines, which never change results."""


@public("data.experimental.DistributeOptions")
class DistributeOptions(_Settings):
    """Options for the distribution of pipelines over workers."""


@public("data.Options")
class Options(_Settings):
    """Options for `Dataset.with_options`. The order of elements is always deterministic.

    Example:
        >>> options = tf.data.Options()
        >>> options.experimental_deterministic = True
        >>> dataset = tf.data.Dataset.range(3).with_options(options)
        >>> dataset.options().experimental_deterministic
        True
    """

    def __init__(self) -> None:
        self.experimental_optimization = OptimizationOptions()
        self.experimental_threading = ThreadingOptions()
        self.experimental_distribute = DistributeOptions()
