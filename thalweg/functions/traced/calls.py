"""The cache of a function's calls in eager code.

The most recent calls are cached with their programs, by their arguments without parsing a
structure. The program takes the arrays of the arguments as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.functions.eager import EAGER
from thalweg.functions.lazy_trace import LazyTrace
from thalweg.functions.tensors import EagerTensor, class_of
from thalweg.ops.core.buffer import Buffer
from thalweg.platform.caches import Bounded

if TYPE_CHECKING:
    from thalweg.functions.traced.concrete import ConcreteFunction

_MAX_CALLS = 4
_SCALARS = frozenset((int, float, str, bool, type(None)))

MISS: Any = object()  # no cached call matches


#: Runs a call: (arrays of the arguments, the current lazy trace) -> the result, or MISS
CachedCall = Callable[[list[Any], LazyTrace], Any]


class CallCache:
    """The most recent calls of a function, by the dtypes, shapes and values of their arguments."""

    def __init__(self) -> None:
        self._calls = Bounded[Any, CachedCall]("calls of a function", _MAX_CALLS)
        self.clear = self._calls.clear  # a new trace may fit better, or one was dropped

    def run(self, args: tuple[Any, ...]) -> Any:
        """The result of a call that is cached; MISS for others."""
        state = EAGER.__dict__  # of this thread: looked up once
        if state["tapes"]:
            return MISS
        arrays: list[Any] = []
        call = self._calls.get(_call_key(args, state["device_name"], arrays))
        if call is None:
            return MISS
        return call(arrays, state["lazy_trace"])

    def add(self, args: tuple[Any, ...], tensors: Sequence[Any], of: ConcreteFunction) -> None:
        """Cache a call that ran, if its arguments are tensors, arrays and scalars alone."""
        arrays: list[Any] = []
        key = _call_key(args, EAGER.device_name, arrays)
        if key is None or len(arrays) != len(tensors):
            return
        call = of.cached_call(tensors)
        if call is not None:
            self._calls[key] = call


def _call_key(args: tuple[Any, ...], device: str, arrays: list[Any]) -> Any:
    """The key of a call, whose arrays are appended to `arrays`; None if an argument is pending, or
    anything but a tensor, an array or a scalar."""
    parts: list[Any] = [device]
    for value in args:
        kind = class_of(value)
        if kind is EagerTensor:
            array = value._array  # pyright: ignore[reportPrivateUsage] - one mechanism in several files
            if class_of(array) is not np.ndarray and not isinstance(array, Buffer):
                return None
            parts += array.shape, array.dtype  # not as of arrays, which belong to the caller
            arrays.append(array)
        elif kind is np.ndarray:
            parts += value.dtype, value.shape
            arrays.append(value)
        elif kind in _SCALARS and (value or kind is not float):  # 0.0 == -0.0
            parts += kind, value
        else:
            return None
    return tuple(parts)


def run_pending_before(has_effects: bool) -> None:
    """Run pending ops before a call, if they or the call have effects."""
    lazy_trace = EAGER.lazy_trace
    if not lazy_trace.done and (has_effects or lazy_trace.end.path_has_effects):
        lazy_trace.finish()
