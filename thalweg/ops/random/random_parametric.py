"""Random tensors of distributions with tensors as parameters: gamma, Poisson, truncated normal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, broadcast_shapes
from thalweg.ops.arrays import joining
from thalweg.ops.core import filling, shaping
from thalweg.ops.core.context import Context
from thalweg.ops.math import arithmetic, reduce, special_math
from thalweg.ops.random import distributions, truncation
from thalweg.ops.random.distributions import RESERVED
from thalweg.ops.random.philox import Philox
from thalweg.ops.random.random import Random, seeds, shape_argument, sizes, static_shape
from thalweg.platform.arrays import Array
from thalweg.public import public


class RandomGamma(Random):
    """`shape` gamma numbers for each alpha, of scale 1"""

    signature = "shape: S, alpha: T -> output: T; S: index, T: float16|float32|float64"
    host_only = True
    not_differentiable = False

    def shape(self, shape: Tensor, alpha: Tensor) -> TensorShape:
        return static_shape(shape).concatenate(alpha.shape)

    def kernel(self, context: Context, shape: Array, alpha: Array) -> Array:
        drawn = _per_parameter(self, context, sizes(shape), alpha, distributions.gamma)
        return drawn.astype(np.asarray(alpha).dtype)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        """dy ∂sample/∂alpha, summed over the samples of each alpha."""
        shape, alpha = node.inputs
        samples = shaping.size(shape)
        ones = filling.fill(shaping.reshape(samples, [1]), 1)
        spread = shaping.reshape(alpha, joining.concat([ones, shaping.shape(alpha)], 0))
        slope = RandomGammaGrad()(spread, node.output)
        return [None, reduce.reduce_sum(dy * slope, axis=filling.range(samples))]


class RandomGammaGrad(Op):
    """∂sample/∂alpha = -(∂P/∂alpha) / (∂P/∂sample), P being the distribution function"""

    signature = "alpha: T, sample: T -> output: T; T: float32|float64"
    host_only = True

    def shape(self, alpha: Tensor, sample: Tensor) -> TensorShape:
        return broadcast_shapes(alpha.shape, sample.shape)

    def numpy(self, alpha: Array, sample: Array) -> Array:
        a, x = np.float64(alpha), np.float64(sample)
        log_density = (a - 1) * np.log(x) - x - special_math.lgamma(a)
        slope = -special_math.igamma_slope(a, x) / np.exp(log_density)
        return slope.astype(np.asarray(sample).dtype)


@public("random_gamma", "random.gamma")
def random_gamma(
    shape: Any,
    alpha: Any,
    beta: Any = None,
    dtype: Any = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """`shape` gamma numbers for each pair of shape `alpha` and inverse scale `beta`."""
    with name_scope(name, "random_gamma", [shape, alpha, beta]):
        shape_tensor = convert_to_tensor(shape, dtypes.int32, name="shape")
        alphas = convert_to_tensor(alpha, dtype, name="alpha")
        betas = convert_to_tensor(1 if beta is None else beta, dtype, name="beta")
        spread = alphas + filling.zeros_like(betas)
        drawn = RandomGamma(**seeds(seed))(shape_tensor, spread)
        # Zero is not in the distribution, but the smallest numbers round to it.
        tiny = np.finfo(alphas.dtype.as_numpy_dtype).tiny
        return arithmetic.maximum(tiny, drawn / betas)


class RandomPoissonV2(Random):
    """`shape` Poisson numbers for each rate"""

    signature = "shape: S, rate: R -> output: dtype; S: index, R: real, dtype: real"
    host_only = True
    dtype: DType = dtypes.int64

    def shape(self, shape: Tensor, rate: Tensor) -> TensorShape:
        return static_shape(shape).concatenate(rate.shape)

    def kernel(self, context: Context, shape: Array, rate: Array) -> Array:
        largest = float(self.dtype.max)
        drawn = _per_parameter(
            self, context, sizes(shape), rate, lambda g, r: distributions.poisson(g, r, largest)
        )
        return drawn.astype(self.dtype.as_numpy_dtype)


@public("random_poisson", "random.poisson")
def random_poisson(
    lam: Any,
    shape: Any,
    dtype: Any = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """`shape` Poisson numbers for each rate in `lam`."""
    with name_scope(name, "random_poisson", [lam, shape]):
        shape_tensor = convert_to_tensor(shape, dtypes.int32, name="shape")
        rates = convert_to_tensor(lam, name="lam")
        return RandomPoissonV2(dtype=as_dtype(dtype), **seeds(seed))(shape_tensor, rates)


def _per_parameter(
    op: Random,
    context: Context,
    shape: tuple[int, ...],
    parameter: Array,
    draw: Callable[[Philox, Array], Array],
) -> Array:
    """`shape` numbers for each parameter, drawn from the stream parameter by parameter."""
    samples, count = math.prod(shape), np.size(parameter)
    generator = op.reserve(context, samples * count * RESERVED)
    drawn = draw(generator, np.repeat(np.ravel(parameter), samples))
    return drawn.reshape(count, samples).T.reshape(shape + np.shape(parameter))


class ParameterizedTruncatedNormal(Random):
    """Normal numbers within bounds; parameters are scalars, or one per row of the output"""

    signature = (
        "shape: T, means: dtype, stdevs: dtype, minvals: dtype, maxvals: dtype -> output: dtype; "
        "T: index, dtype: floating"
    )
    host_only = True

    def shape(self, shape: Tensor, *parameters: Tensor) -> TensorShape:
        return static_shape(shape)

    def kernel(self, context: Context, shape: Array, *parameters: Array) -> Array:
        wanted = sizes(shape)
        if len(wanted) == 0:
            raise errors.invalid("Shape must not be empty: it is a scalar")
        for name, value in zip(("means", "stddevs", "minvals", "maxvals"), parameters, strict=True):
            _check_parameter(name, np.shape(value), wanted[0])
        batches = truncation.batches(wanted, parameters)
        generator = self.reserve(context, truncation.blocks(batches))
        drawn = truncation.draw(generator, batches, np.asarray(parameters[0]).dtype)
        return drawn[: math.prod(wanted)].reshape(wanted)


def _check_parameter(name: str, shape: tuple[int, ...], rows: int) -> None:
    if len(shape) > 1:
        raise errors.invalid(f"Input {name} should be a scalar or vector, got shape: {list(shape)}")
    if shape not in ((), (1,), (rows,)):
        raise errors.invalid(
            f"Input {name} should have length 1 or shape[0], got shape: {list(shape)}"
        )


@public("parameterized_truncated_normal", "random.parameterized_truncated_normal")
def parameterized_truncated_normal(
    shape: TensorLike,
    means: TensorLike = 0.0,
    stddevs: TensorLike = 1.0,
    minvals: TensorLike = -2.0,
    maxvals: TensorLike = 2.0,
    dtype: Any = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normal numbers between `minvals` and `maxvals`, each parameter a scalar or one per row."""
    given = [shape, means, stddevs, minvals, maxvals]
    with name_scope(name, "parameterized_truncated_normal", given):
        shape_tensor = shape_argument(shape)
        parameters = [
            convert_to_tensor(value, dtype, name=label)
            for label, value in zip(
                ("means", "stddevs", "minvals", "maxvals"), given[1:], strict=True
            )
        ]
        return ParameterizedTruncatedNormal(**seeds(seed))(shape_tensor, *parameters)
