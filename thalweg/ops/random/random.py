"""Random tensors: uniform, normal and truncated normal numbers, shuffles, crops and choices.

Every node has its own stream in every session (`thalweg.ops.random.philox`), seeded by its two
seeds, or by the operating system if neither the graph nor the op is seeded. Each run takes the next
part.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, cast

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.analysis.effects import Resource, writes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.known import constant_value, constant_value_as_shape
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import get_seed, name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, call, select
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck
from thalweg.ir.philox import WORD, Generator, unsigned
from thalweg.ops.arrays import slicing
from thalweg.ops.core import basic, checks, shaping
from thalweg.ops.core.context import Context, VariableCell
from thalweg.ops.math import arithmetic, reduce
from thalweg.ops.random import distributions
from thalweg.ops.random.distributions import RESERVED
from thalweg.ops.random.philox import WORDS, Philox, Stream
from thalweg.ops.state.state import Update
from thalweg.platform.arrays import Array
from thalweg.public import public


class Random(Op, abstract=True):
    """An op with a stream of random numbers."""

    stateful = True
    effects = (writes(Resource.STREAM),)
    not_differentiable = True
    seed: int = 0
    seed2: int = 0

    def reserve(self, context: Context, blocks: int) -> Philox:
        """The next blocks of this node's stream."""
        return context.state(lambda: Stream(self.seed, self.seed2)).reserve(blocks)

    def taken(self, context: Context, wanted: tuple[int, ...]) -> Philox:
        """The next blocks of this node's stream for an output of shape `wanted`."""
        return self.reserve(context, math.prod(wanted) * RESERVED)


class SkipRandom(Update):
    """Advances a position in a random stream by the blocks that a loop uses"""

    private = True
    signature = "ref: &T -> output_ref: &T; T: uint32"
    blocks: int

    def kernel(self, context: Context, ref: VariableCell) -> VariableCell:
        def change(words: Array) -> None:
            words[...] = Philox.at(words).skip(self.blocks).place()

        ref.update(change)
        return ref

    def loop(self, at: IndexTuple, ref: Operand) -> Expr:
        carry: Any = self.blocks
        word = ref[at]
        for number in range(2, 6):  # the counter, lowest word first
            total = unsigned(ref[number]) + carry
            low = call("cast", total.bit_and(WORD), np.uint32)
            word, carry = select(at[0].eq(number), low, word), total.shift_right(32)
        return word


def seeds(seed: int | None) -> dict[str, int]:
    """The seed attributes of a new random op; both are zero if it is not seeded."""
    graph_seed, op_seed = get_seed(seed)
    return {"seed": graph_seed or 0, "seed2": op_seed or 0}


def shape_argument(shape: Any) -> Tensor:
    """The `shape` argument of a random function as a tensor."""
    dtype = dtypes.int32 if _is_list_of_narrow(shape) else None
    return convert_to_tensor(shape, dtype, name="shape")


def _is_list_of_narrow(shape: Any) -> bool:
    return isinstance(shape, list | tuple) and all(map(_is_narrow, cast("Any", shape)))


def _is_narrow(size: Any) -> bool:
    """Whether a size is a Python int or a NumPy integer below 32 bits (the largest label + 1)."""
    return isinstance(size, int) or (isinstance(size, np.integer) and size.itemsize < 4)


def static_shape(shape: Tensor) -> TensorShape:
    """The static shape of an output of shape `shape`."""
    shape.shape.assert_has_rank(1)
    return constant_value_as_shape(shape)


def sizes(shape: Array) -> tuple[int, ...]:
    """The value of a `shape` input as a tuple, checked."""
    if np.asarray(shape).ndim != 1:
        raise errors.invalid(f"shape must be a vector of sizes, got the shape {np.shape(shape)}")
    result: list[int] = shape.tolist()
    if min(result, default=0) < 0:
        raise errors.invalid(f"Dimension {min(result)} must be >= 0 in the shape {result}")
    return tuple(result)


class FromShape(Random, abstract=True):
    """Independent numbers from one distribution, in a shape given at run time."""

    signature = "shape: T -> output: dtype; T: index, dtype: floating"
    dtype: DType

    #: (generator, count, NumPy dtype) -> numbers
    draw: ClassVar[Any]

    def shape(self, shape: Tensor) -> TensorShape:
        return static_shape(shape)

    def kernel(self, context: Context, shape: Array) -> Array:
        wanted = sizes(shape)
        generator = self.taken(context, wanted)
        kind = self.dtype.as_numpy_dtype
        return self.draw(generator, math.prod(wanted), kind).reshape(wanted)


class Numbered(FromShape, abstract=True):
    """Numbers that are each a function of their index in the stream."""

    #: (generator, number, NumPy dtype) -> the element of that number
    draw_element: ClassVar[Any]

    def stream(self, context: Context, shape: Array) -> Array:
        return self.taken(context, sizes(shape)).place()

    def loop(self, at: IndexTuple, shape: Operand, stream: Operand) -> Expr:
        number = loop.ravel(at, at.shape)
        return self.draw_element(Generator.at(stream), number, self.dtype.as_numpy_dtype)


class RandomUniform(Numbered):
    """Floats in [0, 1)"""

    draw = staticmethod(distributions.uniform)
    draw_element = staticmethod(distributions.uniform_element)


class RandomStandardNormal(Numbered):
    """Normal numbers of mean 0 and deviation 1"""

    draw = staticmethod(distributions.normal)
    draw_element = staticmethod(distributions.normal_element)


class TruncatedNormal(FromShape):
    """Normal numbers, redrawn if 2 or more away from 0"""

    host_only = True
    draw = staticmethod(distributions.truncated_normal)


class RandomUniformInt(Random):
    """Integers in [minval, maxval)"""

    signature = "shape: T, minval: Tout, maxval: Tout -> output: Tout; T: index, Tout: int32|int64"

    def shape(self, shape: Tensor, minval: Tensor, maxval: Tensor) -> TensorShape:
        minval.shape.assert_has_rank(0)
        maxval.shape.assert_has_rank(0)
        return static_shape(shape)

    def kernel(self, context: Context, shape: Array, minval: Array, maxval: Array) -> Array:
        wanted = sizes(shape)
        count = math.prod(wanted)
        kind = np.asarray(minval).dtype
        if count == 0:
            return np.empty(wanted, kind)
        if not minval < maxval:
            raise errors.invalid(f"Need minval < maxval, got {minval} >= {maxval}")
        generator = self.taken(context, wanted)
        drawn = distributions.uniform_integers(generator, count, minval, maxval, kind)
        return drawn.reshape(wanted)

    def stream(self, context: Context, shape: Array, minval: Array, maxval: Array) -> Array:
        return self.taken(context, sizes(shape)).place()

    def loop(
        self, at: IndexTuple, shape: Operand, minval: Operand, maxval: Operand, stream: Operand
    ) -> Expr:
        return distributions.uniform_integers_element(
            Generator.at(stream),
            loop.ravel(at, at.shape),
            minval[()],
            maxval[()],
            minval.dtype,
        )

    def requires(
        self, shape: Operand, minval: Operand, maxval: Operand, stream: Operand
    ) -> list[RuntimeCheck]:
        return [RuntimeCheck((), minval[()] < maxval[()])]


@public("random_uniform", "random.uniform")
def random_uniform(
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Uniformly distributed random numbers in [minval, maxval).

    Args:
        shape: the shape of the result, as a list or an integer vector.
        minval: the smallest value.
        maxval: the exclusive upper bound; 1 for floats if None, required for integers.
        dtype: a floating dtype, int32 or int64.
        seed: a number that, with the graph's seed, fixes the sequence of values.
        name: the name of the node.

    Returns:
        A tensor of `shape` and `dtype`, new in each step.

    Example:
        >>> dice = sess.run(tf.random_uniform([100], 1, 7, dtype=tf.int32, seed=1))
        >>> sorted(set(dice.tolist()))
        [1, 2, 3, 4, 5, 6]
    """
    kind = as_dtype(dtype)
    if maxval is None and kind.is_integer:
        raise ValueError(f"Must specify maxval for integer dtype {kind!r}")
    top = 1 if maxval is None else maxval
    with name_scope(name, "random_uniform", [shape, minval, top]) as scope:
        shape_tensor = shape_argument(shape)
        low = convert_to_tensor(minval, kind, name="min")
        high = convert_to_tensor(top, kind, name="max")
        if kind.is_integer:
            return RandomUniformInt(**seeds(seed))(shape_tensor, low, high, name=scope)
        drawn = RandomUniform(dtype=kind, **seeds(seed))(shape_tensor)
        return arithmetic.add(drawn * (high - low), low, name=scope)


@public("random_normal", "random.normal")
def random_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normally distributed random numbers.

    Args:
        shape: the shape of the result, as a list or an integer vector.
        mean: the mean; a number or a tensor that broadcasts to `shape`.
        stddev: the standard deviation, likewise.
        dtype: a floating dtype.
        seed: a number that, with the graph's seed, fixes the sequence of values.
        name: the name of the node.

    Returns:
        A tensor of `shape` and `dtype`, new in each step.

    Example:
        >>> x = sess.run(tf.random_normal([1000], mean=5.0, stddev=0.1, seed=1))
        >>> x.shape, round(float(x.mean()), 1)
        ((1000,), 5.0)
    """
    return _scaled(RandomStandardNormal, "random_normal", shape, mean, stddev, dtype, seed, name)


@public("truncated_normal", "random.truncated_normal")
def truncated_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normal random numbers, redrawn if two standard deviations or more from the mean.

    Args:
        shape: the shape of the result, as a list or an integer vector.
        mean: the mean before values are redrawn; a number or a tensor.
        stddev: the standard deviation before values are redrawn.
        dtype: a floating dtype.
        seed: a number that, with the graph's seed, fixes the sequence of values.
        name: the name of the node.

    Returns:
        A tensor of `shape` and `dtype`, new in each step.

    Example:
        >>> x = sess.run(tf.truncated_normal([1000], stddev=0.5, seed=1))
        >>> abs(x).max() <= 1.0
        np.True_
    """
    return _scaled(TruncatedNormal, "truncated_normal", shape, mean, stddev, dtype, seed, name)


def _scaled(
    op: type[FromShape],
    default_name: str,
    shape: Any,
    mean: Any,
    stddev: Any,
    dtype: Any,
    seed: int | None,
    name: str | None,
) -> Tensor:
    with name_scope(name, default_name, [shape, mean, stddev]) as scope:
        shape_tensor = shape_argument(shape)
        mean_tensor = convert_to_tensor(mean, dtype, name="mean")
        stddev_tensor = convert_to_tensor(stddev, dtype, name="stddev")
        drawn = op(dtype=as_dtype(dtype), **seeds(seed))(shape_tensor)
        return arithmetic.add(drawn * stddev_tensor, mean_tensor, name=scope)


class RandomShuffle(Random):
    """The rows of a tensor in random order"""

    signature = "value: T -> output: T"
    host_only = True

    def shape(self, value: Tensor) -> TensorShape:
        return value.shape

    def kernel(self, context: Context, value: Array) -> Array:
        rows = np.shape(value)[0] if np.ndim(value) else 0
        if rows <= 1 or np.size(value) <= 1:
            return value
        generator = self.reserve(context, -(-(rows - 1) // WORDS))
        return value[distributions.permutation(generator, rows)]


@public("random_shuffle", "random.shuffle")
def random_shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Tensor:
    """The rows of a tensor in random order.

    Args:
        value: a tensor of rank 1 or more.
        seed: a number that fixes the sequence of orders.
        name: the name of the node.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> sorted(sess.run(tf.random_shuffle([3, 1, 2])).tolist())
        [1, 2, 3]
    """
    tensor = convert_to_tensor(value)
    return RandomShuffle(**seeds(seed))(tensor, name=name)


@public("random_crop", "image.random_crop")
def random_crop(value: Any, size: Any, seed: int | None = None, name: str | None = None) -> Tensor:
    """A part of `value` at a random offset.

    Args:
        value: any tensor.
        size: the shape of the part, as a list or an integer vector.
        seed: a number that fixes the sequence of offsets.
        name: the name of the nodes.

    Returns:
        A tensor of shape `size` and the dtype of `value`.

    Example:
        >>> crop = sess.run(tf.random_crop(tf.reshape(tf.range(16), [4, 4]), [2, 2]))
        >>> crop - crop[0, 0]
        array([[0, 1],
               [4, 5]], dtype=int32)
    """
    with name_scope(name, "random_crop", [value, size]) as scope:
        tensor = convert_to_tensor(value, name="value")
        wanted = convert_to_tensor(size, dtypes.int32, name="size")
        shape = shaping.shape(tensor)
        message = ["Need value.shape >= size, got ", shape, wanted]
        check = checks.Assert(reduce.reduce_all(shape >= wanted), message)
        shape = basic.with_dependencies([check], shape)
        limit = shape - wanted + 1
        drawn = random_uniform(
            shaping.shape(shape), dtype=wanted.dtype, maxval=wanted.dtype.max, seed=seed
        )
        return slicing.slice(tensor, drawn % limit, wanted, name=scope)


class Multinomial(Random):
    """Classes drawn from softmax(logits), for each row"""

    signature = (
        "logits: T, num_samples: int32 -> output: output_dtype; T: real, output_dtype: int32|int64"
    )
    host_only = True
    output_dtype: DType = dtypes.int64

    def shape(self, logits: Tensor, num_samples: Tensor) -> TensorShape:
        logits.shape.assert_has_rank(2)
        num_samples.shape.assert_has_rank(0)
        count = constant_value(num_samples)
        rows = logits.shape.with_rank(2)[0].value
        return TensorShape.of((rows, None if count is None else int(count)))

    def kernel(self, context: Context, logits: Array, num_samples: Array) -> Array:
        _check_logits(logits, int(num_samples))
        rows, samples = len(logits), int(num_samples)
        generator = self.reserve(context, rows * -(-samples // 4) * 4 * RESERVED)
        drawn = distributions.categorical(generator, logits, samples)
        return drawn.astype(self.output_dtype.as_numpy_dtype)


def _check_logits(logits: Array, samples: int) -> None:
    problem = ""
    if logits.ndim != 2:
        problem = f"logits should be a matrix, got shape {logits.shape}"
    elif samples < 0:
        problem = f"num_samples should be nonnegative, got {samples}"
    elif logits.shape[1] == 0 and len(logits) and samples:
        problem = f"num_classes should be positive, got {logits.shape[1]}"
    if problem:
        raise errors.invalid(problem)


@public("multinomial", "random.multinomial")
def multinomial(
    logits: Any,
    num_samples: Any,
    seed: int | None = None,
    name: str | None = None,
    output_dtype: Any = None,
) -> Tensor:
    """Classes drawn from distributions.

    Args:
        logits: [batch, classes], log-probabilities that need not be normalized.
        num_samples: the number of samples of each.
        seed: a number that fixes the sequence of values.
        name: the name of the node.
        output_dtype: int64 or int32.

    Returns:
        A tensor [batch, num_samples] of class numbers.

    Example:
        >>> sess.run(tf.multinomial([[0.0, -100.0]], 4))
        array([[0, 0, 0, 0]])
    """
    with name_scope(name, "multinomial", [logits]):
        return categorical_samples(logits, num_samples, output_dtype, seed)


@public("random.categorical")
def categorical(
    logits: Any,
    num_samples: Any,
    dtype: Any = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Classes drawn from distributions with log-probabilities in the rows of `logits`."""
    with name_scope(name, "categorical", [logits]):
        return categorical_samples(logits, num_samples, dtype, seed)


def categorical_samples(logits: Any, num_samples: Any, dtype: Any, seed: int | None) -> Tensor:
    """The node of `multinomial` and `categorical`."""
    kind = dtypes.int64 if dtype is None else as_dtype(dtype)
    tensor = convert_to_tensor(logits, name="logits")
    return Multinomial(output_dtype=kind, **seeds(seed))(tensor, num_samples)
