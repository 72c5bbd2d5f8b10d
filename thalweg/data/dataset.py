"""`tf.data.Dataset`: input pipelines as values, built stage by stage.

Each stage is a node whose output is a dataset; an iterator runs the stages. The functions of `map`
and the like are traced to sub-graphs and compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from thalweg.data import arguments, structure
from thalweg.data.eager_iterator import EagerIterator
from thalweg.data.functions import TracedFunction, sparse_leaves
from thalweg.data.iterator import Described, Iterator, initializable, leaves, one_shot
from thalweg.data.iterator_ops import ReduceDataset
from thalweg.data.sources import (
    GeneratorDataset,
    RangeDataset,
    TensorDataset,
    TensorSliceDataset,
)
from thalweg.data.structure import DatasetSpec
from thalweg.data.transformations.batching import (
    BatchDatasetV2,
    PaddedBatchDatasetV2,
    UnbatchDataset,
)
from thalweg.data.transformations.caching import CacheDataset
from thalweg.data.transformations.mapping import (
    AUTOTUNE,
    FilterDataset,
    FlatMapDataset,
    InterleaveDataset,
    MapDataset,
    ParallelInterleaveDatasetV2,
    ParallelMapDataset,
)
from thalweg.data.transformations.ordering import (
    ConcatenateDataset,
    RepeatDataset,
    ShardDataset,
    SkipDataset,
    TakeDataset,
    ZipDataset,
)
from thalweg.data.transformations.prefetch import CopyToDeviceDataset, PrefetchDataset
from thalweg.data.transformations.shuffling import ShuffleDataset
from thalweg.data.transformations.windows import WindowDataset
from thalweg.functions.mode import executing_eagerly
from thalweg.functions.traced.tensor_spec import TensorSpec
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import bool as boolean
from thalweg.graph.dtypes import int32, int64, string
from thalweg.graph.graph import get_default_graph
from thalweg.graph.known import constant_value, constant_value_as_shape
from thalweg.graph.likes import MaybeNone, Structure, TensorLike, TensorStructure
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import root
from thalweg.ops.core import checks, shaping
from thalweg.ops.core.python_call import functions
from thalweg.ops.io import files
from thalweg.platform.described import described
from thalweg.public import public, publish_value

_MAX_INDEX = 2**63 - 1


@public("data.Dataset", "contrib.data.Dataset")
class Dataset(Described):
    """A sequence of elements, each a structure of tensors, described by the stages that compute it.

    Start with `from_tensor_slices`, `range` or a file dataset; add `map`, `shuffle`, `batch`,
    `repeat`, `prefetch`; read it by an iterator.

    Args:
        variant: the tensor whose value is the dataset; the methods pass it.
        spec: the spec of the elements.

    Example:
        >>> data = tf.data.Dataset.from_tensor_slices([1, 2, 3, 4]).map(lambda x: x * 10).batch(2)
        >>> batch = data.make_one_shot_iterator().get_next()
        >>> sess.run(batch), sess.run(batch)
        (array([10, 20], dtype=int32), array([30, 40], dtype=int32))
        >>> sess.run(batch)
        Traceback (most recent call last):
        thalweg.errors.OutOfRangeError: End of sequence...
    """

    def __init__(self, variant: Tensor, spec: Structure) -> None:
        self.variant = variant
        self._spec = spec
        self._options: Any = None

    def __repr__(self) -> str:
        return described(self, element_spec=self._spec)

    def _staged(self, op: Any, *inputs: Any, spec: Any = None) -> Dataset:
        """The dataset of a stage whose first input is this one."""
        given = self._spec if spec is None else spec
        made = op(**leaves(given))
        return Dataset(made(self.variant, *inputs, name=made.type_name), given)

    # As a composite tensor: an argument or a result of functions and branches

    @property
    def static_key(self) -> str:
        """The spec of the elements: functions are traced for it."""
        return repr(self._spec)

    def components(self) -> list[Tensor]:
        """The tensor whose value is the dataset."""
        return [self.variant]

    def with_components(self, components: Sequence[Tensor]) -> Dataset:
        """A dataset of the same elements' spec and options with another value."""
        (variant,) = components
        result = Dataset(variant, self._spec)
        result._options = self._options
        return result

    # Sources

    @staticmethod
    def from_tensors(tensors: TensorStructure) -> Dataset:
        """A dataset of one element.

        Args:
            tensors: a tensor, or a structure of tensors.
        """
        return _from_tensors(TensorDataset, tensors, lambda spec: spec)

    @staticmethod
    def from_tensor_slices(tensors: TensorStructure) -> Dataset:
        """The rows of tensors.

        Args:
            tensors: a tensor, or a structure of tensors with a first axis of one size.

        Example:
            >>> data = tf.data.Dataset.from_tensor_slices({"x": [1.0, 2.0], "label": [0, 1]})
            >>> sess.run(data.make_one_shot_iterator().get_next())
            {'x': np.float32(1.0), 'label': np.int32(0)}
        """
        return _from_tensors(TensorSliceDataset, tensors, _sliced)

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: Structure,
        output_shapes: Structure = None,
        args: Sequence[Any] | None = None,
    ) -> Dataset:
        """The elements of a Python generator, which each pass calls again, on a background thread.

        Args:
            generator: a function that returns an iterator.
            output_types: the dtypes of an element.
            output_shapes: its static shapes; unknown if None.
            args: tensors to call the function with, as NumPy values.

        Example:
            >>> data = tf.data.Dataset.from_generator(lambda: iter([1, 4, 9]), tf.int64, [])
            >>> sess.run(data.make_one_shot_iterator().get_next())
            np.int64(1)
        """
        if not callable(generator):
            raise TypeError("`generator` must be callable.")
        spec = structure.specs_from(output_types, output_shapes, None)
        op = GeneratorDataset(
            token=functions.insert(partial(_yielded, generator, spec), root(get_default_graph())),
            **leaves(spec),
        )
        given = [convert_to_tensor(value) for value in args or ()]
        return Dataset(op(given, name=op.type_name), spec)

    @staticmethod
    def range(*args: TensorLike) -> Dataset:
        """Integers, as in Python's `range`.

        Args:
            args: stop, or start and stop, or start, stop and step.
        """
        if not 1 <= len(args) <= 3:
            raise ValueError(f"Invalid arguments to RangeDataset: {args}")
        start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        spec = TensorSpec([], int64)
        op = RangeDataset(**leaves(spec))
        return Dataset(op(*map(arguments.as_int64, (start, stop, step)), name=op.type_name), spec)

    @staticmethod
    def zip(datasets: Structure) -> Dataset:
        """Tuples of elements of several datasets, up to the end of the shortest.

        Args:
            datasets: a structure (tuples and dicts) of datasets.

        Example:
            >>> a, b = tf.data.Dataset.range(3), tf.data.Dataset.range(10, 20)
            >>> sess.run(tf.data.Dataset.zip((a, b)).make_one_shot_iterator().get_next())
            (np.int64(0), np.int64(10))
        """
        flat = structure.flatten(datasets)
        for dataset in flat:
            if not isinstance(dataset, Dataset):
                raise TypeError(
                    "The argument to `Dataset.zip()` must be a nested structure of datasets "
                    f"(tuples and dicts, no lists), but {dataset!r} is no dataset."
                )
        spec = structure.map_structure(attrgetter("element_spec"), datasets)
        op = ZipDataset(**leaves(spec))
        return Dataset(op([dataset.variant for dataset in flat], name=op.type_name), spec)

    @staticmethod
    def list_files(
        file_pattern: Any, shuffle: bool | None = None, seed: TensorLike | None = None
    ) -> Dataset:
        """The names of files that match patterns.

        Args:
            file_pattern: a pattern, or a vector of them.
            shuffle: whether they are in random order; None means yes.
            seed: a number that fixes the order.
        """
        pattern = convert_to_tensor(file_pattern, string)
        found = files.matching_files(pattern)
        count = shaping.size(found, out_type=int64)
        check = checks.assert_positive(count, message=f"No files matched pattern: {file_pattern}")
        with get_default_graph().control_dependencies([] if check is None else [check]):
            names = shaping.reshape(found, [-1])
        dataset = Dataset.from_tensor_slices(names)
        return dataset if shuffle is False else dataset.shuffle(count, seed=seed)

    # Functions

    def map(self, map_func: Callable[..., Any], num_parallel_calls: Any = None) -> Dataset:
        """The results of a function for each element, in the order of the elements.

        Args:
            map_func: a function of the parts of an element, traced to a graph once.
            num_parallel_calls: how many elements are computed in parallel.

        Example:
            >>> data = tf.data.Dataset.from_tensor_slices(([1, 2], [10, 20]))
            >>> sess.run(data.map(lambda x, y: x + y).make_one_shot_iterator().get_next())
            np.int32(11)
        """
        traced = TracedFunction(map_func, "the function of Dataset.map", self._spec)
        kind = MapDataset if num_parallel_calls is None else ParallelMapDataset
        rest = (
            () if num_parallel_calls is None else (arguments.as_scalar(num_parallel_calls, int32),)
        )
        return self._mapped(kind, traced, traced.spec, *rest)

    map_with_legacy_function = map

    def _mapped(self, kind: Any, traced: TracedFunction, spec: Any, *rest: Any) -> Dataset:
        op = kind(f=traced.function, **leaves(spec))
        made = op(self.variant, traced.captured, *rest, name=op.type_name)
        return Dataset(made, spec)

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """The elements for which a predicate holds.

        Args:
            predicate: a function of the parts of an element that returns a scalar bool tensor.
        """
        traced = TracedFunction(predicate, "the predicate of Dataset.filter", self._spec)
        given = traced.spec
        is_scalar = isinstance(given, TensorSpec) and given.shape.is_compatible_with([])
        if not is_scalar or given.dtype is not boolean:
            raise ValueError("`predicate` must return a scalar boolean tensor.")
        return self._mapped(FilterDataset, traced, self._spec)

    filter_with_legacy_function = filter

    def flat_map(self, map_func: Callable[..., Any]) -> Dataset:
        """The concatenated datasets that a function returns for each element.

        Args:
            map_func: a function of the parts of an element that returns a dataset.
        """
        traced = TracedFunction(map_func, "the function of Dataset.flat_map", self._spec)
        return self._mapped(FlatMapDataset, traced, _inner(traced))

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: Any = AUTOTUNE,
        block_length: Any = 1,
        num_parallel_calls: Any = None,
    ) -> Dataset:
        """The interleaved elements of the datasets that a function returns for each element.

        Args:
            map_func: a function of the parts of an element that returns a dataset.
            cycle_length: how many datasets are open at once.
            block_length: how many elements are taken from one before the next.
            num_parallel_calls: how many datasets are read in parallel.
        """
        traced = TracedFunction(map_func, "the function of Dataset.interleave", self._spec)
        rest = [arguments.as_int64(cycle_length), arguments.as_int64(block_length)]
        if num_parallel_calls is None:
            return self._mapped(InterleaveDataset, traced, _inner(traced), *rest)
        rest.append(arguments.as_int64(num_parallel_calls))
        return self._mapped(ParallelInterleaveDatasetV2, traced, _inner(traced), *rest)

    def reduce(self, initial_state: TensorStructure, reduce_func: Callable[..., Any]) -> Structure:
        """Apply `state = reduce_func(state, element)` to all elements.

        Args:
            initial_state: the state to begin with.
            reduce_func: a function of the state and an element that returns the next state.

        Returns:
            The last state, as tensors.

        Example:
            >>> total = tf.data.Dataset.range(5).reduce(np.int64(0), lambda total, x: total + x)
            >>> sess.run(total)
            np.int64(10)
        """
        state = structure.converted(initial_state)
        spec = structure.map_structure(structure.spec_of, state)
        traced = TracedFunction(reduce_func, "the function of Dataset.reduce", spec, self._spec)
        widened = structure.common_spec(spec, traced.spec)
        if widened != spec:  # the state changes shape: trace again with a wider spec
            traced = TracedFunction(
                reduce_func, "the function of Dataset.reduce", widened, self._spec
            )
        kinds = structure.all_kinds(widened)
        op = ReduceDataset(
            f=traced.function,
            output_types=tuple(dtype for dtype, _ in kinds),
            output_shapes=tuple(shape for _, shape in kinds),
        )
        flat = structure.tensors_of(state)
        found = op(self.variant, flat, traced.captured, name=op.type_name)
        return structure.structure_of(widened, found)

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """Apply a transformation: `dataset.apply(tf.data.experimental.unbatch())`."""
        result = transformation_func(self)
        if not isinstance(result, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
            raise TypeError(f"`transformation_func` must return a Dataset, got {result!r}")
        return result

    # Order

    def concatenate(self, dataset: Dataset) -> Dataset:
        """The elements of this dataset, then those of another.

        Args:
            dataset: the other one, with elements of the same structure and dtypes.
        """
        spec = structure.common_spec(self._spec, dataset.element_spec)
        return self._staged(ConcatenateDataset, dataset.variant, spec=spec)

    def repeat(self, count: Any = None) -> Dataset:
        """The elements, repeated.

        Args:
            count: how often; None or -1 repeats indefinitely.
        """
        return self._staged(RepeatDataset, arguments.as_int64(-1 if count is None else count))

    def take(self, count: Any) -> Dataset:
        """The first elements.

        Args:
            count: how many; -1 means all.
        """
        return self._staged(TakeDataset, arguments.as_int64(count))

    def skip(self, count: Any) -> Dataset:
        """All but the first elements.

        Args:
            count: how many are skipped; -1 means all.
        """
        return self._staged(SkipDataset, arguments.as_int64(count))

    def shard(self, num_shards: Any, index: Any) -> Dataset:
        """Every n-th element.

        Args:
            num_shards: n.
            index: the first one, in [0, n).
        """
        count, place = arguments.static_value(num_shards), arguments.static_value(index)
        if count is not None and count < 1:
            raise ValueError("num_shards must be >= 1")
        if place is not None and (place < 0 or (count is not None and place >= count)):
            raise ValueError("index must be in [0, num_shards)")
        return self._staged(ShardDataset, arguments.as_int64(num_shards), arguments.as_int64(index))

    def shuffle(
        self, buffer_size: Any, seed: Any = None, reshuffle_each_iteration: bool | None = None
    ) -> Dataset:
        """The elements in random order.

        Args:
            buffer_size: the number of elements that each one is drawn from; the size of the dataset
                gives a uniform shuffle.
            seed: a number that fixes the order.
            reshuffle_each_iteration: whether each pass has a different order; None means yes.
        """
        reshuffles = reshuffle_each_iteration is None or bool(reshuffle_each_iteration)
        op = ShuffleDataset(reshuffle_each_iteration=reshuffles, **leaves(self._spec))
        made = op(
            self.variant, arguments.as_int64(buffer_size), *arguments.seeds(seed), name=op.type_name
        )
        return Dataset(made, self._spec)

    def enumerate(self, start: TensorLike = 0) -> Dataset:
        """Each element with its index."""
        return Dataset.zip((Dataset.range(start, _MAX_INDEX), self))

    # Joining

    def batch(self, batch_size: Any, drop_remainder: Any = False) -> Dataset:
        """Batches of elements, stacked along a new first axis.

        Args:
            batch_size: how many elements make a batch.
            drop_remainder: drop a smaller last batch; the static shape then includes the size.

        Example:
            >>> batch = tf.data.Dataset.range(5).batch(2).make_one_shot_iterator().get_next()
            >>> [sess.run(batch).tolist() for _ in range(3)]
            [[0, 1], [2, 3], [4]]
        """
        size = (
            arguments.static_value(batch_size)
            if constant_value(arguments.as_bool(drop_remainder))
            else None
        )
        spec = structure.batched(self._spec, size)
        rest = (arguments.as_int64(batch_size), arguments.as_bool(drop_remainder))
        return self._staged(BatchDatasetV2, *rest, spec=spec)

    def padded_batch(
        self,
        batch_size: Any,
        padded_shapes: Structure = None,
        padding_values: Structure = None,
        drop_remainder: Any = False,
    ) -> Dataset:
        """Batches of elements that are padded to one shape.

        Args:
            batch_size: how many elements make a batch.
            padded_shapes: the shapes, in the structure of an element; -1 or None is the largest in
                the batch.
            padding_values: the padding; 0 or the empty string by default.
            drop_remainder: drop a smaller last batch.

        Example:
            >>> data = tf.data.Dataset.range(1, 4).map(lambda n: tf.fill([n], n))
            >>> sess.run(data.padded_batch(3, [None]).make_one_shot_iterator().get_next())
            array([[1, 0, 0],
                   [2, 2, 0],
                   [3, 3, 3]])
        """
        flat = structure.flatten(self._spec)
        if not all(isinstance(leaf, TensorSpec) for leaf in flat):
            raise TypeError("Batching of padded sparse tensors is not currently supported")
        shapes = structure.broadcast_structure(padded_shapes, self._spec)
        sizes = [arguments.padded_shape(s, leaf) for s, leaf in zip(shapes, flat, strict=True)]
        fillings = structure.broadcast_structure(padding_values, self._spec)
        values = [arguments.padding_value(v, leaf) for v, leaf in zip(fillings, flat, strict=True)]
        count = (
            arguments.static_value(batch_size)
            if constant_value(arguments.as_bool(drop_remainder))
            else None
        )
        known = [TensorShape([count]).concatenate(constant_value_as_shape(s)) for s in sizes]
        pairs = zip(flat, known, strict=True)
        spec = structure.pack(self._spec, [TensorSpec(shape, leaf.dtype) for leaf, shape in pairs])
        rest = (arguments.as_int64(batch_size), sizes, values, arguments.as_bool(drop_remainder))
        return self._staged(PaddedBatchDatasetV2, *rest, spec=spec)

    def unbatch(self) -> Dataset:
        """The rows of the elements."""
        return self._staged(UnbatchDataset, spec=structure.unbatched(self._spec))

    def window(
        self, size: Any, shift: Any = None, stride: Any = 1, drop_remainder: Any = False
    ) -> Dataset:
        """Datasets of consecutive elements.

        Args:
            size: how many elements a window has.
            shift: the distance between the starts of windows; `size` if None.
            stride: the distance between its elements.
            drop_remainder: drop smaller last windows.
        """
        spec = structure.map_structure(DatasetSpec, self._spec)
        step = size if shift is None else shift
        rest = (
            arguments.as_int64(size),
            arguments.as_int64(step),
            arguments.as_int64(stride),
            arguments.as_bool(drop_remainder),
        )
        return self._staged(WindowDataset, *rest, spec=spec)

    # Buffering

    def prefetch(self, buffer_size: Any) -> Dataset:
        """The same elements, prefetched by a background thread.

        Args:
            buffer_size: how many elements to prefetch.
        """
        return self._staged(PrefetchDataset, arguments.as_int64(buffer_size))

    def copied_to(self, device: str) -> Dataset:
        """The same elements in the memory of a device; `prefetch` after it copies ahead.

        Args:
            device: the name of the device.
        """
        return self._staged(CopyToDeviceDataset, convert_to_tensor(device, string))

    def cache(self, filename: Any = "") -> Dataset:
        """The same elements, computed in the first pass and stored for the next ones.

        Args:
            filename: a file to store them in; in memory if empty.
        """
        return self._staged(CacheDataset, convert_to_tensor(filename, string))

    # Iterators

    def make_one_shot_iterator(self) -> Iterator | MaybeNone:
        """An iterator that needs no initializer."""
        return EagerIterator(self) if executing_eagerly() else one_shot(self)

    def make_initializable_iterator(self, shared_name: str | None = None) -> Iterator:
        """An iterator that is started by its initializer."""
        if executing_eagerly():
            raise RuntimeError(
                "dataset.make_initializable_iterator is not supported when eager execution is "
                "enabled. Use `for element in dataset` instead."
            )
        return initializable(self, shared_name)

    def __iter__(self) -> EagerIterator:
        if not executing_eagerly():
            raise RuntimeError("__iter__() is only supported inside of eager execution.")
        return EagerIterator(self)

    # Options

    def options(self) -> Any:
        """The options set by `with_options`."""
        return self._options

    def with_options(self, options: Any) -> Dataset:
        """The same dataset with options."""
        result = self.with_components(self.components())
        result._options = options
        return result


DatasetSpec.dataset = Dataset


def _from_tensors(op: Any, tensors: Any, change: Callable[[Any], Any]) -> Dataset:
    with name_scope("tensors"):
        values = structure.converted(tensors)
    whole = structure.map_structure(structure.spec_of, values)
    spec = change(whole)
    made = op(sparse=sparse_leaves(whole), **leaves(spec))
    return Dataset(made(structure.tensors_of(values), name=made.type_name), spec)


def _sliced(spec: Any) -> Any:
    flat = structure.flatten(spec)
    if not flat:
        raise ValueError("from_tensor_slices needs a tensor to take rows of")
    first: Any = None
    for leaf in flat:
        size = leaf.shape.with_rank_at_least(1)[0]
        first = size if first is None else first.merge_with(size)
    return structure.unbatched(spec)


def _yielded(generator: Callable[..., Any], spec: Any, *args: Any) -> Any:
    """The elements of a generator as lists of leaves."""
    return map(partial(structure.flatten_generated, spec), iter(generator(*args)))


def _inner(traced: TracedFunction) -> Any:
    if not isinstance(traced.spec, DatasetSpec):
        raise TypeError(f"`map_func` must return a `Dataset` object, not {traced.spec!r}.")
    return traced.spec.element_spec


# Functions of datasets


@public("data.make_one_shot_iterator")
def make_one_shot_iterator(dataset: Dataset) -> Iterator | MaybeNone:
    """An iterator that needs no initializer."""
    return dataset.make_one_shot_iterator()


@public("data.make_initializable_iterator")
def make_initializable_iterator(dataset: Dataset, shared_name: str | None = None) -> Iterator:
    """An iterator that is started by its initializer.

    Args:
        dataset: a dataset.
        shared_name: a name to share the iterator between sessions by.

    Returns:
        An iterator; run its `initializer` first.

    Example:
        >>> iterator = tf.data.make_initializable_iterator(tf.data.Dataset.range(3))
        >>> number = iterator.get_next()
        >>> sess.run(iterator.initializer)
        >>> sess.run(number), sess.run(number)
        (np.int64(0), np.int64(1))
    """
    return dataset.make_initializable_iterator(shared_name)


@public("data.get_output_types")
def get_output_types(dataset_or_iterator: Described) -> Structure:
    """The dtypes of an element."""
    return dataset_or_iterator.output_types


@public("data.get_output_shapes")
def get_output_shapes(dataset_or_iterator: Described) -> Structure:
    """The shapes of an element."""
    return dataset_or_iterator.output_shapes


@public("data.get_output_classes")
def get_output_classes(dataset_or_iterator: Described) -> Structure:
    """The classes of the parts of an element."""
    return dataset_or_iterator.output_classes


publish_value("data.experimental.AUTOTUNE", AUTOTUNE)
publish_value("contrib.data.AUTOTUNE", AUTOTUNE)
publish_value("data.AUTOTUNE", AUTOTUNE)
