"""Updates of variables in eager code: what an optimizer does in each step, found again.

An update is a function of the optimizer's numbers, of gradients and of variables. Where that is
all it depends on, its nodes are built once, as graph code, for each structure of these; else its
ops are recorded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.functions.eager import EAGER, parts_of
from thalweg.functions.tensors import EagerTensor
from thalweg.functions.variables import EagerVariable
from thalweg.graph.node import Tensor

_NUMBERS = (int, float, str, bool, type(None))
_PACKAGE = __name__.partition(".")[0]


def update(
    owner: Any, changes: Sequence[Any], state: Sequence[Any], apply: Callable[[], Any]
) -> Any:
    """Apply (gradient, variable) pairs to variables and state, as `apply` does.

    `owner` is the optimizer, whose attributes decide what is done.
    """
    settings = _settings(owner)
    if settings is None or any(v.constraint is not None for _, v in changes):
        done = apply()
    else:
        done = _found(owner, settings, changes, state, apply)
    if not EAGER.tapes:
        # The next step is like this one, if it begins here. Gradients that nobody holds by then
        # are never written to memory.
        EAGER.lazy_trace.closed = True
    return done


def _found(
    owner: Any,
    settings: tuple[list[Any], list[Any]],
    changes: Sequence[Any],
    state: Sequence[Any],
    apply: Callable[[], Any],
) -> Any:
    numbers, tensors = settings
    key: list[Any] = [type(owner), *numbers]
    for gradient, variable in changes:
        parts = parts_of(gradient)
        key.append(len(parts))
        key += [EAGER.position(part) for part in parts]  # pyright: ignore[reportArgumentType] - eager code has eager tensors
        key.append(EAGER.position(variable.gradient_source()))
    key += [EAGER.position(variable.gradient_source()) for variable in state]
    key += [EAGER.position(tensor) for tensor in tensors]

    def make() -> list[Any]:
        apply()
        return []

    return EAGER.macro(tuple(key), make)


def _settings(owner: Any) -> tuple[list[Any], list[Any]] | None:
    """The numbers of an optimizer and its tensors; None where more may decide what it does."""
    if not type(owner).__module__.startswith(_PACKAGE):
        return None
    numbers: list[Any] = []
    tensors: list[Any] = []
    attributes: dict[str, Any] = owner.__dict__
    for name, value in attributes.items():
        if type(value) in _NUMBERS:
            numbers += (name, type(value), value)
        elif isinstance(value, EagerVariable):
            tensors.append(value.gradient_source())
        elif isinstance(value, EagerTensor):
            tensors.append(value)
        elif type(value) is not Tensor and not isinstance(value, dict):
            return None
    return numbers, tensors
