"""`tf.py_function`: a Python function of eager tensors as a node, with its gradient.

Where a graph asks for the gradient, each call keeps the tape it ran under; the number of the call
flows to the node of the gradient, which finds the tape by it, also from inside loops.
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


class _Calls:
    """The calls of one function: what each computed, as long as its gradient may be asked for."""

    def __init__(self, function: Callable[..., Any], results: tuple[DType, ...]) -> None:
        self._function, self._results = function, results
        self._numbers = itertools.count()
        self._tapes = Bounded[int, tuple[Any, Any, Any]]("tapes of a Python function", 10_000)
        self.keeps_tapes = False

    def forward(self, *arrays: Any) -> list[Any]:
        """The results of the function of arrays, and the number of the call."""
        number = next(self._numbers)
        with eager_mode():
            inputs = [convert_to_tensor(array) for array in arrays]
            with GradientTape(persistent=True) as tape:
                tape.watch([x for x in inputs if x.dtype.is_floating or x.dtype.is_complex])
                returned = self._function(*inputs)
                outputs = self.converted(returned)
            if self.keeps_tapes:
                self._tapes[number] = tape, inputs, outputs
            return [*(_array(y) for y in outputs), np.int64(number)]

    def backward(self, number: Any, *arrays: Any) -> list[Any]:
        """The gradients of a call's inputs, given those of its results."""
        tape, inputs, outputs = self._tapes.pop(int(number))
        with eager_mode():
            pairs = [
                (y, convert_to_tensor(dy))
                for y, dy in zip(outputs, arrays, strict=True)
                if y.dtype.is_floating or y.dtype.is_complex
            ]
            targets, given = [y for y, _ in pairs], [dy for _, dy in pairs]
            found = tape.gradient(targets, inputs, given, unconnected_gradients="zero")
            return [_array(dx) for dx in found]

    def converted(self, returned: Any) -> list[Tensor]:
        """What the function returned, as tensors of the dtypes that were promised."""
        values = [] if returned is None and not self._results else nest.as_list(returned)
        if len(values) != len(self._results):
            raise ValueError(
                f"a function of {len(self._results)} results returned {len(values)} values"
            )
        return [
            convert_to_tensor(value, kind)
            for value, kind in zip(values, self._results, strict=True)
        ]


def _array(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


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
    kinds = tuple(as_dtype(kind) for kind in nest.as_list(Tout))
    calls = _Calls(func, kinds)
    inputs = [convert_to_tensor(value) for value in inp]
    if executing_eagerly():
        results: Any = calls.converted(func(*inputs))
    elif not kinds:
        return python_call.py_func(lambda *xs: calls.forward(*xs)[:0], inputs, [], name=name)
    else:
        results = _differentiable(calls, kinds, name)(*inputs)
    return list(results) if is_list else results[0]


def _differentiable(calls: _Calls, kinds: tuple[DType, ...], name: str | None) -> Any:
    """The function as a node whose gradient is another one."""

    @custom_gradient
    def call(*inputs: Tensor) -> Any:
        made: Any = python_call.py_func(
            calls.forward, list(inputs), [*kinds, dtypes.int64], name=name
        )
        *outputs, number = made

        def gradient(*dys: Any) -> Any:
            calls.keeps_tapes = True
            given = [
                filling.zeros_like(y) if dy is None else convert_to_tensor(dy)
                for y, dy in zip(outputs, dys, strict=True)
            ]
            back: Any = python_call.py_func(
                calls.backward, [number, *given], [x.dtype.base_dtype for x in inputs]
            )
            for dx, x in zip(back, inputs, strict=True):
                dx.set_shape(x.shape)
            return [
                dx if x.dtype.is_floating or x.dtype.is_complex else None
                for dx, x in zip(back, inputs, strict=True)
            ]

        return outputs, gradient

    return call
