"""The works with loops in JAX: `lax.while_loop` and `lax.scan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

Weights = dict[str, Array]


def counter(limit: Array) -> Array:
    """Count up to a limit, one by one."""
    return lax.while_loop(lambda i: i < limit, lambda i: i + 1, jnp.int32(0))


def recurrence_loss(weights: Weights, x: Array) -> Array:
    """The mean square of h = tanh(decay h + x) over all steps."""

    def step(h: Array, row: Array) -> tuple[Array, Array]:
        h = jnp.tanh(weights["decay"] * h + row)
        return h, h

    return jnp.square(lax.scan(step, jnp.zeros_like(x[0]), x)[1]).mean()


def sequence_loss(weights: Weights, x: Array, lengths: Array, labels: Array) -> Array:
    """The mean loss of the steps that sequences of different lengths have; a masked scan."""
    kernel, width = weights["lstm/kernel"], x.shape[-1]
    units = kernel.shape[1] // 4
    shares = x @ kernel[:width] + weights["lstm/bias"]

    def cell(state: tuple[Array, Array], given: tuple[Array, Array]) -> Any:
        (h, c), (share, time) = state, given
        i, j, f, o = jnp.split(share + h @ kernel[width:], 4, -1)
        memory = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(j)
        shown = jnp.tanh(memory) * jax.nn.sigmoid(o)
        going = (time < lengths)[:, None]
        state = jnp.where(going, shown, h), jnp.where(going, memory, c)
        return state, jnp.where(going, shown, 0.0)

    zeros = jnp.zeros((x.shape[1], units), x.dtype)
    times = jnp.arange(x.shape[0])
    outputs = lax.scan(cell, (zeros, zeros), (shares, times))[1]
    scores = jax.nn.log_softmax(outputs @ weights["logits/kernel"] + weights["logits/bias"])
    picked = jnp.take_along_axis(scores, labels[..., None], -1)[..., 0]
    there = times[:, None] < lengths
    return -(picked * there).sum() / there.sum()


LOSSES: dict[str, Callable[..., Array]] = {
    "recurrence": recurrence_loss,
    "sequences": sequence_loss,
}
