"""Hooks: objects that a monitored session calls before and after every step.

A hook may ask for fetches and feeds of its own with each step, look at what came of them, and
request that training stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from thalweg.graph.context import Runner
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.train.coordinator import Coordinator


@public("train.SessionRunArgs", "estimator.SessionRunArgs")
class SessionRunArgs(NamedTuple):
    """What a hook adds to a step, returned by its `before_run`.

    Args:
        fetches: tensors, or any nesting of them.
        feed_dict: values to feed.
        options: a `tf.RunOptions`.

    Example:
        >>> loss = tf.constant(0.5)
        >>> class Log(tf.train.SessionRunHook):
        ...     def before_run(self, run_context):
        ...         return tf.train.SessionRunArgs(loss)
        ...     def after_run(self, run_context, run_values):
        ...         print("loss", run_values.results)
        >>> with tf.train.MonitoredSession(hooks=[Log()]) as session:
        ...     session.run(loss)
        loss 0.5
        np.float32(0.5)
    """

    fetches: Any
    feed_dict: Mapping[Any, Any] | None = None
    options: Any = None


@public("train.SessionRunValues", "estimator.SessionRunValues")
class SessionRunValues(NamedTuple):
    """What a step gave to a hook: its fetches, and the options and metadata of the step."""

    results: Any
    options: Any
    run_metadata: Any


@public("train.SessionRunContext", "estimator.SessionRunContext")
class SessionRunContext:
    """The step that hooks are called around."""

    def __init__(self, original_args: SessionRunArgs, session: Runner) -> None:
        self._original_args = original_args
        self._session = session
        self._stop_requested = False

    @property
    def original_args(self) -> SessionRunArgs:
        """What the program asked for, as SessionRunArgs."""
        return self._original_args

    @property
    def session(self) -> Runner:
        """The session that runs the step; what a hook runs in it calls no hooks."""
        return self._session

    @property
    def stop_requested(self) -> bool:
        """Whether a hook asked to stop."""
        return self._stop_requested

    def request_stop(self) -> None:
        """Have the monitored session say from now on that the program should stop."""
        self._stop_requested = True


@public("train.SessionRunHook", "estimator.SessionRunHook")
class SessionRunHook:
    """What to do around the steps of a monitored session; every method may be left as it is.

    Example:
        >>> class Count(tf.train.SessionRunHook):
        ...     steps = 0
        ...     def after_run(self, run_context, run_values):
        ...         self.steps += 1
        >>> x, count = tf.constant(1.0), Count()
        >>> with tf.train.MonitoredSession(hooks=[count]) as session:
        ...     values = [session.run(x) for _ in range(3)]
        >>> count.steps
        3
    """

    def begin(self) -> None:
        """Called once, before the session is made: the graph may still grow."""

    def after_create_session(self, session: Runner, coord: Coordinator) -> None:
        """Called with each new session, also with one that replaces a lost one."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each step; may add to it."""

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after each step that raised nothing."""

    def end(self, session: Runner) -> None:
        """Called once when all went well, before the session is closed."""
