"""The traces of a function: which one a call uses, when a new one is made, and why it was.

A trace serves all calls with its skeleton (structure, dtypes, Python values) and shapes. When a
second shape comes for an argument, the sizes that differ are left open in the next trace. The least
recently used of too many traces goes; a function that is traced again and again says so.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from thalweg.functions.traced.call_cache import CallCache
from thalweg.functions.traced.concrete import ConcreteFunction, accepts, trace
from thalweg.functions.traced.signature import (
    Arguments,
    Known,
    Parameters,
    Same,
    Sizes,
    differences,
    joined,
)
from thalweg.graph.context import ThreadStack
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.origin import user_line
from thalweg.graph.subgraph import root
from thalweg.platform import tf_logging
from thalweg.platform.forks import freed_after_fork
from thalweg.variables.scope import function_scope
from thalweg.variables.variable import Variable, creations

MAX_TRACES = 64
_MAX_NOTED = 256  # retraces whose reasons are kept
_STORM, _WINDOW = 5, 8  # so many traces within so many calls are worth a warning
_DEEPEST = 48  # calls of functions inside functions while these are traced


class Retrace(NamedTuple):
    """One trace: at which call and line it was made, and what was new."""

    call: int
    reasons: tuple[str, ...]  # none for the first one
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

    def __len__(self) -> int:
        return self.count

    def __str__(self) -> str:
        head = (
            f"{self.name}: {self.calls} calls, {self.count} traces ({self.kept} kept, "
            f"at most {MAX_TRACES})"
        )
        first = self.count - len(self.traces) + 1
        lines = [f"  {number}. {one}" for number, one in enumerate(self.traces, first)]
        return "\n".join([head, *lines])

    __repr__ = __str__


#: The traces that are being made in this thread, outside in.
_tracing: ThreadStack[tuple[Any, Any, Any]] = ThreadStack()
#: One trace at a time in the process: they share the graph around them.
_lock = freed_after_fork(threading.RLock())


@dataclass
class _GraphState:
    """What a function has in the graph around it."""

    is_traced: bool = False  # from then on, it makes no variables
    scopes: dict[str, int] | None = None  # how often they were opened when the first trace began
    variables: list[Variable] = field(default_factory=list[Variable])


class Traces:
    """What was traced of one function."""

    def __init__(self, name: str, parameters: Parameters, relaxes: bool | None) -> None:
        self.name = name
        self.calls = 0
        self.count = 0  # of traces
        self.retraces: list[Retrace] = []
        self.parameters = parameters
        self.recent = CallCache()
        self._relaxes = relaxes
        self._found: OrderedDict[Any, list[ConcreteFunction]] = OrderedDict()
        self._rigid: set[Any] = set()  # skeletons that need all sizes to be known
        self._graph_states: dict[Same, _GraphState] = {}
        self._warned_at = 0

    def report(self) -> Report:
        """How often the function was called and traced, and why."""
        return Report(self.name, self.calls, self.count, len(self._all()), tuple(self.retraces))

    @property
    def variables(self) -> list[Variable]:
        """The variables that the function made where it is called now."""
        around = self._graph_states.get(Same(root(get_default_graph())))
        return [] if around is None else list(around.variables)

    def find(self, function: Callable[..., Any], arguments: Arguments) -> ConcreteFunction:
        """The trace for a call: one that was made before, or a new one."""
        outer = root(get_default_graph())
        key = (Same(outer), arguments.skeleton)
        found = self._known(key, arguments)
        if found is not None:
            return found
        with _lock:
            return self._known(key, arguments) or self._make(function, arguments, outer, key)

    def _known(self, key: Any, arguments: Arguments) -> ConcreteFunction | None:
        """The most exact of the traces that serve a call."""
        kept = self._found.get(key, ())
        graph = get_default_graph()
        for concrete in kept:
            if accepts(concrete, arguments) and concrete.is_usable(graph):
                self._found.move_to_end(key)
                return concrete
        return None

    def _all(self) -> list[ConcreteFunction]:
        return [concrete for kept in list(self._found.values()) for concrete in kept]

    # Tracing

    def _make(
        self, function: Callable[..., Any], arguments: Arguments, outer: Graph, key: Any
    ) -> ConcreteFunction:
        reasons = self._reasons(arguments, key)
        shapes = self._shapes(arguments, key, outer)
        with self._not_again(key, shapes):
            try:
                made = self._traced(function, arguments, shapes, outer)
            except Exception:
                if shapes == arguments.shapes:
                    raise
                self._rigid.add(key)  # it needs the sizes
                made = self._traced(function, arguments, arguments.shapes, outer)
        self._keep(key, made)
        line = user_line()
        self.retraces = [*self.retraces, Retrace(self.calls, reasons, str(made), line)]
        del self.retraces[:-_MAX_NOTED]
        self.count += 1
        self._warn_of_storm()
        self.recent.clear()
        return made

    def _shapes(self, arguments: Arguments, key: Any, outer: Graph) -> tuple[Sizes, ...]:
        """The shapes to trace for: where others came before, what they have in common.

        Graphs count on the static shapes of what a call gives, so there it must be asked for.
        """
        relaxes = outer.is_eager if self._relaxes is None else self._relaxes
        if not relaxes or key in self._rigid:
            return arguments.shapes
        shapes = arguments.shapes
        for concrete in self._found.get(key, ()):
            if concrete.is_usable(get_default_graph()):
                shapes = tuple(map(joined, shapes, concrete.known.shapes))
        return shapes

    @contextmanager
    def _not_again(self, key: Any, shapes: Any) -> Generator[None]:
        """Refuse to trace what is being traced: it would never end."""
        open_traces = _tracing.items
        if (self, key, shapes) in open_traces:
            raise RecursionError(
                f"{self.name} calls itself with arguments of the same signature while it is traced "
                f"(at {user_line()}): a trace calls the Python function once, so this never ends. "
                "Recursion may go over Python values that reach an end; for one that depends on "
                "tensors, write a tf.while_loop"
            )
        if len(open_traces) >= _DEEPEST:
            raise RecursionError(
                f"{self.name} is called inside {_DEEPEST} other traces (at {user_line()}): "
                "recursion over Python values must reach an end before that"
            )
        with _tracing.pushed((self, key, shapes)):
            yield

    def _traced(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        shapes: tuple[Sizes, ...],
        outer: Graph,
    ) -> ConcreteFunction:
        around = self._graph_states.setdefault(Same(outer), _GraphState())
        note = self._refuse if around.is_traced else around.variables.append
        scope = function_scope(around.scopes)
        with creations.pushed(note), outer.name_scope(None), scope as around.scopes:
            made = trace(function, self.parameters, arguments, shapes, outer, self.name)
        around.is_traced = True
        return made

    def _refuse(self, variable: Variable) -> None:
        raise ValueError(
            f"tf.function {self.name} tried to create a variable on a later call (at "
            f"{user_line()}): variables may be created only by the first one. Make them outside of "
            "the function, or keep the first one, as in `if self.weight is None: self.weight = "
            "tf.Variable(...)`"
        )

    def _keep(self, key: Any, made: ConcreteFunction) -> None:
        """Add a trace, the exact ones first; the least recently used one of too many goes."""
        kept = [made, *self._found.get(key, ())]
        kept.sort(key=_openness)
        self._found[key] = kept
        self._found.move_to_end(key)
        for gone in [k for k in self._found if _is_gone(k)]:
            del self._found[gone]
        self._graph_states = {k: s for k, s in self._graph_states.items() if not k.is_gone}
        while len(self._all()) > MAX_TRACES:
            oldest = next(iter(self._found))
            self._found[oldest].pop()
            if not self._found[oldest]:
                del self._found[oldest]

    # Why

    def _reasons(self, arguments: Arguments, key: Any) -> tuple[str, ...]:
        """How a call differs from the trace that is most like it."""
        if not self.retraces:
            return ()
        mine = [k for k in self._found if k[0] == key[0]]
        if not mine:
            return ("called in another graph",)
        kept = [concrete.known for k in reversed(mine) for concrete in self._found[k]]
        found = [differences(known, arguments) for known in kept if _is_like(known, arguments)]
        found = [reasons for reasons in found if reasons]
        if not found:
            return ("what the function takes from outside is of another graph",)
        return tuple(min(found, key=len))

    def _warn_of_storm(self) -> None:
        count = len(self.retraces)
        if count < _STORM or count < 2 * self._warned_at:
            return
        recent = self.retraces[-_STORM:]
        if self.calls - recent[0].call >= _WINDOW:
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


def _openness(concrete: ConcreteFunction) -> int:
    """How many sizes a trace leaves open."""
    return sum(
        100 if sizes is None else sum(size is None for size in sizes)
        for sizes in concrete.known.shapes
    )


def _is_gone(key: Any) -> bool:
    """Whether no call can ever need a trace again: an object it was made for is gone."""
    graph, skeleton = key
    return graph.is_gone or any(isinstance(kind, Same) and kind.is_gone for kind in skeleton)


def _is_like(known: Known, arguments: Arguments) -> bool:
    """Whether the difference between two calls can be stated argument by argument."""
    return bool(known.skeleton) == bool(arguments.skeleton)
