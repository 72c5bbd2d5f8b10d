"""`tf.data.experimental`: bucketing, choosing and sampling from datasets, scan, take_while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from thalweg.data import structure
from thalweg.data.dataset import Dataset, Described
from thalweg.data.functions import TracedFunction
from thalweg.data.iterator import leaves
from thalweg.data.transformations.experimental import Transformation, group_by_window, names
from thalweg.data.transformations.stateful import (
    DirectedInterleaveDataset,
    ScanDataset,
    TakeWhileDataset,
    UniqueDataset,
)
from thalweg.functions.traced.tensor_spec import TensorSpec
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import Structure, TensorLike, TensorStructure
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import as_shape
from thalweg.ops.arrays import indexing, joining, marking, searching
from thalweg.ops.core import basic, casting, checks, shaping
from thalweg.ops.examples import parsing
from thalweg.ops.math import arithmetic, reduce, transcendental
from thalweg.ops.random import random
from thalweg.public import public

_MAX_INDEX = 2**63 - 1


# Buckets


@public(*names("bucket_by_sequence_length"))
def bucket_by_sequence_length(
    element_length_func: Callable[..., Any],
    bucket_boundaries: Sequence[int],
    bucket_batch_sizes: Sequence[int],
    padded_shapes: Structure = None,
    padding_values: Structure = None,
    pad_to_bucket_boundary: bool = False,
    no_padding: bool = False,
    drop_remainder: bool = False,
) -> Transformation:
    """Padded batches of elements of similar length.

    Args:
        element_length_func: a function from the components of an element to its length.
        bucket_boundaries: the lengths at which buckets begin, except the first.
        bucket_batch_sizes: the batch size of each bucket.
        padded_shapes, padding_values: as `Dataset.padded_batch` takes them.
        pad_to_bucket_boundary: whether unknown sizes are padded to the bucket's maximum instead of
            the batch's.
        no_padding: whether all elements have one shape.
        drop_remainder: whether smaller last batches are dropped.

    Returns:
        A function from datasets to datasets, for `Dataset.apply`.

    Raises:
        ValueError: if there are not as many batch sizes as boundaries, and one.

    Example:
        >>> rows = tf.data.Dataset.range(1, 5).map(lambda n: tf.fill([n], n))
        >>> apply = tf.data.experimental.bucket_by_sequence_length(tf.size, [3], [2, 2])
        >>> batch = rows.apply(apply).make_one_shot_iterator().get_next()
        >>> sess.run(batch)
        array([[1, 0],
               [2, 2]])
    """
    if len(bucket_batch_sizes) != len(bucket_boundaries) + 1:
        raise ValueError("len(bucket_batch_sizes) must equal len(bucket_boundaries) + 1")
    sizes = np.array(bucket_batch_sizes, np.int64)
    starts = np.array([np.iinfo(np.int32).min, *bucket_boundaries], np.int64)
    ends = np.array([*bucket_boundaries, np.iinfo(np.int32).max], np.int64)

    def bucket_of(*parts: Any) -> Tensor:
        length = casting.cast(convert_to_tensor(element_length_func(*parts)), dtypes.int64)
        inside = (length >= starts) & (length < ends)
        return searching.argmax(casting.cast(inside, dtypes.int32), axis=0)

    def size_of(bucket: Tensor) -> Tensor:
        return indexing.gather(sizes, bucket)

    def batched(bucket: Tensor, group: Dataset) -> Dataset:
        if no_padding:
            return group.batch(size_of(bucket), drop_remainder)
        shapes = group.output_shapes if padded_shapes is None else padded_shapes
        if pad_to_bucket_boundary:
            last = len(bucket_boundaries)
            message = (
                "When pad_to_bucket_boundary=True, elements must have length < "
                "max(bucket_boundaries)."
            )
            fits = checks.assert_less(
                bucket, convert_to_tensor(last, dtypes.int64), message=message
            )
            end = basic.with_dependencies([fits], indexing.gather(ends, bucket))
            shapes = _filled_shapes(shapes, group.element_spec, end - 1)
        return group.padded_batch(size_of(bucket), shapes, padding_values, drop_remainder)

    return group_by_window(bucket_of, batched, window_size_func=size_of)


def _filled_shapes(shapes: Any, spec: Any, size: Tensor) -> Any:
    """The shapes with unknown sizes replaced by `size`."""
    flat = structure.broadcast_structure(shapes, spec)

    def filled(shape: Any) -> Tensor:
        sizes = [size if n is None or n == -1 else n for n in as_shape(shape).as_list()]
        if not sizes:
            return convert_to_tensor([], dtypes.int64)
        return joining.stack([casting.cast(n, dtypes.int64) for n in sizes])

    return structure.pack(spec, [filled(shape) for shape in flat])


# Several datasets


def _directed(selector: Dataset, datasets: Sequence[Dataset]) -> Dataset:
    spec = datasets[0].element_spec
    for other in datasets[1:]:
        spec = structure.common_spec(spec, other.element_spec)
    op = DirectedInterleaveDataset(**leaves(spec))
    variants = [dataset.variant for dataset in datasets]
    return Dataset(op(selector.variant, variants, name=op.type_name), spec)


@public(*names("choose_from_datasets"))
def choose_from_datasets(datasets: Sequence[Dataset], choice_dataset: Dataset) -> Dataset:
    """The elements of several datasets, in an order given by another one.

    Args:
        datasets: datasets of elements of one structure.
        choice_dataset: a dataset of int64 scalars: the index of the dataset that is next. Indices
            of exhausted datasets are skipped.

    Returns:
        A dataset.

    Example:
        >>> words = [tf.data.Dataset.from_tensors(word).repeat() for word in ("a", "b")]
        >>> chosen = tf.data.experimental.choose_from_datasets(words, tf.data.Dataset.range(2))
        >>> sess.run(chosen.batch(2).make_one_shot_iterator().get_next())
        array([b'a', b'b'], dtype=object)
    """
    wanted = TensorSpec([], dtypes.int64)
    spec = choice_dataset.element_spec
    is_number = isinstance(spec, TensorSpec) and spec.dtype is dtypes.int64
    if not is_number or not spec.shape.is_compatible_with([]):
        raise TypeError(f"`choice_dataset` must be a dataset of {wanted}, but is of {spec}")
    if not datasets:
        raise ValueError("`datasets` must not be empty.")
    return _directed(choice_dataset, datasets)


@public(*names("sample_from_datasets"))
def sample_from_datasets(
    datasets: Sequence[Dataset],
    weights: TensorLike | Dataset | None = None,
    seed: int | None = None,
) -> Dataset:
    """The elements of several datasets, each taken from a random one.

    Args:
        datasets: datasets of elements of one structure.
        weights: the probabilities of the datasets, or a dataset of such vectors; uniform for
            None.
        seed: a number that fixes the draws.

    Returns:
        A dataset, which ends when all of them have ended.

    Example:
        >>> halves = [tf.data.Dataset.range(0, 3), tf.data.Dataset.range(10, 13)]
        >>> drawn = tf.data.experimental.sample_from_datasets(halves, seed=1).batch(6)
        >>> sorted(sess.run(drawn.make_one_shot_iterator().get_next()).tolist())
        [0, 1, 2, 10, 11, 12]
    """
    if not datasets:
        raise ValueError("`datasets` must not be empty.")

    def draw(chances: Tensor) -> Tensor:
        logits = transcendental.log(shaping.expand_dims(chances, 0))
        return shaping.squeeze(random.multinomial(logits, 1, seed=seed))

    if isinstance(weights, Dataset):
        return _directed(weights.map(draw), datasets)
    given = [1.0 / len(datasets)] * len(datasets) if weights is None else weights
    chances = convert_to_tensor(given, preferred_dtype=dtypes.float32)
    if not chances.shape.is_compatible_with([len(datasets)]):
        raise ValueError("`weights` must be a vector of length `len(datasets)`.")

    def next_draw(_: Tensor) -> Tensor:
        return draw(chances)

    return _directed(Dataset.range(_MAX_INDEX).map(next_draw), datasets)


# Sequential stages


@public(*names("scan"))
def scan(initial_state: TensorStructure, scan_func: Callable[..., Any]) -> Transformation:
    """The outputs of a function that also maps a state and each element to the next state.

    Args:
        initial_state: the state to begin with, a structure of tensors.
        scan_func: a function from (state, element) to (next state, output).

    Returns:
        A function from datasets to datasets, for `Dataset.apply`.

    Example:
        >>> sums = tf.data.experimental.scan(np.int64(0), lambda total, x: (total + x, total + x))
        >>> numbers = tf.data.Dataset.range(5).apply(sums).batch(5)
        >>> sess.run(numbers.make_one_shot_iterator().get_next())
        array([ 0,  1,  3,  6, 10])
    """

    def apply(dataset: Dataset) -> Dataset:
        state = structure.converted(initial_state)
        spec = structure.map_structure(structure.spec_of, state)
        traced = _scanned(scan_func, spec, dataset)
        widened = structure.common_spec(spec, traced.spec[0])
        if widened != spec:  # the state changes shape: trace again with a wider spec
            traced = _scanned(scan_func, widened, dataset)
        given = traced.spec[1]
        op = ScanDataset(f=traced.function, **leaves(given))
        flat = structure.tensors_of(state)
        return Dataset(op(dataset.variant, flat, traced.captured, name=op.type_name), given)

    return apply


def _scanned(function: Callable[..., Any], spec: Any, dataset: Dataset) -> TracedFunction:
    traced = TracedFunction(function, "the function of scan", spec, dataset.element_spec)
    given: Any = traced.spec
    if not isinstance(given, tuple) or len(cast("tuple[Any, ...]", given)) != 2:
        raise TypeError("`scan_func` must return a pair: the new state, and what comes out.")
    return traced


@public(*names("take_while"))
def take_while(predicate: Callable[..., Any]) -> Transformation:
    """The elements before the first for which a predicate is false.

    Args:
        predicate: a function of the components of an element that returns a scalar bool tensor.

    Returns:
        A function from datasets to datasets, for `Dataset.apply`.

    Example:
        >>> small = tf.data.experimental.take_while(lambda x: x < 3)
        >>> numbers = tf.data.Dataset.range(10).apply(small).batch(10)
        >>> sess.run(numbers.make_one_shot_iterator().get_next())
        array([0, 1, 2])
    """

    def apply(dataset: Dataset) -> Dataset:
        spec = dataset.element_spec
        traced = TracedFunction(predicate, "the predicate of take_while", spec)
        given = traced.spec
        is_scalar = isinstance(given, TensorSpec) and given.shape.is_compatible_with([])
        if not is_scalar or given.dtype is not dtypes.bool:
            raise ValueError("`predicate` must return a scalar boolean tensor.")
        op = TakeWhileDataset(f=traced.function, **leaves(spec))
        return Dataset(op(dataset.variant, traced.captured, name=op.type_name), spec)

    return apply


@public(*names("unique"))
def unique() -> Transformation:
    """The distinct numbers or words, in order of first occurrence.

    Returns:
        A function from datasets to datasets, for `Dataset.apply`.

    Example:
        >>> numbers = tf.data.Dataset.from_tensor_slices([1, 37, 2, 37, 2, 1])
        >>> different = numbers.apply(tf.data.experimental.unique()).batch(6)
        >>> sess.run(different.make_one_shot_iterator().get_next())
        array([ 1, 37,  2], dtype=int32)
    """

    def apply(dataset: Dataset) -> Dataset:
        spec = dataset.element_spec
        kinds = (dtypes.int32, dtypes.int64, dtypes.string)
        if not isinstance(spec, TensorSpec) or spec.dtype not in kinds or spec.shape.rank != 0:
            raise TypeError(
                "`tf.data.experimental.unique()` only supports inputs with a single `tf.int32`, "
                f"`tf.int64`, or `tf.string` component, not {spec}"
            )
        op = UniqueDataset(**leaves(spec))
        return Dataset(op(dataset.variant, name=op.type_name), spec)

    return apply


@public(*names("parse_example_dataset"))
def parse_example_dataset(
    features: dict[str, Any], num_parallel_calls: TensorLike = 1
) -> Transformation:
    """Batches of serialized `Example` messages as dicts of tensors.

    Args:
        features: the features to parse, as for `tf.parse_example`.
        num_parallel_calls: how many batches are parsed in parallel.

    Returns:
        A function from datasets to datasets, for `Dataset.apply`.
    """
    if features is None:  # pyright: ignore[reportUnnecessaryComparison] - user input
        raise ValueError("Missing: features was None.")

    def parse(serialized: Tensor) -> dict[str, Any]:
        return parsing.parse_example(serialized, features)

    return lambda dataset: dataset.map(parse, num_parallel_calls)


@public("data.experimental.get_structure")
def get_structure(dataset_or_iterator: Described) -> Structure:
    """The spec of the elements: a structure of specs."""
    return dataset_or_iterator.element_spec


# Classes


@public(*names("rejection_resample"))
def rejection_resample(
    class_func: Callable[..., Any],
    target_dist: TensorLike,
    initial_dist: TensorLike | None = None,
    seed: int | None = None,
) -> Transformation:
    """Drops elements at random, so that classes occur with target probabilities.

    Args:
        class_func: a function from the components of an element to its class, an int32 scalar.
        target_dist: the target probabilities of the classes.
        initial_dist: their probabilities in the dataset; estimated while running if None.
        seed: a number that fixes the draws.

    Returns:
        A function from datasets to datasets of (class, element), for `Dataset.apply`.

    Example:
        >>> numbers = tf.data.Dataset.range(100)
        >>> parity = lambda x: tf.cast(x % 2, tf.int32)
        >>> odd = tf.data.experimental.rejection_resample(parity, [0.0, 1.0], [0.5, 0.5])
        >>> label, number = numbers.apply(odd).make_one_shot_iterator().get_next()
        >>> sess.run([label, number])
        [np.int32(1), np.int64(1)]
    """

    def labelled(*parts: Any) -> Any:
        element = parts[0] if len(parts) == 1 else parts
        return casting.cast(class_func(*parts), dtypes.int32), element

    def apply(dataset: Dataset) -> Dataset:
        wanted = convert_to_tensor(target_dist, preferred_dtype=dtypes.float32)

        def is_kept(pair: Any, chances: Tensor) -> Tensor:
            return _accepted(pair[0], chances, wanted, seed)

        pairs = dataset.map(labelled)
        if initial_dist is not None:
            chances = convert_to_tensor(initial_dist, wanted.dtype)
            return pairs.filter(lambda *pair: is_kept(pair, chances))
        counted = pairs.apply(scan(wanted * 0 + 1, _counted))
        return counted.filter(is_kept).map(_first)

    return apply


def _accepted(label: Tensor, chances: Tensor, wanted: Tensor, seed: int | None) -> Tensor:
    """Whether an element is kept; the most under-represented class always is."""
    tiny = convert_to_tensor(np.finfo(wanted.dtype.as_numpy_dtype).tiny, wanted.dtype)
    ratios = wanted / arithmetic.maximum(chances, tiny)
    chance = ratios / reduce.reduce_max(ratios)
    return random.random_uniform([], dtype=wanted.dtype, seed=seed) < chance[label]


def _first(pair: Any, _: Tensor) -> Any:
    return pair


def _counted(counts: Tensor, pair: Any) -> Any:
    """The counts of classes so far, which start at one: no probability is zero."""
    hot = marking.one_hot(pair[0], shaping.shape(counts)[0], dtype=counts.dtype)
    seen = counts + hot
    return seen, (pair, seen / reduce.reduce_sum(seen))
