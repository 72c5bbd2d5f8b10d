"""Gradient functions that users register, by op type or by a name for `gradient_override_map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.graph.node import Node
from thalweg.public import public

GradientFunction = Callable[..., Any]

_functions: dict[str, GradientFunction | None] = {}


@public("RegisterGradient")
class RegisterGradient:
    """Decorator that registers the gradient of an op type, for `Graph.gradient_override_map`.

    Args:
        op_type: the name of the type.

    Example:
        >>> @tf.RegisterGradient("Doubled")
        ... def doubled(op, grad):
        ...     return 2 * grad
        >>> x = tf.constant(1.0)
        >>> with tf.get_default_graph().gradient_override_map({"Identity": "Doubled"}):
        ...     y = tf.identity(x)
        >>> sess.run(tf.gradients(y, [x]))
        [np.float32(2.0)]
    """

    def __init__(self, op_type: str) -> None:
        if not isinstance(op_type, str):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
            raise TypeError("op_type must be a string")
        self._op_type = op_type

    def __call__(self, f: GradientFunction) -> GradientFunction:
        register(self._op_type, f)
        return f


@public("NotDifferentiable", "NoGradient", "no_gradient")
def not_differentiable(op_type: str) -> None:
    """Declare that an op type has no gradient: nothing flows through it.

    Args:
        op_type: the type of the op.

    Example:
        >>> tf.NotDifferentiable("MyCounter")
    """
    if not isinstance(op_type, str):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
        raise TypeError("op_type must be a string")
    register(op_type, None)


def register(op_type: str, function: GradientFunction | None) -> None:
    """Register a gradient function; None for an op without gradient. A name is taken once."""
    if op_type in _functions:
        raise KeyError(f"Registering two gradient functions with name '{op_type}'!")
    _functions[op_type] = function


def forget(op_type: str) -> None:
    """Remove a gradient that is no longer used."""
    _functions.pop(op_type, None)


def gradient_function(node: Node) -> GradientFunction | None:
    """The gradient function of a node; None if it has no gradient.

    Raises LookupError if none is defined.
    """
    override = node.annotations.get("_gradient_op_type")
    if override is not None:
        if override not in _functions:
            raise LookupError(f"No gradient registered under the name '{override}'")
        return _functions[override]
    if node.type in _functions:
        return _functions[node.type]
    if node.op.has("gradient"):
        return node.op.gradient
    if node.op.not_differentiable:
        return None
    raise LookupError(
        f"No gradient defined for operation '{node.name}' (op type: {node.type}), made at "
        f"{node.origin}. Register one with @tf.RegisterGradient, or stop the flow before it with "
        "tf.stop_gradient"
    )
