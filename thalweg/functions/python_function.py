"""`tf.py_function`: a Python function of eager tensors as a node, with its gradient.

If a graph has its gradient, each call keeps its tape. The number of the call is an output of the
node and an input of the gradient's node, which finds the tape by it, also inside loops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thalweg.autodiff.custom import custom_gradient
from thalweg.functions.mode import eager_mode, executing_eagerly
from thalweg.functions.tape import GradientTape
from thalweg.graph import dtypes, nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.likes import DTypeLike, Structure
from thalweg.graph.node import Tensor
from thalweg.ops.core import filling, python_call
from thalweg.platform.caches import Bounded
from thalweg.public import public


class _PythonCalls:
    """The calls of one function, and their tapes until the gradient is computed."""

    def __init__(self, function: Callable[..., Any], result_dtypes: tuple[DType, ...]) -> None:
        self._function, self._dtypes = function, result_dtypes
        self._numbers = itertools.count()
        self._tapes = Bounded[int, tuple[Any, Any, Any]]("tapes of a Python function", 10_000)
        self.keeps_tapes = False

    def forward(self, *arrays: Any) -> list[Any]:
        """Call the function; its results, and the number of the call."""
        number = next(self._numbers)
        with eager_mode():
            inputs = [convert_to_tensor(array) for array in arrays]
            with GradientTape(persistent=True) as tape:
                tape.watch(inputs)
                outputs = self.convert_results(self._function(*inputs))
            if self.keeps_tapes:
                self._tapes[number] = tape, inputs, outputs
            return [*map(np.asarray, outputs), np.int64(number)]

    def backward(self, number: Any, *arrays: Any) -> list[Any]:
        """The gradients of a call's inputs, from those of its results."""
        tape, inputs, outputs = self._tapes.pop(int(number))
        with eager_mode():
            dxs = tape.gradient(outputs, inputs, list(arrays), unconnected_gradients="zero")
            return list(map(np.asarray, dxs))

    def convert_results(self, returned: Any) -> list[Tensor]:
        """The function's results as tensors of the declared dtypes."""
        values = [] if returned is None and not self._dtypes else nest.as_list(returned)
        if len(values) != len(self._dtypes):
            raise ValueError(
                f"a function of {len(self._dtypes)} results returned {len(values)} values"
            )
        return [
            convert_to_tensor(value, dtype)
            for value, dtype in zip(values, self._dtypes, strict=True)
        ]


@public("py_function", "contrib.eager.py_func")
def py_function(
    func: Callable[..., Any],
    inp: Sequence[Any],
    Tout: DTypeLike | Sequence[DTypeLike],  # noqa: N803 - TensorFlow's name
    name: str | None = None,
) -> Structure:
    """The results of a Python function of eager tensors, as tensors with gradients.

    The function runs on the host in every step and cannot be saved with the graph.

    Args:
        func: a function of eager tensors that returns a tensor, or a list of them.
        inp: the tensors to call it with.
        Tout: the dtype of the result, or a list of dtypes.
        name: the name of the node.

    Returns:
        A tensor or a list of them, of unknown shapes: see `Tensor.set_shape`.

    Example:
        >>> def log_huber(x, m):
        ...     return x**2 if abs(x) <= m else m**2 * (1 - 2 * tf.log(m) + tf.log(x**2))
        >>> x = tf.constant(3.0)
        >>> y = tf.py_function(log_huber, [x, 4.0], tf.float32)
        >>> sess.run([y, tf.gradients(y, x)[0]])
        [np.float32(9.0), np.float32(6.0)]
    """
    is_list = isinstance(Tout, list | tuple)
    result_dtypes = tuple(as_dtype(dtype) for dtype in nest.as_list(Tout))
    calls = _PythonCalls(func, result_dtypes)
    inputs = [convert_to_tensor(value) for value in inp]
    if executing_eagerly():
        results: Any = calls.convert_results(func(*inputs))
    elif not result_dtypes:
        return python_call.py_func(lambda *xs: calls.forward(*xs)[:0], inputs, [], name=name)
    else:
        results = _differentiable(calls, result_dtypes, name)(*inputs)
    return list(results) if is_list else results[0]


def _differentiable(calls: _PythonCalls, result_dtypes: tuple[DType, ...], name: str | None) -> Any:
    """The function as a node, with its gradient as another node."""

    @custom_gradient
    def call(*inputs: Tensor) -> Any:
        results: Any = python_call.py_func(
            calls.forward, list(inputs), [*result_dtypes, dtypes.int64], name=name
        )
        *outputs, number = results

        def gradient(*dys: Any) -> Any:
            calls.keeps_tapes = True
            seeds = [
                filling.zeros_like(y) if dy is None else convert_to_tensor(dy)
                for y, dy in zip(outputs, dys, strict=True)
            ]
            dxs: Any = python_call.py_func(
                calls.backward, [number, *seeds], [x.dtype.base_dtype for x in inputs]
            )
            for dx, x in zip(dxs, inputs, strict=True):
                dx.set_shape(x.shape)
            return dxs

        return outputs, gradient

    return call
