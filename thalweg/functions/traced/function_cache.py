"""The caches of a function: which trace a call uses, why new ones were made, and recent calls.

A trace serves all calls with its skeleton (structure, dtypes, Python values) and shapes. When an
argument has a second shape, the sizes that differ are unknown in the next trace. The least recently
used trace is evicted; a function that is retraced often logs a warning. In eager code, the most
recent calls are cached with their programs, by their arguments without parsing a structure. The
program takes the arrays of the arguments as they are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from thalweg.functions.eager import EAGER
from thalweg.functions.tensors import EagerTensor, class_of
from thalweg.functions.traced.concrete import MISS, CachedCall, ConcreteFunction, trace
from thalweg.functions.traced.signature import (
    Arguments,
    IdentityKey,
    Parameters,
    Sizes,
    covers,
    differences,
    generalized,
)
from thalweg.graph.context import ThreadStack
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.origin import user_line
from thalweg.graph.subgraph import root
from thalweg.ops.core.buffer import Buffer
from thalweg.platform import tf_logging
from thalweg.platform.caches import Bounded
from thalweg.platform.forks import freed_after_fork
from thalweg.variables.scope import function_scope
from thalweg.variables.variable import Variable, creations

MAX_TRACES = 64
_MAX_REPORTED = 256  # retraces whose reasons are kept
_STORM_TRACES, _STORM_CALLS = 5, 8  # warn of so many traces within so many calls
_MAX_DEPTH = 48  # of nested traces
_MAX_CALLS = 4  # that are cached
_SCALARS = frozenset((int, float, str, bool, type(None)))


class Retrace(NamedTuple):
    """One trace: the call and line that made it, and how the call differed from earlier ones."""

    call: int
    reasons: tuple[str, ...]  # empty for the first trace
    signature: str
    line: str

    def __str__(self) -> str:
        why = "; ".join(self.reasons) or "the first call"
        return f"call {self.call} at {self.line}: {why}\n    {self.signature}"


@dataclass(frozen=True, repr=False)
class Report:
    """How often a function was called and traced, and why: an object to print."""

    name: str
    calls: int
    count: int
    kept: int
    traces: tuple[Retrace, ...]

    def __str__(self) -> str:
        head = (
            f"{self.name}: {self.calls} calls, {self.count} traces ({self.kept} kept, "
            f"at most {MAX_TRACES})"
        )
        first = self.count - len(self.traces) + 1
        lines = [f"  {number}. {retrace}" for number, retrace in enumerate(self.traces, first)]
        return "\n".join([head, *lines])

    __repr__ = __str__


#: The traces in progress of this thread, outermost first.
_tracing: ThreadStack[tuple[Any, Any, Any]] = ThreadStack()
#: Serializes tracing in the process: traces share the outer graph.
_lock = freed_after_fork(threading.RLock())


@dataclass
class _GraphState:
    """The state of a function in one outer graph."""

    is_traced: bool = False  # it may create no more variables
    scopes: dict[str, int] | None = None  # how often each was opened before the first trace
    variables: list[Variable] = field(default_factory=list[Variable])


class TraceCache:
    """The traces of one function."""

    def __init__(self, name: str, parameters: Parameters, relax_shapes: bool | None) -> None:
        self.name = name
        self.calls = 0
        self.count = 0  # of traces
        self.retraces: list[Retrace] = []
        self.parameters = parameters
        self.call_cache = CallCache()
        self._relax_shapes = relax_shapes
        self._traces_by_key: OrderedDict[Any, list[ConcreteFunction]] = OrderedDict()
        self._static_only: set[Any] = set()  # keys whose traces need static shapes
        self._graph_states: dict[IdentityKey, _GraphState] = {}
        self._warned_at = 0

    def empty_for(self, function: Callable[..., Any]) -> TraceCache:
        """A cache for another function, such as a method, with the same options."""
        parameters = Parameters(function, self.parameters.specs)
        return TraceCache(self.name, parameters, self._relax_shapes)

    def report(self) -> Report:
        """How often the function was called and traced, and why."""
        return Report(self.name, self.calls, self.count, len(self._all()), tuple(self.retraces))

    @property
    def variables(self) -> list[Variable]:
        """The variables that the function created in the current graph."""
        state = self._graph_states.get(IdentityKey(root(get_default_graph())))
        return [] if state is None else list(state.variables)

    def find(self, function: Callable[..., Any], arguments: Arguments) -> ConcreteFunction:
        """The trace for a call, made on first use."""
        outer = root(get_default_graph())
        key = (IdentityKey(outer), arguments.skeleton)
        concrete = self._lookup(key, arguments)
        if concrete is not None:
            return concrete
        with _lock:
            return self._lookup(key, arguments) or self._trace_new(function, arguments, outer, key)

    def _lookup(self, key: Any, arguments: Arguments) -> ConcreteFunction | None:
        """The trace that serves a call with the fewest unknown sizes."""
        graph = get_default_graph()
        for concrete in self._traces_by_key.get(key, ()):
            fits = all(map(covers, concrete.signature.shapes, arguments.shapes))
            if fits and concrete.is_usable(graph):
                self._traces_by_key.move_to_end(key)
                return concrete
        return None

    def _all(self) -> list[ConcreteFunction]:
        return [concrete for traces in list(self._traces_by_key.values()) for concrete in traces]

    # Tracing

    def _trace_new(
        self, function: Callable[..., Any], arguments: Arguments, outer: Graph, key: Any
    ) -> ConcreteFunction:
        reasons = self._reasons(arguments, key)
        shapes = self._shapes(arguments, key, outer)
        with self._guard_recursion(key, shapes):
            try:
                concrete = self._trace(function, arguments._replace(shapes=shapes), outer)
            except Exception:
                if shapes == arguments.shapes:
                    raise
                self._static_only.add(key)  # it needs static shapes
                concrete = self._trace(function, arguments, outer)
        self._insert(key, concrete)
        retrace = Retrace(self.calls, reasons, str(concrete), user_line())
        self.retraces = [*self.retraces, retrace][-_MAX_REPORTED:]
        self.count += 1
        self._warn_of_storm()
        self.call_cache.clear()
        return concrete

    def _shapes(self, arguments: Arguments, key: Any, outer: Graph) -> tuple[Sizes, ...]:
        """The shapes to trace for, generalized by those of earlier traces.

        By default only in eager code: graph code relies on the static shapes of results.
        """
        relax_shapes = outer.is_eager if self._relax_shapes is None else self._relax_shapes
        if not relax_shapes or key in self._static_only:
            return arguments.shapes
        shapes = arguments.shapes
        for concrete in self._traces_by_key.get(key, ()):
            if concrete.is_usable(get_default_graph()):
                shapes = tuple(map(generalized, shapes, concrete.signature.shapes))
        return shapes

    @contextmanager
    def _guard_recursion(self, key: Any, shapes: Any) -> Generator[None]:
        """Raise for unbounded recursion while tracing."""
        open_traces = _tracing.items
        if (self, key, shapes) in open_traces:
            raise RecursionError(
                f"{self.name} calls itself with arguments of the same signature while it is traced "
                f"(at {user_line()}): a trace calls the Python function once, so this never ends. "
                "Recursion may go over Python values that reach an end; for one that depends on "
                "tensors, write a tf.while_loop"
            )
        if len(open_traces) >= _MAX_DEPTH:
            raise RecursionError(
                f"{self.name} is called inside {_MAX_DEPTH} other traces (at {user_line()}): "
                "recursion over Python values must reach an end before that"
            )
        with _tracing.pushed((self, key, shapes)):
            yield

    def _trace(
        self, function: Callable[..., Any], arguments: Arguments, outer: Graph
    ) -> ConcreteFunction:
        state = self._graph_states.setdefault(IdentityKey(outer), _GraphState())
        on_creation = self._reject_variable if state.is_traced else state.variables.append
        scope = function_scope(state.scopes)
        with creations.pushed(on_creation), outer.name_scope(None), scope as state.scopes:
            concrete = trace(function, self.parameters, arguments, outer, self.name)
        state.is_traced = True
        return concrete

    def _reject_variable(self, variable: Variable) -> None:
        raise ValueError(
            f"tf.function {self.name} tried to create a variable on a later call (at "
            f"{user_line()}): variables may be created only by the first one. Make them outside of "
            "the function, or keep the first one, as in `if self.weight is None: self.weight = "
            "tf.Variable(...)`"
        )

    def _insert(self, key: Any, concrete: ConcreteFunction) -> None:
        """Add a trace, those with fewest unknown sizes first; evict dead and least recent ones."""
        traces = [concrete, *self._traces_by_key.get(key, ())]
        self._traces_by_key[key] = sorted(traces, key=_unknown_dims)
        self._traces_by_key.move_to_end(key)
        for dead in [k for k in self._traces_by_key if _is_dead(k)]:
            del self._traces_by_key[dead]
        self._graph_states = {k: s for k, s in self._graph_states.items() if not k.is_dead}
        while len(self._all()) > MAX_TRACES:
            oldest = next(iter(self._traces_by_key))
            self._traces_by_key[oldest].pop()
            if not self._traces_by_key[oldest]:
                del self._traces_by_key[oldest]

    # Reports

    def _reasons(self, arguments: Arguments, key: Any) -> tuple[str, ...]:
        """How a call differs from the most similar trace."""
        if not self.retraces:
            return ()
        same_graph = [k for k in self._traces_by_key if k[0] == key[0]]
        if not same_graph:
            return ("called in another graph",)
        traced = [c.signature for k in reversed(same_graph) for c in self._traces_by_key[k]]
        comparable = [old for old in traced if bool(old.skeleton) == bool(arguments.skeleton)]
        reasons = filter(None, [differences(old, arguments) for old in comparable])
        outside = ["what the function takes from outside is of another graph"]
        return tuple(min(reasons, key=len, default=outside))

    def _warn_of_storm(self) -> None:
        count = len(self.retraces)
        if count < _STORM_TRACES or count < 2 * self._warned_at:
            return
        recent = self.retraces[-_STORM_TRACES:]
        if self.calls - recent[0].call >= _STORM_CALLS:
            return
        self._warned_at = count
        tf_logging.warning(
            "%d of the last %d calls of tf.function %s retraced it, which is slow. The last one "
            "(at %s): %s. Pass what changes as a tensor (Python numbers and objects count by value "
            "and identity), give an input_signature, or make the function once, outside of the "
            "loop. print(%s.explain()) shows all traces",
            len(recent),
            self.calls - recent[0].call + 1,
            self.name,
            recent[-1].line,
            "; ".join(recent[-1].reasons),
            self.name,
        )


def _unknown_dims(concrete: ConcreteFunction) -> int:
    """The number of unknown sizes in the arguments of a trace."""
    return sum(
        100 if sizes is None else sum(size is None for size in sizes)
        for sizes in concrete.signature.shapes
    )


def _is_dead(key: Any) -> bool:
    """Whether no call can use a trace any more: an object of its key was collected."""
    graph, skeleton = key
    return graph.is_dead or any(isinstance(kind, IdentityKey) and kind.is_dead for kind in skeleton)


# Recent calls in eager code


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
