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
    key = _key(owner, grads_and_vars, slots)

    def make() -> list[Any]:
        apply()
        return []

    result = apply() if key is None else EAGER.record_subgraph(key, make)
    if not EAGER.tapes:
        # Ending the trace here gives all training steps the same structure. Gradients that are not
        # referenced by then are never stored.
        EAGER.lazy_trace.closed = True
    return result


def _key(owner: Any, grads_and_vars: Sequence[Any], slots: Sequence[Any]) -> Any:
    """The structure of an update as a key; None if it may depend on more."""
    key = _hyperparameters(owner)
    if key is None or any(variable.constraint is not None for _, variable in grads_and_vars):
        return None
    for gradient, variable in grads_and_vars:
        parts = component_tensors(gradient)
        key.append(len(parts))
        key += [EAGER.position(part) for part in parts]  # pyright: ignore[reportArgumentType] - eager code has eager tensors
        key.append(EAGER.position(variable.gradient_source()))
    key += [EAGER.position(variable.gradient_source()) for variable in slots]
    return tuple(key)


def _hyperparameters(owner: Any) -> list[Any] | None:
    """An optimizer's class, numbers, and positions of tensors; None if it has other attributes."""
    if not type(owner).__module__.startswith(_PACKAGE):
        return None
    key: list[Any] = [type(owner)]
    attributes: dict[str, Any] = owner.__dict__
    for name, value in attributes.items():
        if type(value) in _SCALARS:
            key += name, type(value), value
        elif isinstance(value, EagerVariable):
            key += name, EAGER.position(value.gradient_source())  # pyright: ignore[reportArgumentType] - as below
        elif isinstance(value, EagerTensor):
            key += name, EAGER.position(value)
        elif type(value) is not Tensor and not isinstance(value, dict):
            return None
    return key
