"""Variable updates of optimizers in eager code.

If an update depends only on the optimizer's hyperparameters, the gradients and the variables, its
nodes are built once for each structure of these and replayed. Otherwise its ops are recorded one by
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.functions.eager import EAGER, component_tensors
from thalweg.functions.tensors import EagerTensor
from thalweg.functions.variables import EagerVariable
from thalweg.graph.node import Tensor

_SCALARS = (int, float, str, bool, type(None))
_PACKAGE = __name__.partition(".")[0]


def update(
    owner: Any, grads_and_vars: Sequence[Any], slots: Sequence[Any], apply: Callable[[], Any]
) -> Any:
    """Run `apply`, which applies (gradient, variable) pairs with an optimizer, its `owner`.

    `slots` are the other variables that it updates.
    """
    hyperparameters = _hyperparameters(owner)
    if hyperparameters is None or any(v.constraint is not None for _, v in grads_and_vars):
        result = apply()
    else:
        result = _apply_cached(owner, hyperparameters, grads_and_vars, slots, apply)
    if not EAGER.tapes:
        # Ending the trace here gives all training steps the same structure. Gradients that are not
        # referenced by then are never stored.
        EAGER.lazy_trace.closed = True
    return result


def _apply_cached(
    owner: Any,
    hyperparameters: tuple[list[Any], list[Any]],
    grads_and_vars: Sequence[Any],
    slots: Sequence[Any],
    apply: Callable[[], Any],
) -> Any:
    numbers, tensors = hyperparameters
    key: list[Any] = [type(owner), *numbers]
    for gradient, variable in grads_and_vars:
        parts = component_tensors(gradient)
        key.append(len(parts))
        key += [EAGER.position(part) for part in parts]  # pyright: ignore[reportArgumentType] - eager code has eager tensors
        key.append(EAGER.position(variable.gradient_source()))
    key += [EAGER.position(variable.gradient_source()) for variable in slots]
    key += [EAGER.position(tensor) for tensor in tensors]

    def make() -> list[Any]:
        apply()
        return []

    return EAGER.record_subgraph(tuple(key), make)


def _hyperparameters(owner: Any) -> tuple[list[Any], list[Any]] | None:
    """The numbers and the tensors of an optimizer; None if its update may depend on more."""
    if not type(owner).__module__.startswith(_PACKAGE):
        return None
    numbers: list[Any] = []
    tensors: list[Any] = []
    attributes: dict[str, Any] = owner.__dict__
    for name, value in attributes.items():
        if type(value) in _SCALARS:
            numbers += (name, type(value), value)
        elif isinstance(value, EagerVariable):
            tensors.append(value.gradient_source())
        elif isinstance(value, EagerTensor):
            tensors.append(value)
        elif type(value) is not Tensor and not isinstance(value, dict):
            return None
    return numbers, tensors
