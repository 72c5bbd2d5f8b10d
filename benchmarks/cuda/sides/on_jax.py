"""JAX: one jitted function a step, its state donated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from models import trainable
from rows import NULL, Row, row_of
from systems.on_jax import JaxNet, adam, descent, owned

from sides.side import Side


def make(name: str, is_tiny: bool) -> Side:
    """The step of a row."""
    if name == NULL:
        x, add = jnp.float32(1.0), jax.jit(lambda x: x + 1.0)
        return Side(lambda: float(add(x)))
    row = row_of(name, is_tiny)
    kinds = {"tf32": "tensorfloat32", "float32": "highest"}
    jax.config.update("jax_default_matmul_precision", kinds.get(row.precision))
    return _training_step(row)


def _training_step(row: Row) -> Side:
    weights = {name: owned(v).astype(row.dtype_of(name)) for name, v in row.weights.items()}
    x, labels = map(owned, row.data)
    x = x.astype(row.weight_dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x
    zeros = {name: jnp.zeros_like(w) for name, w in weights.items() if trainable(name)}
    slots = (zeros, jax.tree.map(jnp.copy, zeros)) if row.optimizer == "adam" else ()
    state: Any = (weights, slots, jnp.float32(0))
    jitted = jax.jit(lambda state, x, labels: _updated(row, state, x, labels), donate_argnums=0)

    def step() -> float:
        nonlocal state
        state, loss = jitted(state, x, labels)
        return float(loss)

    return Side(step)


def _updated(row: Row, state: Any, x: Any, labels: Any) -> Any:
    weights, slots, count = state
    trained = {name: w for name, w in weights.items() if trainable(name)}
    fixed = {name: w for name, w in weights.items() if not trainable(name)}

    def loss_of(trained: Any) -> Any:
        given = trained | fixed
        if row.precision == "mixed":
            given = {name: w.astype(jnp.bfloat16) for name, w in given.items()}
        net = JaxNet(given, True)
        inputs = x.astype(jnp.bfloat16) if row.precision == "mixed" and x.ndim > 2 else x
        scores = jax.nn.log_softmax(row.model(net, inputs).astype(jnp.float32))
        return -jnp.take_along_axis(scores, labels[..., None], -1).mean(), net.moved

    (loss, moved), slopes = jax.value_and_grad(loss_of, has_aux=True)(trained)
    update = adam if row.optimizer == "adam" else descent
    made, slots = update(row.rate, trained, slopes, slots, count + 1)
    made = {name: w.astype(trained[name].dtype) for name, w in made.items()}
    slots = jax.tree.map(lambda new, old: new.astype(old.dtype), slots, state[1])
    moved = {name: w.astype(fixed[name].dtype) for name, w in moved.items()}
    return (made | moved, slots, count + 1), loss
