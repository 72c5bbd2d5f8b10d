"""Derivatives of functions: `tf.grad(f)`, `tf.value_and_grad(f)`, `tf.vjp`, `tf.jvp`.

Functions take and return tensors or structures of them. The transformations compose, for higher
orders, and work in eager code and in graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from thalweg.functions.tape import GradientTape
from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorStructure
from thalweg.graph.node import Tensor
from thalweg.ops.core import filling
from thalweg.public import public
from thalweg.variables.variable import Variable

Function = Callable[..., Any]
ArgNums = int | Sequence[int]


def _convert(structure: Any) -> Any:
    """A structure with numbers and arrays converted to tensors; a list of numbers is one tensor.
    Variables are kept."""
    if isinstance(structure, list) and all(
        isinstance(leaf, int | float | complex) for leaf in nest.flatten(structure)
    ):
        return convert_to_tensor(cast("list[Any]", structure))
    return nest.map_structure(_convert_leaf, structure)


def _convert_leaf(leaf: Any) -> Any:
    return leaf if isinstance(leaf, Variable) else convert_to_tensor(leaf)


def _scalar(value: Any) -> Tensor:
    tensor = convert_to_tensor(value)
    if tensor.shape.rank != 0:
        raise ValueError(
            f"tf.grad needs a function that returns a scalar, got the shape {tensor.shape}; use "
            "tf.vjp for others"
        )
    return tensor


@public("value_and_grad")
def value_and_grad(f: Function, argnums: ArgNums = 0, has_aux: bool = False) -> Function:
    """A function that returns `f`'s value (a scalar) and its gradients with respect to arguments.

    With `has_aux`, `f` returns (value, anything), and the result is ((value, anything), gradients).
    """

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        arguments = [*args]
        for number in numbers:
            arguments[number] = _convert(arguments[number])
        sources = [arguments[number] for number in numbers]
        with GradientTape() as tape:
            tape.watch(sources)
            result = f(*arguments, **kwargs)
            value = _scalar(result[0] if has_aux else result)
        packed = tape.gradient(value, sources, unconnected_gradients="zero")
        gradients = packed[0] if isinstance(argnums, int) else tuple(packed)
        return ((value, result[1]) if has_aux else value), gradients

    return call


@public("grad")
def grad(f: Function, argnums: ArgNums = 0, has_aux: bool = False) -> Function:
    """A function that returns the gradient of `f`, which returns a scalar: `tf.grad(f)(x)`.

    With `has_aux`, `f` returns (value, anything), and the result is (gradient, anything).
    """
    both = value_and_grad(f, argnums, has_aux)

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        value, gradients = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return call


@public("vjp")
def vjp(f: Function, *primals: TensorStructure) -> tuple[Any, Function]:
    """`f(*primals)`, and a function from gradients of that to gradients of the primals."""
    sources = [_convert(primal) for primal in primals]
    with GradientTape(persistent=True) as tape:
        tape.watch(sources)
        outputs = _convert(f(*sources))

    def pullback(cotangents: Any) -> tuple[Any, ...]:
        nest.assert_same_structure(outputs, cotangents)
        gradients = tape.gradient(outputs, sources, cotangents, unconnected_gradients="zero")
        return tuple(gradients)

    return outputs, pullback


@public("jvp")
def jvp(f: Function, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """`f(*primals)`, and its directional derivative along the tangents.

    The vjp is linear in its cotangents: differentiating it with respect to these gives the jvp, so
    two backward passes make a forward one.
    """
    nest.assert_same_structure(list(primals), list(tangents))
    with GradientTape() as outer:
        outputs, pullback = vjp(f, *primals)
        cotangents = nest.map_structure(filling.zeros_like, outputs)
        outer.watch(cotangents)
        pulled = list(pullback(cotangents))
    tangents_out = outer.gradient(pulled, cotangents, list(tangents), unconnected_gradients="zero")
    return outputs, tangents_out


# TensorFlow's names


@public("contrib.eager.gradients_function")
def gradients_function(f: Function, params: Iterable[int | str] | None = None) -> Function:
    """A function that returns the gradients of `f` for all parameters, or for those in `params`, by
    number or name."""
    both = val_and_grad_function(f, params)
    return lambda *args, **kwargs: both(*args, **kwargs)[1]


@public("contrib.eager.value_and_gradients_function")
def val_and_grad_function(f: Function, params: Iterable[int | str] | None = None) -> Function:
    """A function that returns `f`'s value and its gradients for all parameters or those given."""
    names = f.__code__.co_varnames

    def call(*args: Any, dy: Any = None, **kwargs: Any) -> tuple[Any, list[Any]]:
        wanted = range(len(args)) if params is None else cast("Sequence[Any]", params)
        numbers = [names.index(p) if isinstance(p, str) else int(p) for p in wanted]
        arguments = [_convert(a) if i in numbers else a for i, a in enumerate(args)]
        sources = [arguments[number] for number in numbers]
        with GradientTape() as tape:
            tape.watch(sources)
            value = f(*arguments, **kwargs)
        return value, tape.gradient(value, sources, dy)

    return call


@public("contrib.eager.implicit_gradients")
def implicit_gradients(f: Function) -> Function:
    """A function that returns (gradient, variable) pairs for the variables that `f` reads."""
    both = implicit_value_and_gradients(f)
    return lambda *args, **kwargs: both(*args, **kwargs)[1]


@public("contrib.eager.implicit_value_and_gradients", "contrib.eager.implicit_value_and_grad")
def implicit_value_and_gradients(f: Function) -> Function:
    """A function that returns `f`'s value and (gradient, variable) pairs for what it reads."""

    def call(*args: Any, **kwargs: Any) -> tuple[Any, list[tuple[Any, Any]]]:
        with GradientTape() as tape:
            value = f(*args, **kwargs)
        variables = list(tape.watched_variables())
        if not variables:
            raise ValueError("No trainable variables were accessed while the function was called.")
        return value, list(zip(tape.gradient(value, variables), variables, strict=True))

    return call


@public("contrib.eager.make_vjp")
def make_vjp(
    f: Function, params: Iterable[int | str] | None = None, persistent: bool = True
) -> Function:
    """A function that returns `f`'s value and a function from its gradient to the arguments'."""

    def call(*args: Any) -> tuple[Any, Function]:
        outputs, pullback = vjp(f, *args)

        def pull(dy: Any = None) -> list[Any]:
            ones = nest.map_structure(filling.ones_like, outputs)
            return list(pullback(ones if dy is None else dy))

        return outputs, pull

    return call
