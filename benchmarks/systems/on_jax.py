"""JAX: one jitted function a step, its state donated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import models
from jax import Array, lax
from models import trainable
from works import Work

from systems import jax_loops
from systems.step import Step

Weights = dict[str, Array]


class JaxNet:
    """Words of the models as functions of JAX, NHWC; `moved` collects new moving averages."""

    def __init__(self, weights: Weights, training: bool) -> None:
        self.weights, self.training = weights, training
        self.moved: Weights = {}

    def conv(
        self,
        x: Array,
        name: str,
        depth: int,
        size: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        relu: bool = True,
    ) -> Array:
        y = lax.conv_general_dilated(
            x,
            self.weights[f"{name}/kernel"],
            (stride, stride),
            [(padding, padding)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        y = y + self.weights[f"{name}/bias"] if bias else y
        return jax.nn.relu(y) if relu else y

    def max_pool(self, x: Array, size: int, stride: int, same: bool = False) -> Array:
        window, strides = (1, size, size, 1), (1, stride, stride, 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "SAME" if same else "VALID")

    def mean(self, x: Array) -> Array:
        return x.mean((1, 2))

    def flatten(self, x: Array) -> Array:
        return x.reshape(len(x), -1)

    def concat(self, xs: Sequence[Array]) -> Array:
        return jnp.concatenate(xs, 3)

    def add_relu(self, x: Array, y: Array) -> Array:
        return jax.nn.relu(x + y)

    def dense(self, x: Array, name: str, units: int, relu: bool = False) -> Array:
        y = x @ self.weights[f"{name}/kernel"] + self.weights[f"{name}/bias"]
        return jax.nn.relu(y) if relu else y

    def batch_norm(self, x: Array, name: str, relu: bool) -> Array:
        mean, variance = (self.weights[f"{name}/moving_{part}"] for part in ("mean", "variance"))
        if self.training:
            count, old = x.size // x.shape[-1], (mean, variance)
            wide = x.astype(old[0].dtype)
            mean, variance = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
            new = mean, variance * (count / (count - 1))
            for part, before, after in zip(("mean", "variance"), old, new, strict=True):
                self.moved[f"{name}/moving_{part}"] = 0.9 * before + 0.1 * after
        factor = self.weights[f"{name}/scale"] * lax.rsqrt(variance + 1e-3)
        y = ((x - mean) * factor + self.weights[f"{name}/offset"]).astype(x.dtype)
        return jax.nn.relu(y) if relu else y

    def layer_norm(self, x: Array, name: str) -> Array:
        y = jax.nn.standardize(x, axis=-1, epsilon=1e-5)
        return y * self.weights[f"{name}/scale"] + self.weights[f"{name}/offset"]

    def gelu(self, x: Array) -> Array:
        return jax.nn.gelu(x, approximate=True)

    def embed(
        self, ids: Array, tokens: str, rows: int, places: str, length: int, width: int
    ) -> Array:
        return self.weights[f"{tokens}/table"][ids] + self.weights[f"{places}/table"]

    def tied_logits(self, x: Array, tokens: str) -> Array:
        return x @ self.weights[f"{tokens}/table"].T

    def causal_attention(self, qkv: Array, heads: int) -> Array:
        batch, length, width = qkv.shape
        parts = qkv.reshape(batch, length, 3, heads, width // 3 // heads)
        q, k, v = (parts[:, :, i] for i in range(3))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return mixed.reshape(batch, length, width // 3)

    def lstm(self, x: Array, name: str, units: int, layers: int) -> Array:
        for i in range(layers):
            kernel, bias = self.weights[f"{name}{i}/kernel"], self.weights[f"{name}{i}/bias"]
            x = lstm_layer(x, kernel, bias, units, unroll=not self.training)
        return x


def lstm_layer(x: Array, kernel: Array, bias: Array, units: int, unroll: bool) -> Array:
    """`lax.scan`, unrolled for inference only (each was the faster); inputs' share hoisted."""
    width = x.shape[-1]
    shares = x @ kernel[:width] + bias

    def cell(state: tuple[Array, Array], share: Array) -> tuple[tuple[Array, Array], Array]:
        h, c = state
        i, j, f, o = jnp.split(share + h @ kernel[width:], 4, -1)
        c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(j)
        h = jnp.tanh(c) * jax.nn.sigmoid(o)
        return (h, c), h

    zeros = jnp.zeros((x.shape[1], units), x.dtype)
    return lax.scan(cell, (zeros, zeros), shares, unroll=unroll)[1]


def start(threads: int) -> str:
    """Set the runtime up; returns the version."""
    return f"JAX {jax.__version__}"


def make_ahead(work: Work, threads: int) -> Step:
    """A step of a work whose caller does not wait for the loss: Python runs ahead of the work."""
    last: Array | None = None

    def call(i: int) -> Array:
        nonlocal last
        last = step(i)
        return last

    step = runner(work)
    return Step(call, finish=lambda: last.block_until_ready())


def make(work: Work, threads: int) -> Step:
    """A step of a work whose caller waits for the loss."""
    step = runner(work)
    return Step(lambda i: step(i).block_until_ready())


def runner(work: Work) -> Callable[[int], Array]:
    """Dispatches step i."""
    if work.kind.startswith("null"):
        x, add = jnp.float32(1.0), jax.jit(lambda x: x + 1.0)
        return lambda i: add(x)
    batches = [tuple(map(owned, batch)) for batch in work.batches()]
    if work.kind == "counter":
        count = jax.jit(jax_loops.counter)
        return lambda i: count(*batches[0])
    if work.kind == "chain":
        chain = models.chain if work.eager else jax.jit(models.chain)
        return lambda i: chain(*batches[0])
    weights = {name: owned(value) for name, value in work.weights().items()}
    if not work.trains:
        forward = jax.jit(lambda weights, x: work.model(JaxNet(weights, False), x))
        return lambda i: forward(weights, *batches[0])
    if work.kind == "word2vec":
        return stateful(word2vec(work), weights, batches)
    if work.kind in jax_loops.LOSSES:
        return stateful(loop_training(work), weights, batches)
    moments = {name: jnp.zeros_like(w) for name, w in weights.items() if trainable(name)}
    slots = (moments, jax.tree.map(jnp.copy, moments)) if work.optimizer == "adam" else ()
    return stateful(training(work), (weights, slots, jnp.float32(0)), batches)


def owned(value: Any) -> Array:
    """A copy in JAX's own memory, which can be donated."""
    return jnp.array(value, copy=True)


def stateful(
    step: Callable[..., tuple[Any, Array]], state: Any, batches: list[tuple[Array, ...]]
) -> Callable[[int], Array]:
    """Jit a step and carry its state, donated, from call to call."""
    jitted = jax.jit(step, donate_argnums=0)

    def call(i: int) -> Array:
        nonlocal state
        state, loss = jitted(state, *batches[i % len(batches)])
        return loss

    return call


def training(work: Work) -> Callable[..., tuple[Any, Array]]:
    """State and batch to new state and loss."""

    def loss_of(trained: Weights, fixed: Weights, x: Array, labels: Array) -> tuple[Array, Weights]:
        net = JaxNet(trained | fixed, True)
        scores = jax.nn.log_softmax(work.model(net, x))
        picked = jnp.take_along_axis(scores, labels[..., None], -1)
        return -picked.mean(), net.moved

    def step(state: Any, x: Array, labels: Array) -> tuple[Any, Array]:
        weights, slots, count = state
        trained = {name: w for name, w in weights.items() if trainable(name)}
        fixed = {name: w for name, w in weights.items() if not trainable(name)}
        (loss, moved), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            trained, fixed, x, labels
        )
        update = adam if work.optimizer == "adam" else descent
        trained, slots = update(work.rate, trained, gradients, slots, count + 1)
        return (trained | moved, slots, count + 1), loss

    return step


def loop_training(work: Work) -> Callable[..., tuple[Weights, Array]]:
    """Gradient descent on the loss of a loop."""

    def step(weights: Weights, *batch: Array) -> tuple[Weights, Array]:
        loss, gradients = jax.value_and_grad(jax_loops.LOSSES[work.kind])(weights, *batch)
        return descent(work.rate, weights, gradients, (), loss)[0], loss

    return step


def descent(
    rate: float, weights: Weights, gradients: Weights, slots: tuple[()], count: Array
) -> tuple[Weights, Any]:
    """Gradient descent."""
    return jax.tree.map(lambda w, g: w - rate * g, weights, gradients), slots


def adam(
    rate: float, weights: Weights, gradients: Weights, slots: Any, count: Array
) -> tuple[Weights, Any]:
    """Adam with TensorFlow's place for epsilon."""
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, slots[0], gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, slots[1], gradients)
    rate = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    moved = jax.tree.map(
        lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, first, second
    )
    return moved, (first, second)


def word2vec(work: Work) -> Callable[..., tuple[Weights, Array]]:
    """Sampled softmax on the rows in use; the update adds into those rows alone."""

    def loss_of(hidden: Array, rows: Array, bias: Array) -> Array:
        words = len(hidden)
        true = (hidden * rows[:words]).sum(1) + bias[:words]
        others = hidden @ rows[words:].T + bias[words:]
        logits = jnp.concatenate([true[:, None], others], 1)
        return (jax.nn.logsumexp(logits, 1) - true).mean()

    def step(
        tables: Weights, words: Array, targets: Array, sampled: Array, *expected: Array
    ) -> tuple[Weights, Array]:
        ids = jnp.concatenate([targets, sampled])
        shift = jnp.log(jnp.concatenate(expected))
        hidden, rows, bias = tables["embedding"][words], tables["softmax"][ids], tables["bias"][ids]
        loss, (dhidden, drows, dbias) = jax.value_and_grad(
            lambda hidden, rows, bias: loss_of(hidden, rows, bias - shift), argnums=(0, 1, 2)
        )(hidden, rows, bias)
        tables = {
            "embedding": tables["embedding"].at[words].add(-work.rate * dhidden),
            "softmax": tables["softmax"].at[ids].add(-work.rate * drows),
            "bias": tables["bias"].at[ids].add(-work.rate * dbias),
        }
        return tables, loss

    return step
