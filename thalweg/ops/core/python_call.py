"""Calls of Python functions from inside a step.

`py_func` wraps a function of NumPy arrays as a node. The node refers to its function by a token;
the function lives as long as the node's graph.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph import nest
from thalweg.graph.analysis.effects import Resource, writes
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.likes import DTypeLike, Structure
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.ops.core.context import Context
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.platform.compat import as_bytes
from thalweg.public import public

#: The error for each exception type of the user's function; UnknownError for all others.
_TRANSLATED: tuple[tuple[type[Exception], type[errors.OpError]], ...] = (
    (NotImplementedError, errors.UnimplementedError),
    (StopIteration, errors.OutOfRangeError),
    (TypeError, errors.InvalidArgumentError),
    (ValueError, errors.InvalidArgumentError),
)


class Functions:
    """The wrapped functions by token."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        self._numbers = itertools.count()

    def insert(self, function: Callable[..., Any], graph: Graph) -> str:
        """Store a function for the lifetime of `graph`; returns its token."""
        token = f"pyfunc_{next(self._numbers)}"
        self._functions[token] = function
        if graph.is_eager:
            return token  # called once: eager code removes it afterwards
        weakref.finalize(graph, self._functions.pop, token)
        return token

    def find(self, token: str) -> Callable[..., Any]:
        """The function of a token; raises FailedPreconditionError if its graph is gone."""
        if token not in self._functions:
            raise errors.FailedPreconditionError(
                None, None, f"callback {token} is not found: the graph that wrapped it is gone"
            )
        return self._functions[token]

    def forget(self, token: str) -> None:
        """Remove a function."""
        self._functions.pop(token, None)

    def size(self) -> int:
        """The number of stored functions."""
        return len(self._functions)


functions = _py_funcs = Functions()


class PyFunc(Op):
    """output = function(*input), computed by Python; the function may have effects."""

    signature = "input: [Tin] -> output: [Tout]"
    effects = (writes(Resource.PYTHON),)
    stateful = True
    blocking = True  # the function may wait for another Python function of the step
    host_only = True
    not_differentiable = True
    token: str
    Tout: tuple[DType, ...]

    def shape(self, input: list[Tensor]) -> list[TensorShape]:
        return [unknown_shape()] * len(self.Tout)

    def kernel(self, context: Context, input: list[Array]) -> list[Array]:
        return self._call(input)

    def _call(self, input: list[Array]) -> list[Array]:
        function = functions.find(self.token)
        try:
            # Copies, as the function may write to its arguments.
            returned = function(*(np.array(value) for value in input))
        except errors.OpError:
            raise
        except Exception as error:
            raise _translated(error) from error
        return self._outputs(returned)

    def _outputs(self, returned: Any) -> list[Array]:
        values = _as_list(returned) if self.Tout or returned is not None else []
        if len(values) != len(self.Tout):
            raise errors.invalid(
                f"{self.token} returns {len(values)} values, but expects to see "
                f"{len(self.Tout)} values."
            )
        return [self._checked(i, value) for i, value in enumerate(values)]

    def _checked(self, position: int, value: Any) -> Array:
        array = _as_array(value)
        actual, wanted = as_dtype(array.dtype), self.Tout[position]
        if actual is not wanted.base_dtype:
            raise errors.invalid(
                f"{position}-th value returned by {self.token} is {actual.name}, "
                f"but expects {wanted.name}"
            )
        return array


class PyFuncStateless(PyFunc, name="PyFuncStateless"):
    """output = function(*input), computed by Python from its inputs alone."""

    stateful = False
    effects = ()

    def kernel(self, context: Context, input: list[Array]) -> list[Array]:
        if input:
            return self._call(input)
        return context.state(lambda: self._call(input))  # without inputs it is a constant


def _translated(error: Exception) -> errors.OpError:
    message = f"{type(error).__name__}: {error}"
    for kind, ours in _TRANSLATED:
        if isinstance(error, kind):
            return ours(None, None, message)
    return errors.UnknownError(None, None, message)


def _as_list(returned: Any) -> list[Any]:
    if isinstance(returned, list | tuple):
        return list(cast("Sequence[Any]", returned))
    return [returned]


def _as_array(value: Any) -> Array:
    array = np.asarray(value, order="C")
    if array.dtype.kind in "SU":
        # Fixed-width arrays pad with zero bytes: use the original elements.
        whole = array if array is value else np.asarray(value, dtype=object)
        return text.text_of([as_bytes(item) for item in whole.ravel().tolist()], array.shape)
    if array.dtype.kind == "V":
        raise errors.UnimplementedError(None, None, f"Unsupported numpy type {array.dtype}")
    if array.dtype == object:
        return _text_objects(array)
    return array.view()  # flags of the user's array are not changed


def _text_objects(array: Array) -> Array:
    for item in array.ravel():
        if not isinstance(item, str | bytes):
            raise errors.UnimplementedError(
                None, None, f"Unsupported object type {type(item).__name__}"
            )
    return text.mapped(as_bytes, array)


@public("py_func")
def py_func(
    func: Callable[..., Any],
    inp: Sequence[Any],
    Tout: DTypeLike | Sequence[DTypeLike],  # noqa: N803 - TensorFlow's name
    stateful: bool = True,
    name: str | None = None,
) -> Structure:
    """The results of a Python function, as tensors.

    The function runs on the host in every step, holds the GIL, cannot be saved with the graph, and
    has no gradient.

    Args:
        func: a function of NumPy arrays that returns an array, or a list of them.
        inp: the tensors to call it with.
        Tout: the dtype of the result, or a list of dtypes.
        stateful: False allows equal calls to be merged.
        name: the name of the node.

    Returns:
        A tensor or a list of them, of unknown shapes: see `Tensor.set_shape`.

    Example:
        >>> y = tf.py_func(lambda x: np.sort(x), [[3.0, 1.0, 2.0]], tf.float32)
        >>> sess.run(y)
        array([1., 2., 3.], dtype=float32)
    """
    is_list = isinstance(Tout, list | tuple)
    kinds = tuple(as_dtype(kind) for kind in nest.as_list(Tout))
    graph = next((v.graph for v in inp if isinstance(v, Tensor)), get_default_graph())
    kind = PyFunc if stateful else PyFuncStateless
    outputs = kind(token=functions.insert(func, graph), Tout=kinds)(list(inp), name=name)
    if stateful and not kinds and not graph.is_eager:
        return graph.nodes[-1]  # nothing to fetch but the node itself
    return outputs if is_list else outputs[0]


@public("numpy_function")
def numpy_function(
    func: Callable[..., Any],
    inp: Sequence[Any],
    Tout: DTypeLike | Sequence[DTypeLike],  # noqa: N803 - TensorFlow's name
    name: str | None = None,
) -> Structure:
    """The results of a Python function of NumPy arrays, called each time the node runs.

    Args:
        func: a function of arrays that gives an array, or a list of them.
        inp: the tensors to call it with.
        Tout: the dtype of the result, or a list of dtypes.
        name: the name of the node.

    Returns:
        A tensor or a list of them, of unknown shapes: see `Tensor.set_shape`.

    Example:
        >>> sess.run(tf.numpy_function(np.sort, [[3.0, 1.0, 2.0]], tf.float32))
        array([1., 2., 3.], dtype=float32)
    """
    return py_func(func, inp, Tout, stateful=True, name=name)
