"""The base classes of elementwise ops, and the factories of their public functions.

This module imports no other family: families import each other as modules and use them at call
time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from thalweg.graph.composite import SparseTensor
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, broadcast_shapes
from thalweg.platform.docstrings import NAME, composed
from thalweg.platform.dtype_traits import is_narrow_float, widened
from thalweg.public import public


class Elementwise(Op, abstract=True):
    """Computes each output element from the corresponding elements of the broadcast inputs.

    Narrow floats are computed as float32 and rounded once: a kernel of several NumPy functions
    would round, and overflow, after each.
    """

    elementwise = True
    #: false if the definition rounds intermediate results
    rounds_once: ClassVar[bool] = True

    def __init_subclass__(cls, *, name: str = "", abstract: bool = False) -> None:
        super().__init_subclass__(name=name, abstract=abstract)
        own = None if abstract or not cls.rounds_once else vars(cls).get("numpy")
        if own is not None and cls.parsed.outputs[0].type == cls.parsed.inputs[0].type:
            cls.numpy = _rounded_once(own)

    def shape(self, *inputs: Tensor) -> TensorShape:
        if len(inputs) == 1:
            return inputs[0].shape
        return broadcast_shapes(*[tensor.shape for tensor in inputs])


def _rounded_once(kernel: Any) -> Callable[..., Any]:
    binds = hasattr(kernel, "__get__")  # a ufunc does not

    def numpy(self: Elementwise, *inputs: Any) -> Any:
        compute = kernel.__get__(self) if binds else kernel
        dtype = np.asarray(inputs[0]).dtype
        if not is_narrow_float(dtype):
            return compute(*inputs)
        with np.errstate(over="ignore"):
            return np.asarray(compute(*(widened(np.asarray(x)) for x in inputs))).astype(dtype)

    return numpy


class Unary(Elementwise, abstract=True):
    """y = f(x)"""

    signature = "x: T -> y: T"


class Binary(Elementwise, abstract=True):
    """z = f(x, y)"""

    signature = "x: T, y: T -> z: T"


class Comparison(Elementwise, abstract=True):
    """z = x ? y"""

    signature = "x: T, y: T -> z: bool"
    not_differentiable = True


def unary(kind: type[Op], *names: str) -> Callable[..., Any]:
    """The public function of a unary op; of a SparseTensor it maps the values.

    Its parameter is `x`, or `features` where the signature says so, as activations do.
    """
    op = kind()

    def function(x: Any, name: str | None = None) -> Any:
        if isinstance(x, SparseTensor):
            return SparseTensor(x.indices, op(x.values, name=name), x.dense_shape)
        return op(x, name=name)

    def of_features(features: Any, name: str | None = None) -> Any:
        return function(features, name)

    is_activation = kind.parsed.inputs[0].name == "features"
    taken = f"{_accepted(kind)}, or a SparseTensor, whose values are mapped."
    if is_activation:
        return _publish(of_features, kind, names, {"features": taken})
    return _publish(function, kind, names, {"x": taken})


def binary(kind: type[Op], *names: str) -> Callable[..., Tensor]:
    """The public function of a binary op."""
    op = kind()

    def function(x: Any, y: Any, name: str | None = None) -> Tensor:
        return op(x, y, name=name)

    taken = {
        "x": f"{_accepted(kind)}.",
        "y": "a tensor of the same dtype, of a shape that broadcasts.",
    }
    return _publish(function, kind, names, taken)


def _publish(
    function: Callable[..., Any], kind: type[Op], names: tuple[str, ...], taken: dict[str, str]
) -> Callable[..., Any]:
    function.__doc__ = composed(kind.__doc__, taken | {"name": NAME}, _returned(kind))
    function.__name__ = function.__qualname__ = (
        names[0].rpartition(".")[2] if names else kind.__name__
    )
    function.__module__ = kind.__module__
    return public(*names)(function) if names else function


def _accepted(kind: type[Op]) -> str:
    """A description of the first input: "a tensor (floating or complex)"."""
    dtype = kind.parsed.inputs[0].type
    named = [part.partition(": ") for part in kind.signature.partition("; ")[2].split(", ")]
    groups = {name: group for name, _, group in named}.get(dtype, dtype)
    return f"a tensor ({groups.replace('|', ' or ')})" if groups != "T" else "a tensor"


def _returned(kind: type[Op]) -> str:
    inputs, output = kind.parsed.inputs, kind.parsed.outputs[0]
    shape = f"the shape of `{inputs[0].name}`" if len(inputs) == 1 else "the broadcast shape"
    if output.type == inputs[0].type:
        return f"A tensor of {shape} and the same dtype."
    return f"A {output.type} tensor of {shape}." if output.fixed else f"A tensor of {shape}."
