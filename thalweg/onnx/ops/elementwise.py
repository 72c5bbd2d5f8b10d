"""Operators that work element by element: arithmetic, comparisons, logic, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any
from typing import cast as as_type

from thalweg.graph import dtypes
from thalweg.graph.node import Tensor
from thalweg.onnx.registry import NodeView, operator
from thalweg.onnx.values import cast_to, elements, like, static
from thalweg.ops.core import basic, casting, choosing, filling, shaping
from thalweg.ops.math import (
    arithmetic,
    bitwise,
    compare,
    division,
    rounding,
    special,
    transcendental,
)
from thalweg.ops.nn import activation
from thalweg.ops.random import random
from thalweg.ops.text import decoding

Function = Callable[..., Any]

_UNARY: dict[str, Function] = {
    "Abs": arithmetic.absolute,
    "Acos": transcendental.acos,
    "Acosh": transcendental.acosh,
    "Asin": transcendental.asin,
    "Asinh": transcendental.asinh,
    "Atan": transcendental.atan,
    "Atanh": transcendental.atanh,
    "BitwiseNot": bitwise.invert,
    "Ceil": rounding.ceil,
    "Cos": transcendental.cos,
    "Cosh": transcendental.cosh,
    "Erf": special.erf,
    "Exp": transcendental.exp,
    "Floor": rounding.floor,
    "Identity": basic.identity,
    "IsNaN": compare.is_nan,
    "Log": transcendental.log,
    "Neg": arithmetic.negative,
    "Not": compare.logical_not,
    "Reciprocal": arithmetic.reciprocal,
    "Relu": activation.relu,
    "Round": rounding.rint,
    "Sigmoid": transcendental.sigmoid,
    "Sign": arithmetic.sign,
    "Sin": transcendental.sin,
    "Sinh": transcendental.sinh,
    "Softplus": activation.softplus,
    "Softsign": activation.softsign,
    "Sqrt": transcendental.sqrt,
    "Tan": transcendental.tan,
    "Tanh": transcendental.tanh,
}
_BINARY: dict[str, Function] = {
    "Add": arithmetic.add,
    "And": compare.logical_and,
    "BitwiseAnd": bitwise.bitwise_and,
    "BitwiseOr": bitwise.bitwise_or,
    "BitwiseXor": bitwise.bitwise_xor,
    "Equal": compare.equal,
    "Greater": compare.greater,
    "GreaterOrEqual": compare.greater_equal,
    "Less": compare.less,
    "LessOrEqual": compare.less_equal,
    "Mul": arithmetic.multiply,
    "Or": compare.logical_or,
    "Sub": arithmetic.subtract,
    "Xor": compare.logical_xor,
}


def _apply(function: Function, node: NodeView, *inputs: Any) -> Any:
    if isinstance(inputs[0], list):  # the Identity of a sequence
        return as_type("list[Any]", inputs[0])
    if len(inputs) == 2:
        inputs = _aligned(node, *inputs)
    return function(*inputs)


def _aligned(node: NodeView, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Before version 7, the second input was broadcast from an axis on, by request."""
    if node.version >= 7 or "axis" not in node.attributes or x.shape.rank is None:
        return x, y
    spare = x.shape.rank - int(node.get("axis")) - (y.shape.rank or 0)
    for _ in range(max(0, spare)):
        y = shaping.expand_dims(y, -1)
    return x, y


def _register(names: dict[str, Function]) -> None:
    for name, function in names.items():

        def translate(node: NodeView, *inputs: Any, _function: Function = function) -> Any:
            return _apply(_function, node, *inputs)

        operator(name)(translate)


_register(_UNARY)
_register(_BINARY)


@operator("Div")
def div(node: NodeView, x: Tensor, y: Tensor) -> Tensor:
    """Integers are cut towards zero."""
    x, y = _aligned(node, x, y)
    if x.dtype.base_dtype.is_integer:
        return division.truncatediv(x, y)
    return division.realdiv(x, y)


@operator("Mod", since=10)
def mod(node: NodeView, x: Tensor, y: Tensor) -> Tensor:
    """With the sign of the divisor, or as C's fmod."""
    if not node.get("fmod", 0):
        return division.floormod(x, y)
    if x.dtype.base_dtype.is_integer:
        return division.truncatemod(x, y)
    ratio = division.realdiv(x, y)
    cut = choosing.where_v2(ratio < 0, rounding.ceil(ratio), rounding.floor(ratio))
    return arithmetic.subtract(x, cut * y)


@operator("Pow")
def power(node: NodeView, x: Tensor, y: Tensor) -> Tensor:
    """In the dtype of the base; the exponent may have another."""
    x, y = _aligned(node, x, y)
    base, exponent = x.dtype.base_dtype, y.dtype.base_dtype
    if base is exponent:
        return arithmetic.power(x, y)
    wide = base if base.is_floating and not exponent.is_floating else exponent
    if base.is_integer and exponent.is_integer:
        wide = dtypes.int64
    return cast_to(arithmetic.power(cast_to(x, wide), cast_to(y, wide)), base)


_FOLDS: dict[str, Function] = {
    "Max": arithmetic.maximum,
    "Min": arithmetic.minimum,
    "Sum": arithmetic.add,
}


@operator("Max", "Min", "Sum")
def fold(node: NodeView, *inputs: Tensor) -> Tensor:
    """Of any number of inputs, broadcast to each other."""
    if len(inputs) == 1:
        return basic.identity(inputs[0])
    return reduce(_FOLDS[node.op], inputs)


@operator("Mean")
def mean(node: NodeView, *inputs: Tensor) -> Tensor:
    return reduce(arithmetic.add, inputs) / like(len(inputs), inputs[0])


@operator("BitShift", since=11)
def bit_shift(node: NodeView, x: Tensor, y: Tensor) -> Tensor:
    shift = bitwise.left_shift if node.get("direction") == "LEFT" else bitwise.right_shift
    return shift(x, y)


@operator("IsInf", since=10)
def is_inf(node: NodeView, x: Tensor) -> Tensor:
    result = compare.is_inf(x)
    if not node.get("detect_negative", 1):
        result = compare.logical_and(result, x > like(0, x))
    if not node.get("detect_positive", 1):
        result = compare.logical_and(result, x < like(0, x))
    return result


@operator("Where", since=9)
def where(node: NodeView, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return choosing.where_v2(condition, x, y)


@operator("Clip")
def clip_attributes(node: NodeView, x: Tensor) -> Tensor:
    low, high = node.get("min", -math.inf), node.get("max", math.inf)
    return arithmetic.minimum(arithmetic.maximum(x, like(low, x)), like(high, x))


@operator("Clip", since=11)
def clip(node: NodeView, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    found = x if low is None else arithmetic.maximum(x, low)
    return basic.identity(found) if high is None else arithmetic.minimum(found, high)


@operator("Cast")
def cast(node: NodeView, x: Tensor) -> Tensor:
    return converted(node, x, int(node.get("to")))


def converted(node: NodeView, x: Tensor, to: int) -> Tensor:
    """A tensor in another element type; text is parsed, numbers are printed."""
    dtype = elements(to)
    source = x.dtype.base_dtype
    if source is dtypes.string and dtype is not dtypes.string:
        wide = dtype if dtype.is_floating else dtypes.float64
        narrow = wide if wide in (dtypes.float32, dtypes.float64) else dtypes.float32
        return casting.cast(decoding.string_to_number(x, narrow), dtype)
    if dtype is dtypes.string and source is not dtypes.string:
        return decoding.as_string(x)
    return casting.cast(x, dtype)


@operator("CastLike", since=15)
def cast_like(node: NodeView, x: Tensor, target: Tensor) -> Tensor:
    if target.dtype.base_dtype is dtypes.string:
        import onnx

        return converted(node, x, onnx.TensorProto.STRING)
    return casting.cast(x, target.dtype.base_dtype)


@operator("BitCast", since=26)
def bit_cast(node: NodeView, x: Tensor) -> Tensor:
    return casting.bitcast(x, elements(int(node.get("to"))))


# Activations


@operator("LeakyRelu")
def leaky_relu(node: NodeView, x: Tensor) -> Tensor:
    return choosing.where_v2(x < like(0, x), x * like(node.get("alpha", 0.01), x), x)


@operator("Elu")
def elu(node: NodeView, x: Tensor) -> Tensor:
    alpha = like(node.get("alpha", 1.0), x)
    return choosing.where_v2(x < like(0, x), alpha * (transcendental.exp(x) - like(1, x)), x)


@operator("Selu")
def selu(node: NodeView, x: Tensor) -> Tensor:
    alpha = like(node.get("alpha", 1.67326319217681884765625), x)
    gamma = like(node.get("gamma", 1.05070102214813232421875), x)
    below = alpha * (transcendental.exp(x) - like(1, x))
    return gamma * choosing.where_v2(x > like(0, x), x, below)


@operator("Celu", since=12)
def celu(node: NodeView, x: Tensor) -> Tensor:
    alpha = like(node.get("alpha", 1.0), x)
    below = alpha * (transcendental.exp(x / alpha) - like(1, x))
    return arithmetic.maximum(like(0, x), x) + arithmetic.minimum(like(0, x), below)


@operator("PRelu")
def prelu(node: NodeView, x: Tensor, slope: Tensor) -> Tensor:
    if node.version < 7 and slope.shape.rank == 1 and (x.shape.rank or 0) > 2:
        slope = shaping.reshape(slope, [-1, *[1] * ((x.shape.rank or 2) - 2)])
    return choosing.where_v2(x < like(0, x), x * slope, x)


@operator("ThresholdedRelu")
def thresholded_relu(node: NodeView, x: Tensor) -> Tensor:
    return choosing.where_v2(x > like(node.get("alpha", 1.0), x), x, filling.zeros_like(x))


@operator("HardSigmoid")
def hard_sigmoid(node: NodeView, x: Tensor) -> Tensor:
    line = x * like(node.get("alpha", 0.2), x) + like(node.get("beta", 0.5), x)
    return arithmetic.minimum(arithmetic.maximum(line, like(0, x)), like(1, x))


@operator("HardSwish", since=14)
def hard_swish(node: NodeView, x: Tensor) -> Tensor:
    line = x * like(1 / 6, x) + like(0.5, x)
    return x * arithmetic.minimum(arithmetic.maximum(line, like(0, x)), like(1, x))


@operator("Mish", since=18)
def mish(node: NodeView, x: Tensor) -> Tensor:
    return x * transcendental.tanh(activation.softplus(x))


@operator("Gelu", since=20)
def gelu(node: NodeView, x: Tensor) -> Tensor:
    if node.get("approximate", "none") == "tanh":
        inner = like(math.sqrt(2 / math.pi), x) * (x + like(0.044715, x) * x * x * x)
        return like(0.5, x) * x * (like(1, x) + transcendental.tanh(inner))
    return like(0.5, x) * x * (like(1, x) + special.erf(x / like(math.sqrt(2), x)))


@operator("Swish", since=24)
def swish(node: NodeView, x: Tensor) -> Tensor:
    return x * transcendental.sigmoid(like(node.get("alpha", 1.0), x) * x)


@operator("Shrink", since=9)
def shrink(node: NodeView, x: Tensor) -> Tensor:
    lambd, bias = like(node.get("lambd", 0.5), x), like(node.get("bias", 0.0), x)
    above = choosing.where_v2(x > lambd, x - bias, filling.zeros_like(x))
    return choosing.where_v2(x < -lambd, x + bias, above)


@operator("Binarizer", domain="ai.onnx.ml")
def binarizer(node: NodeView, x: Tensor) -> Tensor:
    return casting.cast(x > like(node.get("threshold", 0.0), x), x.dtype.base_dtype)


@operator("Dropout")
def dropout_fixed(node: NodeView, x: Tensor) -> Any:
    """In inference, what models are loaded for, the identity."""
    mask = filling.ones_like(x, dtypes.bool if node.version >= 10 else x.dtype.base_dtype)
    return basic.identity(x), mask


@operator("Dropout", since=12)
def dropout(node: NodeView, x: Tensor, ratio: Any = None, training: Any = None) -> Any:
    known = static(training)
    if training is None or (known is not None and not bool(known)):
        return basic.identity(x), filling.ones_like(x, dtypes.bool)
    rate = like(0.5, x) if ratio is None else cast_to(ratio, x.dtype.base_dtype)
    drawn = random.random_uniform(shaping.shape(x), dtype=dtypes.float32, seed=node.get("seed"))
    kept = compare.greater_equal(casting.cast(drawn, x.dtype.base_dtype), rate)
    kept = compare.logical_or(kept, compare.logical_not(training))
    rate = choosing.where_v2(training, rate, like(0, x))
    scaled = choosing.where_v2(kept, x / (like(1, x) - rate), filling.zeros_like(x))
    return scaled, kept


@operator("Affine")
def affine(node: NodeView, x: Tensor) -> Tensor:
    return x * like(node.get("alpha", 1.0), x) + like(node.get("beta", 0.0), x)
