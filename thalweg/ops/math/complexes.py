"""Complex numbers: construction, parts and conjugates.

Gradients follow the convention that L real gives dL/dz = ∂L/∂Re z + i ∂L/∂Im z.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node, Tensor
from thalweg.ir.expr import Expr, call
from thalweg.ops.core import broadcast, casting, filling
from thalweg.ops.core.elementwise import Elementwise, Unary
from thalweg.public import public

_COMPLEX: dict[DType, DType] = {
    dtypes.float32: dtypes.complex64,
    dtypes.float64: dtypes.complex128,
}


class Complex(Elementwise):
    """z = x + i y"""

    signature = "real: T, imag: T -> out: Tout; T: float32|float64, Tout: complex"
    Tout: DType

    def numpy(self, real: Any, imag: Any) -> Any:
        shape = np.broadcast_shapes(np.shape(real), np.shape(imag))
        number = np.empty(shape, self.Tout.as_numpy_dtype)
        number.real, number.imag = real, imag
        return number

    def element(self, real: Expr, imag: Expr) -> Expr:
        return call("complex", real, imag)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        return broadcast.both(node.inputs, real(dz), imag(dz))


@public("complex", "dtypes.complex")
def complex_number(real: Any, imag: Any, name: str | None = None) -> Tensor:
    """The complex numbers of given real and imaginary parts."""
    parts = convert_to_tensor(real, name="real"), convert_to_tensor(imag, name="imag")
    kinds = [part.dtype.base_dtype for part in parts]
    if kinds[0] is not kinds[1] or kinds[0] not in _COMPLEX:
        raise TypeError(
            f"real and imag have incorrect types: {kinds[0].name} {kinds[1].name}; both must be "
            "float32 or both float64"
        )
    return Complex(Tout=_COMPLEX[kinds[0]])(*parts, name=name)


def from_real(x: Tensor) -> Tensor:
    """A real tensor as a complex one."""
    return casting.cast(x, _COMPLEX[x.dtype.base_dtype])


class Part(Elementwise, abstract=True):
    """A real number from a complex one."""

    signature = "input: T -> output: Tout; T: complex, Tout: float32|float64"
    Tout: DType


class Real(Part):
    """y = Re x"""

    def numpy(self, input: Any) -> Any:
        return np.real(input)

    def element(self, input: Expr) -> Expr:
        return call("real", input)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return from_real(dy)


@public("real", "math.real")
def real(input: Any, name: str | None = None) -> Tensor:
    """The real parts of complex numbers.

    Args:
        input: a numeric tensor; a real one is returned unchanged.
        name: the name of the node.

    Returns:
        A real tensor of the same shape.

    Example:
        >>> sess.run(tf.real(tf.constant([1 + 2j])))
        array([1.])
    """
    tensor = convert_to_tensor(input, name="input")
    kind = tensor.dtype.base_dtype
    return Real(Tout=kind.real_dtype)(tensor, name=name) if kind.is_complex else tensor


class Imag(Part):
    """y = Im x"""

    def numpy(self, input: Any) -> Any:
        return np.imag(input)

    def element(self, input: Expr) -> Expr:
        return call("imag", input)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return complex_number(filling.zeros_like(dy), dy)


@public("imag", "math.imag")
def imag(input: Any, name: str | None = None) -> Tensor:
    """The imaginary parts; zeros for a real tensor."""
    tensor = convert_to_tensor(input, name="input")
    kind = tensor.dtype.base_dtype
    if not kind.is_complex:
        return filling.zeros_like(tensor, name=name)
    return Imag(Tout=kind.real_dtype)(tensor, name=name)


class Angle(Part):
    """y = the argument of x, in (-π, π]"""

    def numpy(self, input: Any) -> Any:
        return np.angle(input)

    def element(self, input: Expr) -> Expr:
        return call("atan2", call("imag", input), call("real", input))

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        rotation = complex_number(filling.zeros_like(dy), dy)
        return rotation / conj(node.inputs[0])


@public("angle", "math.angle")
def angle(input: Any, name: str | None = None) -> Tensor:
    """The arguments of complex numbers, in (-π, π]; zeros for a real tensor."""
    tensor = convert_to_tensor(input, name="input")
    kind = tensor.dtype.base_dtype
    if not kind.is_complex:
        return filling.zeros_like(tensor, name=name)
    return Angle(Tout=kind.real_dtype)(tensor, name=name)


class Conj(Unary):
    """y = the complex conjugate of x"""

    signature = "input: T -> output: T; T: complex"
    numpy = staticmethod(np.conj)

    def element(self, input: Expr) -> Expr:
        return call("conj", input)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return conj(dy)


@public("conj", "math.conj")
def conj(x: Any, name: str | None = None) -> Tensor:
    """The complex conjugates; a real tensor is returned unchanged."""
    tensor = convert_to_tensor(x, name="x")
    kind = tensor.dtype.base_dtype
    if kind.is_complex:
        return Conj()(tensor, name=name)
    if kind.is_floating or kind.is_integer:
        return tensor
    raise TypeError(f"Expected numeric tensor, got dtype {kind.name}")
