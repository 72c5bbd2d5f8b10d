"""Random tensors without state, as functions of a seed of two integers."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.known import constant_value
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, vector
from thalweg.ir import loop
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck
from thalweg.ir.philox import Generator
from thalweg.ops.math import arithmetic
from thalweg.ops.random import distributions
from thalweg.ops.random.philox import Philox
from thalweg.ops.random.random import shape_argument, sizes, static_shape
from thalweg.platform.arrays import Array
from thalweg.public import public


def _generator(seed: Array) -> Philox:
    if np.shape(seed) != (2,):
        raise errors.invalid(f"seed must have shape [2], not {list(np.shape(seed))}")
    return Philox.scrambled(int(seed[0]), int(seed[1]))


class FromSeed(Op, abstract=True):
    """Independent numbers from one distribution"""

    signature = "shape: T, seed: Tseed -> output: dtype; T: index, Tseed: index, dtype: floating"
    not_differentiable = True
    dtype: DType

    #: (generator, count, NumPy dtype) -> numbers
    draw: ClassVar[Any]

    def shape(self, shape: Tensor, seed: Tensor) -> TensorShape:
        seed.shape.assert_is_compatible_with(vector(2))
        return static_shape(shape)

    def numpy(self, shape: Array, seed: Array) -> Array:
        wanted = sizes(shape)
        drawn = self.draw(_generator(seed), math.prod(wanted), self.dtype.as_numpy_dtype)
        return drawn.reshape(wanted)


class Numbered(FromSeed, abstract=True):
    """Numbers that are each a function of their index in the stream."""

    #: (generator, number, NumPy dtype) -> the element of that number
    draw_element: ClassVar[Any]

    def loop(self, at: IndexTuple, shape: Operand, seed: Operand) -> Expr:
        number = loop.ravel(at, at.shape)
        return self.draw_element(Generator.scrambled(seed), number, self.dtype.as_numpy_dtype)


class StatelessRandomUniform(Numbered):
    """Floats in [0, 1)"""

    draw = staticmethod(distributions.uniform)
    draw_element = staticmethod(distributions.uniform_element)


class StatelessRandomNormal(Numbered):
    """Normal numbers of mean 0 and deviation 1"""

    draw = staticmethod(distributions.normal)
    draw_element = staticmethod(distributions.normal_element)


class StatelessTruncatedNormal(FromSeed):
    """Normal numbers, redrawn if 2 or more away from 0"""

    host_only = True
    draw = staticmethod(distributions.truncated_normal)


class StatelessRandomUniformInt(Op):
    """Integers in [minval, maxval)"""

    signature = (
        "shape: T, seed: Tseed, minval: dtype, maxval: dtype -> output: dtype; "
        "T: index, Tseed: index, dtype: int32|int64"
    )
    not_differentiable = True

    def shape(self, shape: Tensor, seed: Tensor, minval: Tensor, maxval: Tensor) -> TensorShape:
        seed.shape.assert_is_compatible_with(vector(2))
        return static_shape(shape)

    def numpy(self, shape: Array, seed: Array, minval: Array, maxval: Array) -> Array:
        if not minval < maxval:
            raise errors.invalid(f"Need minval < maxval, got {minval} >= {maxval}")
        wanted, kind = sizes(shape), np.asarray(minval).dtype
        count = math.prod(wanted)
        drawn = distributions.uniform_integers(_generator(seed), count, minval, maxval, kind)
        return drawn.reshape(wanted)

    def loop(
        self, at: IndexTuple, shape: Operand, seed: Operand, minval: Operand, maxval: Operand
    ) -> Expr:
        return distributions.uniform_integers_element(
            Generator.scrambled(seed),
            loop.ravel(at, at.shape),
            minval[()],
            maxval[()],
            minval.dtype,
        )

    def requires(
        self, shape: Operand, seed: Operand, minval: Operand, maxval: Operand
    ) -> list[RuntimeCheck]:
        return [RuntimeCheck((), minval[()] < maxval[()])]


@public("random.stateless_uniform")
def stateless_random_uniform(
    shape: Any,
    seed: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Numbers in [minval, maxval), determined by the seed."""
    kind = as_dtype(dtype)
    if maxval is None and kind.is_integer:
        raise ValueError(f"Must specify maxval for integer dtype {kind!r}")
    top = 1 if maxval is None else maxval
    with name_scope(name, "stateless_random_uniform", [shape, seed, minval, top]) as scope:
        shape_tensor = shape_argument(shape)
        low = convert_to_tensor(minval, kind, name="min")
        high = convert_to_tensor(top, kind, name="max")
        if kind.is_integer:
            return StatelessRandomUniformInt()(shape_tensor, seed, low, high, name=scope)
        drawn = StatelessRandomUniform(dtype=kind)(shape_tensor, seed)
        return arithmetic.add(drawn * (high - low), low, name=scope)


@public("random.stateless_normal")
def stateless_random_normal(
    shape: Any,
    seed: TensorLike,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Normal numbers, determined by the seed."""
    op = StatelessRandomNormal(dtype=as_dtype(dtype))
    return _scaled(op, "stateless_random_normal", shape, seed, mean, stddev, name)


@public("random.stateless_truncated_normal")
def stateless_truncated_normal(
    shape: Any,
    seed: TensorLike,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Normal numbers within two standard deviations, determined by the seed."""
    op = StatelessTruncatedNormal(dtype=as_dtype(dtype))
    return _scaled(op, "stateless_truncated_normal", shape, seed, mean, stddev, name)


def _scaled(
    op: FromSeed, default_name: str, shape: Any, seed: Any, mean: Any, stddev: Any, name: str | None
) -> Tensor:
    with name_scope(name, default_name, [shape, seed, mean, stddev]) as scope:
        shape_tensor = shape_argument(shape)
        mean_tensor = convert_to_tensor(mean, op.dtype, name="mean")
        stddev_tensor = convert_to_tensor(stddev, op.dtype, name="stddev")
        drawn = op(shape_tensor, seed)
        return arithmetic.add(drawn * stddev_tensor, mean_tensor, name=scope)


class StatelessMultinomial(Op):
    """Classes drawn from softmax(logits), for each row"""

    signature = (
        "logits: T, num_samples: int32, seed: Tseed -> output: output_dtype; "
        "T: real, Tseed: index, output_dtype: int32|int64"
    )
    not_differentiable = True
    host_only = True
    output_dtype: DType = dtypes.int64

    def shape(self, logits: Tensor, num_samples: Tensor, seed: Tensor) -> TensorShape:
        rows = logits.shape.with_rank(2)[0].value
        count = constant_value(num_samples)
        return TensorShape.of((rows, None if count is None else int(count)))

    def numpy(self, logits: Array, num_samples: Array, seed: Array) -> Array:
        drawn = distributions.categorical(_generator(seed), logits, int(num_samples))
        return drawn.astype(self.output_dtype.as_numpy_dtype)


@public("random.stateless_multinomial")
def stateless_multinomial(
    logits: Any,
    num_samples: Any,
    seed: Any,
    output_dtype: Any = dtypes.int64,
    name: str | None = None,
) -> Tensor:
    """Classes drawn from distributions, determined by the seed."""
    with name_scope(name, "stateless_multinomial", [logits, seed]):
        tensor = convert_to_tensor(logits, name="logits")
        op = StatelessMultinomial(output_dtype=as_dtype(output_dtype))
        return op(tensor, num_samples, seed)


@public("random.stateless_categorical")
def stateless_categorical(
    logits: Any,
    num_samples: Any,
    seed: Any,
    dtype: Any = dtypes.int64,
    name: str | None = None,
) -> Tensor:
    """Classes drawn from distributions, determined by the seed."""
    with name_scope(name, "stateless_categorical", [logits, seed]):
        tensor = convert_to_tensor(logits, name="logits")
        op = StatelessMultinomial(output_dtype=as_dtype(dtype))
        return op(tensor, num_samples, seed)
