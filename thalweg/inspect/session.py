"""The public sessions: they run, explain and trace steps."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from thalweg import protos
from thalweg.cluster.targets import connect, reset
from thalweg.graph import context
from thalweg.graph.graph import Graph, graphs
from thalweg.graph.likes import FetchLike
from thalweg.platform import spans
from thalweg.public import public
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.config import RunMetadata, session_options
from thalweg.runtime.engine import Engine
from thalweg.runtime.plan import Plan
from thalweg.runtime.session import BaseSession, live

if TYPE_CHECKING:
    from thalweg.inspect.explain import StepPlan


class InspectedSession(BaseSession):
    """A session whose steps can be explained and traced."""

    def _connect(self) -> Engine:
        if not self._target:
            return super()._connect()
        return connect(self._target, self._graph, self._options)

    def plan(self, fetches: FetchLike, feed_dict: Mapping[Any, Any] | None = None) -> StepPlan:
        """How a step would run: an object to print and to measure. No state changes.

        Args:
            fetches: as for `run`.
            feed_dict: as for `run`; only the shapes of the values matter.

        Returns:
            A plan whose text lists kernels, memory and devices.

        Example:
            >>> x = tf.placeholder(tf.float32, [None])
            >>> plan = sess.plan(tf.exp(x) + 1, {x: np.zeros(8)})
            >>> "exp" in str(plan)
            True
        """
        self._check_open()
        _, step, values = self._parse(fetches, feed_dict)
        size, engine = len(self._graph.nodes), self._engine
        plan = engine.explained(self._plan(step))
        module = importlib.import_module("thalweg.inspect.explain")  # rarely needed
        return module.explain(plan, step, values, engine.resources, size)

    def _execute_traced(
        self, step: Plan, feeds: Sequence[Any], cancellation: Cancellation, metadata: RunMetadata
    ) -> list[Any]:
        module = importlib.import_module("thalweg.inspect.trace")  # rarely needed
        trace, recorder = module.Trace(step), spans.Recorder()
        clock_offset = time.time_ns() - time.perf_counter_ns()
        try:
            with recorder:
                return self._engine.execute(trace.plan, feeds, cancellation)
        finally:
            stats = module.step_stats(trace, recorder, clock_offset)
            metadata.step_stats.ParseFromString(stats.SerializeToString())


@public("Session")
class Session(InspectedSession):
    """Runs steps of a graph and holds the state that outlives them: variables, queues, tables.

    Inside `with`, the session and its graph are the default ones; at its end the session closes.

    Args:
        target: the empty string to run in this process, or that of a `tf.train.Server`.
        graph: the graph to run; the default graph if None.
        config: a `tf.ConfigProto`: threads, devices, time limits.

    Raises:
        RuntimeError: from `run`, where the session is closed or its graph is empty.

    Example:
        >>> x = tf.placeholder(tf.float32, [None])
        >>> with tf.Session() as sess:
        ...     print(sess.run([x + 1, tf.reduce_sum(x)], {x: [1, 2]}))
        [array([2., 3.], dtype=float32), np.float32(3.0)]
    """

    _entered = False

    def __enter__(self) -> Session:
        if self._entered:
            raise RuntimeError(
                "Session context managers are not re-entrant. Use `Session.as_default()` if you "
                "want to enter a session multiple times."
            )
        self._entered = True
        graphs.items.append(self._graph)
        context.sessions.items.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        context.sessions.items.pop()
        graphs.items.pop()
        self.close()

    @staticmethod
    def reset(
        target: str = "",
        containers: Sequence[str] | None = None,
        config: protos.ConfigProto | None = None,
    ) -> None:
        """Clear the state in some containers (all if None) and close the sessions that use them:
        those of this process, or, given a target, those of a cluster."""
        if target:
            reset(target, containers, session_options(config))
            return
        for session in list(live):
            if containers is not None:
                session.resources.clear(containers)
            session.close()


@public("InteractiveSession")
class InteractiveSession(InspectedSession):
    """A session that is the default one from its construction until it is closed.

    Made for prompts and notebooks: `x.eval()` works without a `with` block.

    Args:
        target: the empty string to run in this process, or that of a `tf.train.Server`.
        graph: the graph to run, which becomes the default graph; the current one if None.
        config: a `tf.ConfigProto`.

    Example:
        >>> session = tf.InteractiveSession()
        >>> tf.constant([1, 2]).eval()
        array([1, 2], dtype=int32)
        >>> session.close()
    """

    def __init__(
        self, target: str = "", graph: Graph | None = None, config: protos.ConfigProto | None = None
    ) -> None:
        super().__init__(target, graph, config)
        self._explicit_graph = graph
        if graph is not None:
            graphs.items.append(graph)
        context.sessions.items.append(self)

    def close(self) -> None:
        """End the session and restore the defaults."""
        super().close()
        if self in context.sessions.items:
            context.sessions.items.remove(self)
        if self._explicit_graph is not None and self._explicit_graph in graphs.items:
            graphs.items.remove(self._explicit_graph)
            self._explicit_graph = None
