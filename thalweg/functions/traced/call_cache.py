"""A cache of the last calls of a function, with the programs that ran them.

The arguments of a call are compared with the cached ones, one by one, without parsing their
structure; the program of a call that matches takes their arrays as they are.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from thalweg.functions.eager import EAGER
from thalweg.functions.tensors import EagerTensor, known
from thalweg.functions.traced.calls import CallKind, Expected, run_pending_before
from thalweg.functions.traced.concrete import ConcreteFunction
from thalweg.functions.traced.signature import Arguments
from thalweg.ops.core.buffer import Buffer

_MAX_KINDS = 4
_VALUES = (int, float, str, bool, type(None))

MISSED: Any = object()  # a call of a kind that is not cached


class CallCache:
    """The kinds of calls that were made last."""

    def __init__(self) -> None:
        self._kinds: list[CallKind] = []

    def clear(self) -> None:
        """Drop all: there is a trace that may serve better, or one that is gone."""
        self._kinds = []

    def run(self, args: tuple[Any, ...]) -> Any:
        """The result of a call of a cached kind; MISSED for other ones."""
        state = EAGER.__dict__  # of this thread: looked up once
        if state["tapes"]:
            return MISSED
        device = state["device_name"]
        for kind in self._kinds:
            if kind.device is not device:
                continue
            arrays = _arrays(kind, args)
            if arrays is None:
                continue
            if not state["lazy_trace"].done:
                run_pending_before(kind.has_effects)
            if kind.captured:
                arrays += kind.captured
            results = kind.run(kind.context, arrays, kind.variables)
            if results is None:
                return MISSED  # the reference kernels say why
            if kind.packed is None:
                return known(results[0], kind.dtypes[0], kind.shapes[0])
            return kind.packed(list(map(known, results, kind.dtypes, kind.shapes)), None)
        return MISSED

    def note(self, args: tuple[Any, ...], arguments: Arguments, concrete: ConcreteFunction) -> None:
        """Cache a call that ran, if others like it are known by their arguments alone."""
        expected = [one for one in map(_expected, args) if one is not None]
        tensors = [one for one in expected if one.numpy_dtype is not None]
        if len(expected) != len(args) or len(tensors) != len(arguments.tensors):
            return
        found = concrete.kind(expected, arguments.tensors)
        if found is not None:
            self._kinds = [found, *self._kinds][:_MAX_KINDS]


def _expected(value: Any) -> Expected | None:
    if isinstance(value, EagerTensor):
        held = value.located()
        if not isinstance(held, np.ndarray | Buffer):
            return None
        array = cast("Any", held)
        return Expected(value.dtype, array.dtype, array.shape, None)
    if type(value) is np.ndarray:
        array = cast("np.ndarray[Any, Any]", value)
        return Expected(None, array.dtype, array.shape, None)
    if type(value) not in _VALUES or (type(value) is float and value == 0):
        return None  # zeros differ by their signs
    return Expected(None, None, None, value)


def _arrays(kind: CallKind, args: tuple[Any, ...]) -> list[Any] | None:
    """The arrays of arguments, if they are of a kind."""
    if len(args) != len(kind.expected):
        return None
    arrays: list[Any] = []
    for value, expected in zip(args, kind.expected):  # noqa: B905 - as many, seen above
        if type(value) is EagerTensor:
            if value.dtype is not expected.dtype:
                return None
            value = value._array  # pyright: ignore[reportPrivateUsage] - one mechanism in several files
            if value is None or value.shape != expected.shape:
                return None
            arrays.append(value)
        elif type(value) is np.ndarray:
            if value.dtype is not expected.numpy_dtype or value.shape != expected.shape:
                return None
            arrays.append(value)
        elif (
            expected.numpy_dtype is not None
            or type(value) is not type(expected.value)
            or value != expected.value
        ):
            return None
    return arrays
