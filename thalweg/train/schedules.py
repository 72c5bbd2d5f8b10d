"""Learning rates as functions of the step: decays, cycles and restarts."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import basic, casting, shaping
from thalweg.ops.core.choosing import where
from thalweg.ops.math.arithmetic import add, minimum, multiply
from thalweg.ops.math.compare import equal
from thalweg.ops.math.division import divide
from thalweg.ops.math.rounding import ceil, floor
from thalweg.ops.math.transcendental import cos, exp, log, sqrt
from thalweg.ops.random import random
from thalweg.public import public


class _Schedule(NamedTuple):
    """What every schedule starts from: its tensors in one dtype, and the name of its result."""

    rate: Tensor
    step: Tensor
    cast: Callable[[TensorLike], Tensor]
    name: str


@contextmanager
def _schedule(
    name: str | None, default: str, function: str, learning_rate: Any, global_step: Any, *more: Any
) -> Generator[_Schedule]:
    if global_step is None:
        raise ValueError(f"global_step is required for {function}.")
    with name_scope(name, default, [learning_rate, global_step, *more]) as scope:
        rate = convert_to_tensor(learning_rate, name="learning_rate")

        def cast(value: TensorLike) -> Tensor:
            return casting.cast(value, rate.dtype.base_dtype)

        yield _Schedule(rate, cast(global_step), cast, scope)


def _progress(schedule: _Schedule, decay_steps: Any, staircase: bool) -> Tensor:
    progress = schedule.step / schedule.cast(decay_steps)
    return floor(progress) if staircase else progress


@public("train.exponential_decay")
def exponential_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """A learning rate that shrinks with the step: learning_rate·decay_rate^(step / decay_steps).

    Args:
        learning_rate: the rate at step 0.
        global_step: the step, an integer tensor or variable.
        decay_steps: after how many steps the rate is multiplied by `decay_rate`.
        decay_rate: the factor.
        staircase: let the rate change only every `decay_steps` steps.
        name: the name of the node.

    Returns:
        A scalar tensor, for an optimizer.

    Example:
        >>> step = tf.placeholder(tf.int32, [])
        >>> rate = tf.train.exponential_decay(0.1, step, decay_steps=10, decay_rate=0.5)
        >>> sess.run(rate, {step: 20})
        np.float32(0.025)
    """
    more = (decay_steps, decay_rate)
    with _schedule(
        name, "ExponentialDecay", "exponential_decay", learning_rate, global_step, *more
    ) as schedule:
        progress = _progress(schedule, decay_steps, staircase)
        decay = schedule.cast(decay_rate) ** progress
        return multiply(schedule.rate, decay, name=schedule.name)


@public("train.natural_exp_decay")
def natural_exp_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """learning_rate·exp(−decay_rate·step / decay_steps)"""
    more = (decay_steps, decay_rate)
    with _schedule(
        name, "NaturalExpDecay", "natural_exp_decay", learning_rate, global_step, *more
    ) as schedule:
        progress = _progress(schedule, decay_steps, staircase)
        exponent = -schedule.cast(decay_rate) * progress
        return multiply(schedule.rate, exp(exponent), name=schedule.name)


@public("train.inverse_time_decay")
def inverse_time_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """learning_rate / (1 + decay_rate·step / decay_steps)"""
    more = (decay_steps, decay_rate)
    with _schedule(
        name, "InverseTimeDecay", "inverse_time_decay", learning_rate, global_step, *more
    ) as schedule:
        progress = _progress(schedule, decay_steps, staircase)
        slowdown = 1 + schedule.cast(decay_rate) * progress
        return divide(schedule.rate, slowdown, name=schedule.name)


@public("train.polynomial_decay")
def polynomial_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: TensorLike,
    end_learning_rate: TensorLike = 0.0001,
    power: TensorLike = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> Tensor:
    """A learning rate that falls to an end: (rate - end)·(1 - step / decay_steps)^power + end.

    Args:
        learning_rate: the rate at step 0.
        global_step: the step, an integer tensor or variable.
        decay_steps: the step at which the end is reached.
        end_learning_rate: the end.
        power: 1 is a straight line.
        cycle: begin again with a longer decay each time the end is reached.
        name: the name of the nodes.

    Returns:
        A scalar tensor, for an optimizer.

    Example:
        >>> step = tf.placeholder(tf.int32, [])
        >>> rate = tf.train.polynomial_decay(1.0, step, 10, end_learning_rate=0.0)
        >>> sess.run(rate, {step: 5})
        np.float32(0.5)
    """
    more = (decay_steps, end_learning_rate, power)
    with _schedule(
        name, "PolynomialDecay", "polynomial_decay", learning_rate, global_step, *more
    ) as schedule:
        step, steps = schedule.step, schedule.cast(decay_steps)
        if cycle:
            rounds = where(equal(step, 0), schedule.cast(1.0), ceil(step / steps))
            steps = steps * rounds
        else:
            step = minimum(step, steps)
        end = schedule.cast(end_learning_rate)
        left = (1 - step / steps) ** schedule.cast(power)
        return add((schedule.rate - end) * left, end, name=schedule.name)


@public("train.piecewise_constant", "train.piecewise_constant_decay")
def piecewise_constant(
    x: Any, boundaries: Sequence[Any], values: Sequence[Any], name: str | None = None
) -> Tensor:
    """A value that changes at given steps: values[i] for boundaries[i - 1] < x <= boundaries[i].

    Args:
        x: the step, a scalar tensor or variable.
        boundaries: ascending numbers of the dtype of `x`.
        values: one more than boundaries.
        name: the name of the nodes.

    Returns:
        A scalar of the dtype of `values`.

    Example:
        >>> step = tf.placeholder(tf.int32, [])
        >>> rate = tf.train.piecewise_constant(step, [100, 200], [1.0, 0.5, 0.1])
        >>> sess.run(rate, {step: 150})
        np.float32(0.5)
    """
    if len(boundaries) != len(values) - 1:
        raise ValueError("The length of boundaries should be 1 less than the length of values")
    with name_scope(name, "PiecewiseConstant", [x, *boundaries, *values]) as scope:
        step = convert_to_tensor(x)
        edges = [_edge(edge, step) for edge in boundaries]
        rates = [convert_to_tensor(value) for value in values]
        for rate in rates[1:]:
            if rate.dtype.base_dtype != rates[0].dtype.base_dtype:
                raise ValueError(
                    f"Values must have elements all with the same dtype ({rates[0].dtype} vs "
                    f"{rate.dtype})."
                )
        chosen = rates[-1]
        for edge, rate in zip(reversed(edges), reversed(rates[:-1]), strict=True):
            chosen = where(step <= edge, rate, chosen)
        return basic.identity(chosen, name=scope)


def _edge(edge: Any, step: Tensor) -> Tensor:
    tensor = convert_to_tensor(edge)
    kind, wanted = tensor.dtype.base_dtype, step.dtype.base_dtype
    if kind == wanted:
        return tensor
    if (kind, wanted) == (dtypes.int32, dtypes.int64):
        return casting.cast(tensor, wanted)
    raise ValueError(f"Boundaries ({kind}) must have the same dtype as x ({wanted}).")


def _cosine(fraction: Tensor) -> Tensor:
    """Half a wave from 1 to 0 as the fraction goes from 0 to 1."""
    return 0.5 * (1 + cos(math.pi * fraction))


@public("train.cosine_decay")
def cosine_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: TensorLike,
    alpha: Tensor | float = 0.0,
    name: str | None = None,
) -> Tensor:
    """learning_rate along half a cosine wave, down to the fraction `alpha` of it."""
    with _schedule(
        name, "CosineDecay", "cosine_decay", learning_rate, global_step, decay_steps
    ) as schedule:
        steps = schedule.cast(decay_steps)
        wave = _cosine(minimum(schedule.step, steps) / steps)
        return multiply(schedule.rate, (1 - alpha) * wave + alpha, name=schedule.name)


@public("train.cosine_decay_restarts")
def cosine_decay_restarts(
    learning_rate: Any,
    global_step: Any,
    first_decay_steps: TensorLike,
    t_mul: TensorLike = 2.0,
    m_mul: TensorLike = 1.0,
    alpha: Tensor | float = 0.0,
    name: str | None = None,
) -> Tensor:
    """Half cosine waves, each `t_mul` times as long and `m_mul` times as high as the last."""
    with _schedule(
        name, "SGDRDecay", "cosine_decay_restarts", learning_rate, global_step, first_decay_steps
    ) as schedule:
        completed = schedule.step / schedule.cast(first_decay_steps)
        restarts, fraction = _restarts(completed, schedule.cast(t_mul))
        wave = schedule.cast(m_mul) ** restarts * _cosine(fraction)
        alpha = schedule.cast(alpha)
        return multiply(schedule.rate, (1 - alpha) * wave + alpha, name=schedule.name)


def _restarts(completed: Tensor, t_mul: Tensor) -> tuple[Tensor, Tensor]:
    """How many waves are over, and the fraction of the current one that is."""
    even = floor(completed)
    known = constant_value(t_mul)
    if known is not None and known == 1:
        return even, completed - even
    growing = floor(log(1 - completed * (1 - t_mul)) / log(t_mul))
    before = (1 - t_mul**growing) / (1 - t_mul)
    fraction = (completed - before) / t_mul**growing
    if known is not None:
        return growing, fraction
    is_even = equal(t_mul, 1)
    return where(is_even, even, growing), where(is_even, completed - even, fraction)


@public("train.linear_cosine_decay")
def linear_cosine_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: TensorLike,
    num_periods: TensorLike = 0.5,
    alpha: Tensor | float = 0.0,
    beta: TensorLike = 0.001,
    name: str | None = None,
) -> Tensor:
    """learning_rate·((alpha + linear decay)·cosine + beta)"""
    with _schedule(
        name, "LinearCosineDecay", "linear_cosine_decay", learning_rate, global_step, decay_steps
    ) as schedule:
        steps = schedule.cast(decay_steps)
        step = minimum(schedule.step, steps)
        linear = (steps - step) / steps
        decay = _linear_cosine(schedule, linear, step / steps, num_periods, alpha, beta)
        return multiply(schedule.rate, decay, name=schedule.name)


def _linear_cosine(
    schedule: _Schedule, linear: Tensor, completed: Tensor, periods: Any, alpha: Any, beta: Any
) -> Tensor:
    wave = _cosine(2 * schedule.cast(periods) * completed)
    return (schedule.cast(alpha) + linear) * wave + schedule.cast(beta)


@public("train.noisy_linear_cosine_decay")
def noisy_linear_cosine_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: TensorLike,
    initial_variance: TensorLike = 1.0,
    variance_decay: TensorLike = 0.55,
    num_periods: TensorLike = 0.5,
    alpha: Tensor | float = 0.0,
    beta: TensorLike = 0.001,
    name: str | None = None,
) -> Tensor:
    """As `linear_cosine_decay`, with normal noise of falling variance on the linear decay."""
    with _schedule(
        name,
        "NoisyLinearCosineDecay",
        "noisy_linear_cosine_decay",
        learning_rate,
        global_step,
        decay_steps,
    ) as schedule:
        steps = schedule.cast(decay_steps)
        step = minimum(schedule.step, steps)
        fall = (1 + step) ** schedule.cast(variance_decay)
        deviation = sqrt(schedule.cast(initial_variance) / fall)
        linear = (steps - step) / steps
        noise = random.random_normal(
            shaping.shape(linear), stddev=deviation, dtype=linear.dtype.base_dtype
        )
        decay = _linear_cosine(schedule, linear + noise, step / steps, num_periods, alpha, beta)
        return multiply(schedule.rate, decay, name=schedule.name)
