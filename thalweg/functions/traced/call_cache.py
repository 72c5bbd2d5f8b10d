"""A cache of the last calls of a function, with the programs that ran them.

The arguments of a call are compared with the expected ones one by one, without parsing their
structure. On a hit, the program takes their arrays as they are.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from thalweg.functions.eager import EAGER
from thalweg.functions.tensors import EagerTensor, known
from thalweg.functions.traced.calls import CachedCall, ExpectedArgument, run_pending_before
from thalweg.functions.traced.concrete import ConcreteFunction
from thalweg.functions.traced.signature import Arguments
from thalweg.ops.core.buffer import Buffer

_MAX_CALLS = 4
_SCALARS = (int, float, str, bool, type(None))

MISS: Any = object()  # no cached call matches


class CallCache:
    """The most recent calls of a function, by the dtypes, shapes and values of their arguments."""

    def __init__(self) -> None:
        self._calls: list[CachedCall] = []

    def clear(self) -> None:
        """Drop all: a new trace may fit better, or one was dropped."""
        self._calls = []

    def run(self, args: tuple[Any, ...]) -> Any:
        """The result of a call that is cached; MISS for others."""
        state = EAGER.__dict__  # of this thread: looked up once
        if state["tapes"]:
            return MISS
        device = state["device_name"]
        for call in self._calls:
            if call.device is not device:
                continue
            arrays = _match(call, args)
            if arrays is None:
                continue
            if not state["lazy_trace"].done:
                run_pending_before(call.has_effects)
            if call.captured:
                arrays += call.captured
            results = call.run(call.context, arrays, call.variables)
            if results is None:
                return MISS  # the reference kernels will raise the error
            if call.pack is None:
                return known(results[0], call.dtypes[0], call.shapes[0])
            return call.pack(list(map(known, results, call.dtypes, call.shapes)), None)
        return MISS

    def add(self, args: tuple[Any, ...], arguments: Arguments, concrete: ConcreteFunction) -> None:
        """Cache a call that ran, if its arguments are tensors, arrays and scalars alone."""
        expected = [argument for argument in map(_expected, args) if argument is not None]
        tensors = [argument for argument in expected if argument.numpy_dtype is not None]
        if len(expected) != len(args) or len(tensors) != len(arguments.tensors):
            return
        call = concrete.eager.cached_call(expected, arguments.tensors)
        if call is not None:
            self._calls = [call, *self._calls][:_MAX_CALLS]


def _expected(value: Any) -> ExpectedArgument | None:
    if isinstance(value, EagerTensor):
        held = value.device_value()
        if not isinstance(held, np.ndarray | Buffer):
            return None
        array = cast("Any", held)
        return ExpectedArgument(value.dtype, array.dtype, array.shape, None)
    if type(value) is np.ndarray:
        array = cast("np.ndarray[Any, Any]", value)
        return ExpectedArgument(None, array.dtype, array.shape, None)
    if type(value) not in _SCALARS or (type(value) is float and value == 0):
        return None  # 0.0 == -0.0
    return ExpectedArgument(None, None, None, value)


def _match(call: CachedCall, args: tuple[Any, ...]) -> list[Any] | None:
    """The arrays of the arguments; None if they are not as the call expects."""
    if len(args) != len(call.expected):
        return None
    arrays: list[Any] = []
    for value, expected in zip(args, call.expected):  # noqa: B905 - lengths are equal, as checked above
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
