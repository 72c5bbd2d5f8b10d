"""`custom_gradient`: a function whose gradient the user defines."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from thalweg.autodiff import registry
from thalweg.graph import nest
from thalweg.graph.collections import GraphKeys
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Node, Tensor, reached
from thalweg.ops.core.basic import IdentityN
from thalweg.public import public

_numbers = itertools.count()


class CustomGradient(IdentityN, abstract=True):
    """The identity of a function's outputs, arguments and variables, with the user's gradient.

    As in TensorFlow, it is an `IdentityN` in graphs.
    """

    type_name = "IdentityN"


@public("custom_gradient")
def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for a function that defines its own gradient.

    If `f` uses trainable variables, `grad` takes a keyword `variables` and returns a second list,
    their gradients.

    Args:
        f: a function of tensors x that returns (y, grad); `grad(*dy)` returns the gradients of x.

    Returns:
        A function of the x that returns y.

    Example:
        >>> @tf.custom_gradient
        ... def clipped(x):
        ...     return tf.identity(x), lambda dy: tf.clip_by_value(dy, -1.0, 1.0)
        >>> x = tf.constant(3.0)
        >>> sess.run(tf.gradients(100 * clipped(x), [x]))
        [np.float32(1.0)]
    """

    @functools.wraps(f)
    def call(*args: Any) -> Any:
        arguments = [convert_to_tensor(a) for a in args]
        result, grad = f(*arguments)
        outputs = [convert_to_tensor(r) for r in nest.as_list(result)]
        results = _override_gradient(outputs, arguments, _variables_used(outputs, arguments), grad)
        if isinstance(result, list | tuple):
            return tuple(results) if isinstance(result, tuple) else results
        return results[0]

    return call


def _override_gradient(
    outputs: list[Tensor], arguments: list[Tensor], variables: list[Any], grad: Callable[..., Any]
) -> list[Tensor]:
    """The outputs, whose gradients go through `grad` to the arguments and variables alone."""
    name = f"CustomGradient-{next(_numbers)}"
    sources = [variable.gradient_source() for variable in variables]

    def backward(node: Node, *dys: Any) -> list[Any]:
        return [None] * len(outputs) + _call_gradient(grad, dys[: len(outputs)], variables)

    registry.register(name, backward)
    graph = outputs[0].graph
    with graph.gradient_override_map({CustomGradient.type_name: name}):
        return CustomGradient()([*outputs, *arguments, *sources])[: len(outputs)]


def _call_gradient(grad: Callable[..., Any], dys: Sequence[Any], variables: list[Any]) -> list[Any]:
    if not variables:
        return nest.flatten(grad(*dys))
    accepted = inspect.signature(grad).parameters.values()
    if not any(p.name == "variables" or p.kind is p.VAR_KEYWORD for p in accepted):
        raise TypeError(
            "a function under @tf.custom_gradient that uses variables "
            f"({', '.join(v.name for v in variables)}) must return a gradient function with a "
            "keyword argument `variables`"
        )
    of_arguments, of_variables = grad(*dys, variables=variables)
    return nest.flatten(of_arguments) + nest.flatten(of_variables)


def _variables_used(outputs: list[Tensor], arguments: list[Tensor]) -> list[Any]:
    """The trainable variables that the function's nodes read."""
    sources = _sources(outputs, arguments)
    trainable = get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES)
    return [variable for variable in trainable if variable.gradient_source().op in sources]


def _sources(outputs: list[Tensor], arguments: list[Tensor]) -> set[Node]:
    """The nodes without inputs that the outputs depend on, arguments excluded."""
    stops = {tensor.op for tensor in arguments}

    def sources(node: Node) -> list[Node]:
        return [] if node in stops else [tensor.op for tensor in node.inputs]

    seen = reached([tensor.op for tensor in outputs], sources)
    return {node for node in seen - stops if not node.inputs}
