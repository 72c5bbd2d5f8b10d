"""`tensorflow.python.keras.utils.tf_utils`, as far as Keras 2.3.1 uses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thalweg.alias import names

tf = names.root()


def get_reachable_from_inputs(inputs: Iterable[Any], targets: Any = None) -> set[Any]:
    """All tensors, variables and nodes that depend on some of `inputs`.

    Args:
        inputs: tensors, variables or nodes.
        targets: stop as soon as all of these are found.
    """
    result: set[Any] = set(inputs)
    waiting = list(result)
    wanted = None if targets is None else set(tf.nest.flatten(targets))
    while waiting and (wanted is None or not wanted <= result):
        for item in _followers(waiting.pop()):
            if item not in result:
                result.add(item)
                waiting.append(item)
    return result


def _followers(item: Any) -> list[Any]:
    if isinstance(item, tf.Operation):
        return list(item.outputs)
    if isinstance(item, tf.Variable):
        return [item.op, *item.op.outputs]
    return item.consumers() if isinstance(item, tf.Tensor) else []


def is_symbolic_tensor(tensor: Any) -> bool:
    """Whether a value is known only when a step runs."""
    return isinstance(tensor, tf.Tensor | tf.SparseTensor) and not tf.executing_eagerly()


def is_tensor_or_variable(x: Any) -> bool:
    """Whether `x` is a tensor, sparse or not, or a variable."""
    return isinstance(x, tf.Tensor | tf.SparseTensor | tf.Variable)


def constant_value(pred: Any) -> Any:
    """The value of a condition that is known now, None otherwise."""
    if isinstance(pred, tf.Tensor):
        return tf.contrib.util.constant_value(pred)
    return bool(pred) if pred in (0, 1) else None


def smart_cond(pred: Any, true_fn: Any = None, false_fn: Any = None, name: Any = None) -> Any:
    """`tf.cond`, or one of the branches alone where the condition is known."""
    value = constant_value(pred)
    if value is None:
        return tf.cond(pred, true_fn=true_fn, false_fn=false_fn, name=name)
    return true_fn() if value else false_fn()


smart_constant_value = constant_value
