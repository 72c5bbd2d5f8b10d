"""Values of several tensors: IndexedSlices, SparseTensor, and entries of list gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from thalweg.graph import context
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, int64
from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.platform.described import described
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.graph.graph import Graph
    from thalweg.graph.likes import SparseLike, TensorLike


class _Composite:
    """A value of several tensors, with the dtype, the node and the graph of its `values`."""

    values: Tensor

    @property
    def dtype(self) -> DType:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def op(self) -> Node:
        """The node that makes the values."""
        return self.values.op

    @property
    def graph(self) -> Graph:
        """The graph of the values."""
        return self.values.graph


@public("IndexedSlices")
class IndexedSlices(_Composite):
    """Rows of a larger tensor that is zero elsewhere, such as the gradient of a gather.

    Args:
        values: the rows.
        indices: the index of each row; rows of the same index are summed.
        dense_shape: the shape of the larger tensor, if it is known.

    Example:
        >>> w = tf.Variable(tf.ones([1000, 2]))
        >>> (gradient,) = tf.gradients(tf.gather(w, [3, 7]), [w])
        >>> type(gradient).__name__, gradient.values.shape.as_list()
        ('IndexedSlices', [2, 2])
    """

    def __init__(self, values: Tensor, indices: Tensor, dense_shape: Tensor | None = None) -> None:
        self.values = values
        self.indices = indices
        self.dense_shape = dense_shape

    @property
    def name(self) -> str:
        """The name of the values."""
        return self.values.name

    @property
    def device(self) -> str:
        """The device of the values."""
        return self.values.device

    def components(self) -> list[Tensor]:
        """The tensors of this value."""
        tensors = [self.values, self.indices]
        return tensors if self.dense_shape is None else [*tensors, self.dense_shape]

    def __neg__(self) -> IndexedSlices:
        return IndexedSlices(-self.values, self.indices, self.dense_shape)

    def __repr__(self) -> str:
        return described(self, self.name, rows=self.values.shape, dtype=self.dtype.name)

    def __str__(self) -> str:
        shape = "" if self.dense_shape is None else f", dense_shape={self.dense_shape}"
        return f"IndexedSlices(indices={self.indices}, values={self.values}{shape})"


@public("IndexedSlicesValue")
class IndexedSlicesValue(NamedTuple):
    """The value of IndexedSlices that a session returns."""

    values: Any
    indices: Any
    dense_shape: Any


class ListEntry:
    """A contribution to the gradient of the list `like`: `write(total, *inputs)` adds it to the
    list of gradients `total` in place."""

    def __init__(self, like: Tensor, write: Op, inputs: tuple[Tensor, ...]) -> None:
        self.like = like
        self.write = write
        self.inputs = inputs

    def added_to(self, total: Tensor) -> Tensor:
        """Add this entry to a list of gradients."""
        return self.write(total, *self.inputs)


@public("SparseTensorValue")
class SparseTensorValue(NamedTuple):
    """The value of a SparseTensor that a session returns, and that feeds one.

    Args:
        indices: [count, rank].
        values: [count].
        dense_shape: [rank].

    Example:
        >>> value = sess.run(tf.SparseTensor([[1]], [5], [3]))
        >>> value.indices.tolist(), value.values.tolist()
        ([[1]], [5])
    """

    indices: Any
    values: Any
    dense_shape: Any


@public("SparseTensor")
class SparseTensor(_Composite):
    """A tensor in coordinate form: dense[indices[i]] = values[i], and zero elsewhere.

    Args:
        indices: int64 [count, rank], often in row-major order (`tf.sparse_reorder`).
        values: [count].
        dense_shape: int64 [rank].

    Example:
        >>> x = tf.SparseTensor([[0, 1], [1, 0]], [5, 6], [2, 2])
        >>> sess.run(tf.sparse_tensor_to_dense(x))
        array([[0, 5],
               [6, 0]], dtype=int32)
    """

    indices: Tensor
    values: Tensor
    dense_shape: Tensor

    def __init__(self, indices: TensorLike, values: TensorLike, dense_shape: TensorLike) -> None:
        self.indices = convert_to_tensor(indices, int64, name="SparseTensor/indices")
        self.values = convert_to_tensor(values, name="SparseTensor/values")
        self.dense_shape = convert_to_tensor(dense_shape, int64, name="SparseTensor/dense_shape")
        indices_shape = self.indices.shape.with_rank(2)
        values_shape = self.values.shape.with_rank(1)
        shape_shape = self.dense_shape.shape.with_rank(1)
        indices_shape[0].merge_with(values_shape[0])
        indices_shape[1].merge_with(shape_shape[0])

    @classmethod
    def from_value(cls, sparse_tensor_value: SparseLike) -> SparseTensor:
        """A SparseTensor from a SparseTensorValue; a SparseTensor is returned unchanged."""
        if isinstance(sparse_tensor_value, SparseTensor):
            return sparse_tensor_value
        if not isinstance(sparse_tensor_value, SparseTensorValue):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
            raise TypeError(f"Neither a SparseTensor nor SparseTensorValue: {sparse_tensor_value}.")
        return cls(*sparse_tensor_value)

    def get_shape(self) -> TensorShape:
        """The static shape of the dense form."""
        return operators["known_shape"](self.dense_shape)

    shape = property(get_shape)

    def components(self) -> list[Tensor]:
        """The tensors of this value."""
        return [self.indices, self.values, self.dense_shape]

    def eval(
        self, feed_dict: Mapping[Any, Any] | None = None, session: context.Runner | None = None
    ) -> SparseTensorValue:
        """The value in a session (the default one if none is given)."""
        return context.runner_for(self.graph, session, "eval()").run(self, feed_dict)

    def __truediv__(self, other: TensorLike) -> SparseTensor:
        return operators["sparse_truediv"](self, other)

    def __div__(self, other: TensorLike) -> SparseTensor:
        return operators["sparse_div"](self, other)

    def __mul__(self, other: TensorLike) -> SparseTensor:
        return operators["sparse_mul"](self, other)

    def __repr__(self) -> str:
        return described(self, self.values.name, shape=self.shape, dtype=self.dtype.name)

    def __str__(self) -> str:
        return (
            f"SparseTensor(indices={self.indices}, values={self.values}, "
            f"dense_shape={self.dense_shape})"
        )
