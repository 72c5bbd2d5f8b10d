"""Sessions: a graph, the state of its variables, and steps that run.

The public classes, which can also explain and trace steps, are in `thalweg.inspect.session`.
`Session.run` on a step seen before converts the feeds, runs the cached plan and wraps the fetches;
planning happens once per set of fetches and feeds. Any number of threads may run steps at once.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any, cast

from thalweg import errors, protos
from thalweg.graph import context
from thalweg.graph.device import DeviceName
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.graphdef.util import extract_sub_graph
from thalweg.graph.likes import FetchLike, MaybeNone, Structure
from thalweg.graph.node import Node, Tensor
from thalweg.platform import spans
from thalweg.platform.caches import Bounded
from thalweg.platform.compat import as_str
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.config import RunMetadata, session_options
from thalweg.runtime.engine import Engine, LocalEngine
from thalweg.runtime.fast_path import CachedStep, fast_path
from thalweg.runtime.fetches import Fetches, feed_items, feed_tensor, feed_value
from thalweg.runtime.partial import PartialRun
from thalweg.runtime.plan import Plan, Step
from thalweg.runtime.resources import Resources
from thalweg.runtime.step_cache import StepEntry

_MAX_PLANS = 1_000  # steps that a session keeps plans for

live: weakref.WeakSet[BaseSession] = weakref.WeakSet()


class BaseSession:
    """Plans and runs steps: the base of Session and InteractiveSession."""

    def __init__(
        self, target: str = "", graph: Graph | None = None, config: protos.ConfigProto | None = None
    ) -> None:
        if graph is not None and not isinstance(graph, Graph):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
            raise TypeError(f"graph must be a tf.Graph, but got {type(graph)}")
        if not isinstance(target, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
            raise TypeError(f"target must be a string, but got {type(target)}")
        self._target = as_str(target)
        self._graph = graph or get_default_graph()
        if self._graph.is_eager:
            raise RuntimeError(
                "tf.Session() is not compatible with eager execution, which has no graph to run: "
                "look at values, or build a graph inside `with tf.Graph().as_default()`."
            )
        self._options = session_options(config)
        self._engine = self._connect()
        self._engine.on_failure = self._fail
        self._plans = Bounded[Step, Plan]("plans of a session", _MAX_PLANS)
        self._calls = Bounded[Any, tuple[Fetches, CachedStep]]("calls of a session", _MAX_PLANS)
        self._partial_runs: dict[str, PartialRun] = {}
        self._closed = False
        self._failure: errors.OpError | None = None  # the error that ended the session
        self._closing = Cancellation()  # shared by all steps on the fast path
        self._steps: set[Cancellation] = set()
        live.add(self)

    def __repr__(self) -> str:
        return described(
            self,
            nodes=len(self._graph.nodes),
            devices=len(self._engine.placer.devices),
            state="closed" if self._closed else "open",
        )

    def _connect(self) -> Engine:
        """The engine of a session without target; subclasses that know clusters override it."""
        return LocalEngine(self._options)

    @property
    def graph(self) -> Graph:
        """The graph this session runs."""
        return self._graph

    @property
    def graph_def(self) -> protos.GraphDef:
        """The graph in GraphDef form."""
        return self._graph.as_graph_def()

    @property
    def sess_str(self) -> str:
        """The target this session is connected to."""
        return self._target

    @property
    def resources(self) -> Resources:
        """The state of this session: variables and other objects that outlive steps."""
        return self._engine.resources

    # Running

    def run(
        self,
        fetches: FetchLike,
        feed_dict: Mapping[Any, Any] | None = None,
        options: protos.RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Structure:
        """Run one step: compute `fetches` from the values in `feed_dict`.

        Everything that several fetches need is computed once. The first step with some fetches and
        feeds is planned and compiled; later ones start at once.

        Args:
            fetches: a tensor, node, variable or name, or lists, tuples and dicts of them, nested.
            feed_dict: values by the tensor they stand for: arrays, numbers, lists.
            options: a `tf.RunOptions`, to trace the step or to limit its time.
            run_metadata: a `tf.RunMetadata`, emptied and filled with what `options` ask for.

        Returns:
            The nesting of `fetches` with NumPy arrays for tensors and None for nodes.

        Example:
            >>> x = tf.placeholder(tf.float32)
            >>> sess.run({"double": 2 * x, "none": tf.no_op()}, {x: 4})
            {'double': np.float32(8.0), 'none': None}
        """
        self._check_open()
        key = _call_key(fetches, feed_dict)
        is_plain = options is None and run_metadata is None
        known = self._calls.get(key) if is_plain else None
        if known is not None:
            parsed, cached = known
            return parsed.result(cached.run([*feed_dict.values()] if feed_dict else ()))
        parsed, step, arrays = self._parse(fetches, feed_dict)
        if is_plain and key is not None and len(arrays) == len(feed_dict or ()):
            cached = self._cached_step(step)
            values = cached.run(arrays)
            self._calls[key] = parsed, cached
            return parsed.result(values)
        return self._run_with_options(parsed, step, arrays, options, run_metadata)

    def _parse(
        self, fetches: FetchLike, feed_dict: Mapping[Any, Any] | None
    ) -> tuple[Fetches, Step, list[Any]]:
        """The fetches of a call, its step, and the values of the step's feeds."""
        parsed = Fetches(self._graph, fetches)
        feeds = dict(feed_items(self._graph, feed_dict)) if feed_dict else {}
        step = Step(tuple(parsed.tensors), tuple(parsed.targets), tuple(feeds))
        return parsed, step, list(feeds.values())

    def _run_with_options(
        self, parsed: Fetches, step: Step, arrays: Sequence[Any], options: Any, metadata: Any
    ) -> Structure:
        """Run a step, and fill `metadata` with what `options` ask for."""
        values = self._execute(self._plan(step), arrays, options, metadata)
        if metadata is not None and options and options.output_partition_graphs:
            for graph in self._partition_graphs(step):
                metadata.partition_graphs.add().ParseFromString(graph.SerializeToString())
        return parsed.result(values)

    def _partition_graphs(self, step: Step) -> list[Any]:
        """The partitions of a step as GraphDefs, one for each device."""
        partitions = self._engine.explained(self._plan(step)).partitions
        if partitions:
            return [partition.partition.graph.as_graph_def() for partition in partitions]
        wanted = [*(tensor.op.name for tensor in step.fetches), *(n.name for n in step.targets)]
        return [extract_sub_graph(self._graph.as_graph_def(), wanted)]

    def _cached_step(self, step: Step) -> CachedStep:
        """A step with the program that an earlier process stored, or else with a plan. The first
        call that a restored program cannot serve plans the step."""
        entry = self._entry(step)
        path = None if entry is None else entry.find()
        if path is None:
            return self._planned_step(step, entry)
        planned = cache(partial(self._planned_step, step))

        def run(restored: CachedStep, values: Sequence[Any]) -> list[Any]:
            return restored.replace(planned(), values)

        return CachedStep(path, step, run, self._engine.resources, self._closing)

    def _entry(self, step: Step) -> StepEntry | None:
        """The disk entry of a step; None if it has to be planned anyway."""
        options = self._options
        if step in self._plans or options.log_device_placement or options.timeout_in_ms:
            return None
        self._graph.graph_def_versions.check()
        return self._engine.entry(step)

    def _planned_step(self, step: Step, entry: StepEntry | None = None) -> CachedStep:
        """A step with its plan; stores its program in `entry` after a run."""
        planned = self._plan(step)
        has_clock = bool(self._options.timeout_in_ms)  # the fast path does not check it
        path = None if has_clock else fast_path(planned)

        def run(_: CachedStep, values: Sequence[Any]) -> list[Any]:
            feeds = map(feed_value, step.feeds, values) if values else ()
            results = self._execute(planned, [*feeds])
            if entry is not None and path is not None:
                entry.store(path)
            return results

        resources = self._engine.resources.on(planned.device)
        return CachedStep(path, step, run, resources, self._closing)

    def _plan(self, step: Step) -> Plan:
        plan = self._plans.get(step)
        if plan is None:
            self._graph.graph_def_versions.check()
            plan = self._plans[step] = self._engine.plan(step)
            if self._options.log_device_placement:
                _log_placement(plan)
        return plan

    def forget_plans(self) -> None:
        """Plan every step anew, with what has changed since: tuned schedules."""
        self._calls.clear()
        self._plans.clear()

    def _execute(
        self,
        step: Plan,
        feeds: Sequence[Any],
        options: Any = None,
        metadata: RunMetadata | None = None,
    ) -> list[Any]:
        if options is not None or metadata is not None:
            _check_options(options, metadata)
        if metadata is not None:
            metadata.Clear()  # remove the records of an earlier step
        cancellation = Cancellation()
        timer = self._start_timer(cancellation, options)
        self._steps.add(cancellation)  # set.add and set.discard are atomic: no lock
        started = time.perf_counter_ns()
        try:
            if metadata is not None and options and options.trace_level:
                return self._execute_traced(step, feeds, cancellation, metadata)
            return self._engine.execute(step, feeds, cancellation)
        finally:
            self._steps.discard(cancellation)
            if timer is not None:
                timer.cancel()
            if spans.is_on() and step.instructions:  # recorded by a concurrent trace
                spans.record_span("step", step.instructions[-1].node, started)

    def _execute_traced(
        self, step: Plan, feeds: Sequence[Any], cancellation: Cancellation, metadata: RunMetadata
    ) -> list[Any]:
        """Run a step and record it in `metadata`; subclasses that can trace override it."""
        raise NotImplementedError

    def _start_timer(self, cancellation: Cancellation, options: Any) -> threading.Timer | None:
        limit = (options and options.timeout_in_ms) or self._options.timeout_in_ms
        if not limit:
            return None
        late = errors.DeadlineExceededError(
            None, None, f"Timed out waiting for notification: the step took longer than {limit} ms"
        )
        timer = threading.Timer(limit / 1000, cancellation.cancel, [late])
        timer.daemon = True
        timer.start()
        return timer

    def make_callable(
        self,
        fetches: FetchLike,
        feed_list: Sequence[Any] | None = None,
        accept_options: bool = False,
    ) -> Callable[..., Any]:
        """A function that runs one step with positional feeds, everything else prepared.

        Args:
            fetches: as for `run`.
            feed_list: the tensors that the arguments of the function stand for, in order.
            accept_options: whether the function takes `options` and `run_metadata` as `run` does.

        Returns:
            A function of the feeds that returns what `run` would.

        Example:
            >>> x = tf.placeholder(tf.float32)
            >>> double = sess.make_callable(2 * x, [x])
            >>> double(4.0)
            np.float32(8.0)
        """
        self._check_open()
        parsed = Fetches(self._graph, fetches)
        tensors = [feed_tensor(self._graph, feed) for feed in feed_list or ()]
        signature = Step(tuple(parsed.tensors), tuple(parsed.targets), tuple(tensors))
        count, result, run = len(tensors), parsed.result, self._cached_step(signature).run

        def plain(*values: Any) -> Any:
            if self._closed:
                self._check_open()
            if len(values) != count:
                _check_count(len(values), count)
            return result(run(values))

        def call(*values: Any, options: Any = None, run_metadata: RunMetadata | None = None) -> Any:
            if options is None and run_metadata is None:
                return plain(*values)
            self._check_open()
            _check_count(len(values), count)
            arrays = [*map(feed_value, tensors, values)]
            return self._run_with_options(parsed, signature, arrays, options, run_metadata)

        return call if accept_options else plain

    def partial_run_setup(self, fetches: FetchLike, feeds: Sequence[Any] | None = None) -> str:
        """Declare a step that will be fed and fetched in parts; returns its handle."""
        self._check_open()
        parsed = Fetches(self._graph, fetches)
        fed = [feed_tensor(self._graph, feed) for feed in feeds or ()]
        handle = f"partial_run_{len(self._partial_runs)}_{id(parsed)}"
        self._partial_runs[handle] = PartialRun(parsed, fed, self._engine)
        return handle

    def partial_run(
        self, handle: str, fetches: FetchLike, feed_dict: Mapping[Any, Any] | None = None
    ) -> Structure:
        """Continue a partial run with more feeds, as far as `fetches` need."""
        self._check_open()
        if handle not in self._partial_runs:
            raise errors.invalid("Must run 'setup' before performing partial runs!")
        parsed = Fetches(self._graph, fetches)
        feeds = dict(feed_items(self._graph, feed_dict or {}))
        running = self._partial_runs[handle]
        values = running.advance(parsed, feeds)
        if running.is_done:
            del self._partial_runs[handle]
        return parsed.result(values)

    # Lifetime

    def close(self) -> None:
        """End the session: release its state and cancel its running steps."""
        if self._closed and self._failure is None:
            return
        self._closed, self._failure = True, None
        for step in [self._closing, *self._steps]:
            step.cancel(errors.CancelledError(None, None, "Session was closed."))
        self._engine.close()
        self.forget_plans()
        live.discard(self)

    def _fail(self, error: errors.OpError) -> None:
        """End the session with an error that every later step raises."""
        self._failure, self._closed = error, True

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise RuntimeError("Attempted to use a closed Session.")
        if self._graph.version == 0:
            raise RuntimeError("The Session graph is empty. Add operations to the graph first.")

    def as_default(self) -> AbstractContextManager[Any]:
        """Make this the default session (and only that: not its graph) inside the block."""
        return context.sessions.pushed(self)

    def list_devices(self) -> list[DeviceName]:
        """The devices of this session, as strings that also have `name` and `device_type`."""
        return [DeviceName(name) for name in self._engine.placer.devices]


@public("get_default_session")
def get_default_session() -> BaseSession | MaybeNone:
    """The session that `Tensor.eval()` and `Operation.run()` use in this thread.

    Returns:
        The session whose `with` or `as_default()` block is innermost, or None.

    Example:
        >>> with tf.Session() as session:
        ...     tf.get_default_session() is session
        True
    """
    return context.sessions.top


def _call_key(fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
    """The cache key of a call, or None. Only calls whose fetches are tensors, nodes and names,
    alone or in one list or tuple, and whose feeds are tensors have a key."""
    kind = cast("Any", type(fetches))
    items = fetches if kind is list or kind is tuple else (fetches,)
    for item in items:
        if type(item) is not Tensor and type(item) is not Node and type(item) is not str:
            return None
    if not feed_dict:
        return kind, *items
    for key in feed_dict:
        if type(key) is not Tensor:
            return None
    return kind, *items, None, *feed_dict


def _check_count(given: int, wanted: int) -> None:
    if given != wanted:
        raise TypeError(f"the step takes {wanted} feeds, got {given}")


def _check_options(options: Any, metadata: Any) -> None:
    """Raise TypeError unless these are options and metadata, our messages or TensorFlow's."""
    if options is not None and not hasattr(options, "trace_level"):
        raise TypeError(f"options must be a tf.RunOptions, not {options!r}")
    if metadata is not None and not hasattr(metadata, "step_stats"):
        raise TypeError(f"run_metadata must be a tf.RunMetadata, not {metadata!r}")


def _log_placement(planned: Plan) -> None:
    for node, device in planned.placement.items():
        print(f"{node.name}: ({node.type}): {device}", file=sys.stderr)
