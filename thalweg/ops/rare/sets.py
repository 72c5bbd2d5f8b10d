"""Sets along the last axis of tensors: sizes, unions, intersections, differences; edit distances.

Each row of a dense tensor, and each group of a sparse one with equal indices but the last, is a set
(for edit distances: a sequence). Results are sparse, with sorted sets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.composite import SparseTensor
from thalweg.graph.likes import SparseLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, matrix, unknown_shape, vector
from thalweg.ops.core import densify, shaping
from thalweg.ops.sparse.sparse import as_sparse, check_indices
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.public import public

Groups = dict[tuple[int, ...], list[Any]]

_ELEMENTS = "T: int8|int16|int32|int64|uint8|uint16|string"
_DTYPES = (
    dtypes.int8,
    dtypes.int16,
    dtypes.int32,
    dtypes.int64,
    dtypes.uint8,
    dtypes.uint16,
    dtypes.string,
)


def sparse_groups(indices: Array, values: Array, shape: Array, ordered: bool) -> Groups:
    """The values of a sparse tensor, grouped by all indices but the last."""
    check_indices(indices, shape, ordered)
    groups: Groups = defaultdict(list)
    for place, value in zip(indices[:, :-1].tolist(), values, strict=True):
        groups[tuple(place)].append(value)
    return groups


def _dense_groups(array: Array) -> Groups:
    return {place: list(array[place]) for place in np.ndindex(array.shape[:-1])}


class SetSize(Op):
    """The number of distinct elements of each set."""

    signature = "set_indices: int64, set_values: T, set_shape: int64 -> size: int32; " + _ELEMENTS
    host_only = True
    not_differentiable = True
    validate_indices: bool = True

    def shape(self, set_indices: Tensor, set_values: Tensor, set_shape: Tensor) -> TensorShape:
        return unknown_shape()

    def numpy(self, set_indices: Array, set_values: Array, set_shape: Array) -> Array:
        sizes = np.zeros(tuple(set_shape[:-1].tolist()), np.int32)
        groups = sparse_groups(set_indices, set_values, set_shape, self.validate_indices)
        for place, members in groups.items():
            sizes[place] = len(set(members))
        return sizes


@public("sets.set_size", "sets.size", "contrib.metrics.set_size")
def set_size(a: SparseLike, validate_indices: bool = True) -> Tensor:
    """The number of distinct elements in each last-axis group of a SparseTensor."""
    sparse = densify.convert_to_tensor_or_sparse_tensor(a, name="a")
    if not isinstance(sparse, SparseTensor):
        raise TypeError(f"Expected `SparseTensor`, got {sparse}.")
    if sparse.values.dtype.base_dtype not in _DTYPES:
        raise TypeError(f"Invalid dtype {sparse.values.dtype}.")
    return SetSize(validate_indices=validate_indices)(*sparse.components())


_OPERATIONS: dict[str, Callable[[set[Any], set[Any]], set[Any]]] = {
    "intersection": lambda a, b: a & b,
    "union": lambda a, b: a | b,
    "a-b": lambda a, b: a - b,
    "b-a": lambda a, b: b - a,
}


class SetOperation(Op, abstract=True):
    """Combines corresponding sets of two tensors."""

    host_only = True
    not_differentiable = True
    set_operation: str
    validate_indices: bool = True

    def result_shapes(self, rank: int | None) -> list[TensorShape]:
        if self.set_operation not in _OPERATIONS:
            raise ValueError(f"Invalid set_operation {self.set_operation!r}")
        return [matrix(None, rank), vector(None), vector(rank)]

    def combined(
        self, a: Groups, a_shape: Sequence[int], b: Groups, b_shape: Sequence[int], kind: Any
    ) -> tuple[Array, Array, Array]:
        if tuple(a_shape[:-1]) != tuple(b_shape[:-1]):
            raise ValueError(
                f"Mismatched group shapes: {list(a_shape[:-1])} and {list(b_shape[:-1])}"
            )
        combine = _OPERATIONS[self.set_operation]
        rows: list[tuple[int, ...]] = []
        values: list[Any] = []
        largest = 0
        for place in np.ndindex(*map(int, a_shape[:-1])):
            members = sorted(combine(set(a.get(place, ())), set(b.get(place, ()))))
            rows += [(*place, position) for position in range(len(members))]
            values += members
            largest = max(largest, len(members))
        indices = np.array(rows, np.int64).reshape(-1, len(a_shape))
        shape = np.array([*a_shape[:-1], largest], np.int64)
        return indices, text.text_of(values) if kind.kind == "O" else np.array(values, kind), shape

    def sparse(self, indices: Array, values: Array, shape: Array) -> Groups:
        return sparse_groups(indices, values, shape, self.validate_indices)


class DenseToDenseSetOperation(SetOperation):
    """Combines corresponding sets in the rows of two dense tensors."""

    signature = (
        "set1: T, set2: T -> result_indices: int64, result_values: T, result_shape: int64; "
        + _ELEMENTS
    )

    def shape(self, set1: Tensor, set2: Tensor) -> list[TensorShape]:
        first, second = (tensor.shape.with_rank_at_least(2) for tensor in (set1, set2))
        if first.rank is None or second.rank is None:
            return self.result_shapes(second.rank if first.rank is None else first.rank)
        first[:-1].merge_with(second.with_rank(first.rank)[:-1])
        return self.result_shapes(first.rank)

    def numpy(self, set1: Array, set2: Array) -> tuple[Array, Array, Array]:
        a, b = _dense_groups(set1), _dense_groups(set2)
        return self.combined(a, set1.shape, b, set2.shape, set1.dtype)


class DenseToSparseSetOperation(SetOperation):
    """Combines corresponding sets in the rows of a dense tensor and a sparse one."""

    signature = (
        "set1: T, set2_indices: int64, set2_values: T, set2_shape: int64 -> "
        "result_indices: int64, result_values: T, result_shape: int64; " + _ELEMENTS
    )

    def shape(
        self, set1: Tensor, set2_indices: Tensor, set2_values: Tensor, set2_shape: Tensor
    ) -> list[TensorShape]:
        set1.shape.with_rank_at_least(2)
        rank = set1.shape.rank
        return self.result_shapes(set2_shape.shape.with_rank(1)[0].value if rank is None else rank)

    def numpy(
        self, set1: Array, set2_indices: Array, set2_values: Array, set2_shape: Array
    ) -> tuple[Array, Array, Array]:
        b = self.sparse(set2_indices, set2_values, set2_shape)
        return self.combined(_dense_groups(set1), set1.shape, b, set2_shape.tolist(), set1.dtype)


class SparseToSparseSetOperation(SetOperation):
    """Combines corresponding sets of two sparse tensors."""

    signature = (
        "set1_indices: int64, set1_values: T, set1_shape: int64, set2_indices: int64, "
        "set2_values: T, set2_shape: int64 -> "
        "result_indices: int64, result_values: T, result_shape: int64; " + _ELEMENTS
    )

    def shape(self, *inputs: Tensor) -> list[TensorShape]:
        inputs[2].shape.with_rank(1)[0].merge_with(inputs[5].shape.with_rank(1)[0])
        return self.result_shapes(None)

    def numpy(
        self,
        set1_indices: Array,
        set1_values: Array,
        set1_shape: Array,
        set2_indices: Array,
        set2_values: Array,
        set2_shape: Array,
    ) -> tuple[Array, Array, Array]:
        a = self.sparse(set1_indices, set1_values, set1_shape)
        b = self.sparse(set2_indices, set2_values, set2_shape)
        return self.combined(a, set1_shape.tolist(), b, set2_shape.tolist(), set1_values.dtype)


def _operation(a: Any, b: Any, name: str, validate_indices: bool) -> SparseTensor:
    kinds = {
        (False, False): DenseToDenseSetOperation,
        (False, True): DenseToSparseSetOperation,
        (True, True): SparseToSparseSetOperation,
    }
    kind = kinds[isinstance(a, SparseTensor), isinstance(b, SparseTensor)]
    parts = [*_components(a), *_components(b)]
    return SparseTensor(*kind(set_operation=name, validate_indices=validate_indices)(*parts))


def _components(value: Tensor | SparseTensor) -> list[Tensor]:
    return value.components() if isinstance(value, SparseTensor) else [value]


def _dense_first(a: Any, b: Any) -> tuple[Any, Any, bool]:
    """Both operands converted, a dense one before a sparse one; and whether they are swapped."""
    first = densify.convert_to_tensor_or_sparse_tensor(a, name="a")
    if first.dtype.base_dtype not in _DTYPES:
        raise TypeError(f"'a' invalid dtype {first.dtype}.")
    second = densify.convert_to_tensor_or_sparse_tensor(b, name="b")
    if second.dtype.base_dtype is not first.dtype.base_dtype:
        raise TypeError(f"Types don't match, {first.dtype} vs {second.dtype}.")
    if isinstance(first, SparseTensor) and not isinstance(second, SparseTensor):
        return second, first, True
    return first, second, False


@public("sets.set_intersection", "sets.intersection", "contrib.metrics.set_intersection")
def set_intersection(
    a: TensorLike | SparseLike, b: TensorLike | SparseLike, validate_indices: bool = True
) -> SparseTensor:
    """The intersections of corresponding sets."""
    first, second, _ = _dense_first(a, b)
    return _operation(first, second, "intersection", validate_indices)


@public("sets.set_difference", "sets.difference", "contrib.metrics.set_difference")
def set_difference(
    a: TensorLike | SparseLike,
    b: TensorLike | SparseLike,
    aminusb: bool = True,
    validate_indices: bool = True,
) -> SparseTensor:
    """The differences of corresponding sets."""
    first, second, swapped = _dense_first(a, b)
    return _operation(first, second, "a-b" if aminusb != swapped else "b-a", validate_indices)


@public("sets.set_union", "sets.union", "contrib.metrics.set_union")
def set_union(
    a: TensorLike | SparseLike, b: TensorLike | SparseLike, validate_indices: bool = True
) -> SparseTensor:
    """The unions of corresponding sets."""
    first, second, _ = _dense_first(a, b)
    return _operation(first, second, "union", validate_indices)


class EditDistance(Op):
    """The Levenshtein distance between each pair of sequences."""

    signature = (
        "hypothesis_indices: int64, hypothesis_values: T, hypothesis_shape: int64, "
        "truth_indices: int64, truth_values: T, truth_shape: int64 -> output: float32"
    )
    host_only = True
    not_differentiable = True
    normalize: bool = True

    def shape(self, *inputs: Tensor) -> TensorShape:
        rank = inputs[2].shape.with_rank(1)[0].merge_with(inputs[5].shape.with_rank(1)[0]).value
        sizes = [shaping.known_shape(inputs[position]).sizes for position in (2, 5)]
        if None in sizes:
            return unknown_shape(None if rank is None else rank - 1)
        pairs = list(zip(*(s or () for s in sizes), strict=True))[:-1]
        return TensorShape.of(tuple(None if None in p else max(p) for p in pairs))

    def numpy(
        self,
        hypothesis_indices: Array,
        hypothesis_values: Array,
        hypothesis_shape: Array,
        truth_indices: Array,
        truth_values: Array,
        truth_shape: Array,
    ) -> Array:
        # Sequences may be longer than the last size, as in TensorFlow.
        sizes = _covering(hypothesis_shape, hypothesis_indices)
        hypotheses = sparse_groups(hypothesis_indices, hypothesis_values, sizes, False)
        sizes = _covering(truth_shape, truth_indices)
        truths = sparse_groups(truth_indices, truth_values, sizes, False)
        shape = np.maximum(hypothesis_shape, truth_shape)[:-1]
        distances = np.zeros(tuple(shape.tolist()), np.float32)
        for place in np.ndindex(distances.shape):
            distances[place] = self._distance(hypotheses.get(place, []), truths.get(place, []))
        return distances

    def _distance(self, hypothesis: list[Any], truth: list[Any]) -> float:
        distance = levenshtein(hypothesis, truth)
        if not self.normalize:
            return distance
        if truth:
            return distance / len(truth)
        return float("inf") if hypothesis else 0.0


def _covering(shape: Array, indices: Array) -> Array:
    """The shape, with the last size extended to cover all indices."""
    longest = int(indices[:, -1].max(initial=-1)) + 1
    return np.append(shape[:-1], max(int(shape[-1]), longest))


def levenshtein(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The minimum number of insertions, deletions and replacements that turn `a` into `b`."""
    row = list(range(len(b) + 1))
    for i, item in enumerate(a, start=1):
        before, row = row, [i]
        for j, other in enumerate(b, start=1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (item != other)))
    return row[-1]


@public("edit_distance")
def edit_distance(
    hypothesis: SparseLike, truth: SparseLike, normalize: bool = True, name: str = "edit_distance"
) -> Tensor:
    """Levenshtein distances between the sequences of two SparseTensors, relative to the truth's.

    Args:
        hypothesis: a SparseTensor of sequences along the last axis.
        truth: another of the same rank.
        normalize: whether distances are divided by the length of the truth.
        name: the name of the node.

    Returns:
        A float32 tensor without the last axis.

    Example:
        >>> one = tf.SparseTensor([[0, 0], [0, 1]], ["a", "b"], [1, 2])
        >>> two = tf.SparseTensor([[0, 0], [0, 1]], ["a", "c"], [1, 2])
        >>> sess.run(tf.edit_distance(one, two))
        array([0.5], dtype=float32)
    """
    first, second = as_sparse(hypothesis), as_sparse(truth)
    op = EditDistance(normalize=normalize)
    return op(*first.components(), *second.components(), name=name)
