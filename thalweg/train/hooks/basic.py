"""Hooks that watch a training run: stop at a step, log tensors, stop at a NaN, count steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph.context import Runner
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import FetchLike, Structure
from thalweg.graph.node import Tensor
from thalweg.platform import tf_logging
from thalweg.public import public
from thalweg.train import clock
from thalweg.train.disk_errors import log_disk_errors
from thalweg.train.event_files import event_writer, rate_summary
from thalweg.train.global_steps import get_global_step, global_step
from thalweg.train.hooks.session_run_hook import SessionRunArgs, SessionRunHook
from thalweg.train.hooks.step_timer import (
    NeverTriggerTimer,
    PeriodicHook,
    SecondOrStepTimer,
    watched_global_step,
)

if TYPE_CHECKING:
    from thalweg.summary.writer import FileWriter
    from thalweg.train.coordinator import Coordinator
    from thalweg.train.hooks.session_run_hook import SessionRunContext, SessionRunValues

_WAITER_GLANCE = 0.5  # seconds between two looks at the global step
_WAITER_LOG_EVERY = 1000  # steps
_STUCK_WARNINGS = 5


@public("train.StopAtStepHook", "estimator.StopAtStepHook")
class StopAtStepHook(SessionRunHook):
    """Ends the training of a monitored session at some step.

    Args:
        num_steps: how many steps to run from now on.
        last_step: the value of the global step to stop at; give one of the two.

    Example:
        >>> step = tf.train.get_or_create_global_step()
        >>> train = tf.assign_add(step, 1)
        >>> with tf.train.MonitoredSession(hooks=[tf.train.StopAtStepHook(num_steps=2)]) as session:
        ...     while not session.should_stop():
        ...         print(session.run(train))
        1
        2
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if num_steps is None and last_step is None:
            raise ValueError("One of num_steps or last_step must be specified.")
        if num_steps is not None and last_step is not None:
            raise ValueError("Only one of num_steps or last_step can be specified.")
        self._num_steps = num_steps
        self._last_step = last_step

    def begin(self) -> None:
        """Find the global step."""
        self._global_step_tensor = watched_global_step(self)

    def after_create_session(self, session: Runner, coord: Coordinator) -> None:
        """Count from here; a session that replaces a lost one does not restart the count."""
        if self._last_step is None:
            self._count_from(global_step(session, self._global_step_tensor))

    def _count_from(self, step: int) -> None:
        self._last_step = step + cast("int", self._num_steps)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the global step."""
        return SessionRunArgs(self._global_step_tensor)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Stop at the last step; a step that may be old is read again near the end."""
        if self._last_step is None:
            self._count_from(int(run_values.results) - 1)
        last = cast("int", self._last_step)
        if run_values.results + 1 < last:
            return
        if run_context.session.run(self._global_step_tensor) >= last:
            run_context.request_stop()


@public("train.LoggingTensorHook", "estimator.LoggingTensorHook")
class LoggingTensorHook(SessionRunHook):
    """Logs the values of tensors every so many steps or seconds, or at the end.

    Args:
        tensors: tensors or names of tensors: a list, or a dict by what to call them.
        every_n_iter: log every so many steps.
        every_n_secs: log every so many seconds; give one of the two, or `at_end`.
        at_end: log at the end.
        formatter: a function from a dict of values to the text.

    Example:
        >>> loss = tf.constant(0.5)
        >>> hook = tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=1)
        >>> with tf.train.MonitoredSession(hooks=[hook]) as session:
        ...     session.run(loss)
        np.float32(0.5)
    """

    def __init__(
        self,
        tensors: Mapping[str, FetchLike] | Sequence[FetchLike],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        only_at_end = at_end and every_n_iter is None and every_n_secs is None
        if not only_at_end and (every_n_iter is None) == (every_n_secs is None):
            raise ValueError(
                "either at_end and/or exactly one of every_n_iter and every_n_secs must be "
                "provided."
            )
        if every_n_iter is not None and every_n_iter <= 0:
            raise ValueError(f"invalid every_n_iter={every_n_iter}.")
        self._tensors = _by_tag(tensors)
        self._formatter = formatter
        self._log_at_end = at_end
        self._timer = (
            NeverTriggerTimer() if only_at_end else SecondOrStepTimer(every_n_secs, every_n_iter)
        )

    def begin(self) -> None:
        """Find the tensors in the graph."""
        self._timer.reset()
        self._count = 0
        self._is_due = False
        self._current = {tag: _graph_element(tensor) for tag, tensor in self._tensors.items()}

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the tensors when it is time."""
        self._is_due = self._timer.should_trigger_for_step(self._count)
        return SessionRunArgs(self._current) if self._is_due else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log them."""
        if self._is_due:
            self._log(run_values.results)
        self._count += 1

    def end(self, session: Runner) -> None:
        """Log them a last time, if that is wanted."""
        if self._log_at_end:
            self._log(session.run(self._current))

    def _log(self, values: dict[Any, Any]) -> None:
        seconds, _ = self._timer.update_last_triggered_step(self._count)
        if self._formatter is not None:
            tf_logging.info("%s", self._formatter(values))
            return
        with np.printoptions(suppress=True):
            text = ", ".join(f"{_tag(tag)} = {values[tag]}" for tag in self._tensors)
        if seconds is None:
            tf_logging.info("%s", text)
        else:
            tf_logging.info("%s (%.3f sec)", text, seconds)


def _by_tag(tensors: Any) -> dict[Any, Any]:
    if isinstance(tensors, Mapping):
        return dict(cast("Mapping[Any, Any]", tensors))
    return {tensor: tensor for tensor in tensors}


def _tag(tag: Any) -> str:
    return tag if isinstance(tag, str) else getattr(tag, "name", str(tag))


def _graph_element(value: Any) -> Any:
    """The tensor or node of the default graph that a value or its name means."""
    graph = get_default_graph()
    if isinstance(value, str) and ":" not in value:
        return graph.as_graph_element(f"{value}:0")
    element = graph.as_graph_element(value)
    if element.graph is not graph:
        raise ValueError(f"{value} is of another graph than the current one")
    return element


@public("train.NanLossDuringTrainingError", "estimator.NanLossDuringTrainingError")
class NanLossDuringTrainingError(RuntimeError):
    """The loss is not a number."""

    def __str__(self) -> str:
        return "NaN loss during training."


@public("train.NanTensorHook", "estimator.NanTensorHook")
class NanTensorHook(SessionRunHook):
    """Ends the training when the loss is not a number.

    Args:
        loss_tensor: the loss.
        fail_on_nan_loss: raise an error, else request a stop.

    Example:
        >>> hook = tf.train.NanTensorHook(tf.constant(0.5), fail_on_nan_loss=True)
    """

    def __init__(self, loss_tensor: Tensor | str, fail_on_nan_loss: bool = True) -> None:
        self._loss_tensor = loss_tensor
        self._fail_on_nan_loss = fail_on_nan_loss

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the loss."""
        return SessionRunArgs(self._loss_tensor)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Look at the loss."""
        if not np.any(np.isnan(run_values.results)):
            return
        if self._fail_on_nan_loss:
            tf_logging.error("Model diverged with loss = NaN.")
            raise NanLossDuringTrainingError
        tf_logging.warning("Model diverged with loss = NaN.")
        run_context.request_stop()


@public("train.StepCounterHook", "estimator.StepCounterHook")
class StepCounterHook(PeriodicHook):
    """Logs how many steps are made in a second, and writes it as a summary."""

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: FileWriter | None = None,
    ) -> None:
        if (every_n_steps is None) == (every_n_secs is None):
            raise ValueError("exactly one of every_n_steps and every_n_secs should be provided.")
        super().__init__(SecondOrStepTimer(every_n_secs, every_n_steps))
        self._summary_writer = summary_writer
        self._output_dir = output_dir
        self._last_seen: int | None = None
        self._stuck_warnings = 0

    def begin(self) -> None:
        """Open the event file."""
        if self._summary_writer is None and self._output_dir:
            self._summary_writer = event_writer(self._output_dir)
        super().begin()
        self._tag = f"{get_global_step().op.name}/sec"

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log and write when it is time."""
        step = self.due_step(run_context, run_values)
        if step is not None:
            seconds, steps = self._timer.update_last_triggered_step(step)
            if seconds is not None and steps is not None:
                self._log_and_record(steps, seconds, step)
        self._warn_if_stuck(int(run_values.results))

    def _log_and_record(self, elapsed_steps: int, elapsed_time: float, global_step: int) -> None:
        rate = elapsed_steps / elapsed_time if elapsed_time else float("inf")
        tf_logging.info("%s: %g", self._tag, rate)
        if self._summary_writer is not None:
            with log_disk_errors("Writing a summary"):
                self._summary_writer.add_summary(rate_summary(self._tag, rate), global_step)

    def _warn_if_stuck(self, step: int) -> None:
        """A program that never moves its global step gets no checkpoints either: tell it."""
        if step == self._last_seen and self._stuck_warnings < _STUCK_WARNINGS:
            self._stuck_warnings += 1
            tf_logging.warning(
                "The global step has not moved since the last step: it is %d. Pass it to "
                "Optimizer.minimize to have it counted.",
                step,
            )
        self._last_seen = step


@public("train.FeedFnHook", "estimator.FeedFnHook")
class FeedFnHook(SessionRunHook):
    """Feeds each step of a monitored session what a function returns.

    Args:
        feed_fn: a function without arguments that returns a feed dict.

    Example:
        >>> x = tf.placeholder(tf.float32, [])
        >>> y, hook = x * 3, tf.train.FeedFnHook(lambda: {x: 2.0})
        >>> with tf.train.MonitoredSession(hooks=[hook]) as session:
        ...     session.run(y)
        np.float32(6.0)
    """

    def __init__(self, feed_fn: Callable[[], Mapping[Any, Any]]) -> None:
        self.feed_fn = feed_fn

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask the function."""
        return SessionRunArgs(fetches=None, feed_dict=self.feed_fn())


@public("train.FinalOpsHook", "estimator.FinalOpsHook")
class FinalOpsHook(SessionRunHook):
    """Computes something at the end of the session, kept as `final_ops_values`."""

    def __init__(
        self, final_ops: FetchLike | None, final_ops_feed_dict: Mapping[Any, Any] | None = None
    ) -> None:
        self._final_ops = final_ops
        self._final_ops_feed_dict = final_ops_feed_dict
        self._final_ops_values: Any = None

    @property
    def final_ops_values(self) -> Structure:
        """What came out at the end."""
        return self._final_ops_values

    def end(self, session: Runner) -> None:
        """Compute it."""
        if self._final_ops is None:
            return
        try:
            self._final_ops_values = session.run(self._final_ops, self._final_ops_feed_dict)
        except (errors.OutOfRangeError, StopIteration) as error:
            tf_logging.error(
                "The final ops hit the end of the input (%s): they should not depend on it.", error
            )
            raise


@public("train.GlobalStepWaiterHook", "estimator.GlobalStepWaiterHook")
class GlobalStepWaiterHook(SessionRunHook):
    """Holds the first step back until the global step, moved by others, has come far enough."""

    def __init__(self, wait_until_step: int) -> None:
        self._wait_until_step = wait_until_step

    def begin(self) -> None:
        """Find the global step."""
        self._is_started = self._wait_until_step <= 0
        self._global_step_tensor = watched_global_step(self)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Wait, the first time."""
        if self._is_started:
            return
        tf_logging.info("Waiting for global step %d.", self._wait_until_step)
        logged = 0
        while (step := run_context.session.run(self._global_step_tensor)) < self._wait_until_step:
            if step - logged > _WAITER_LOG_EVERY:
                tf_logging.info("Still waiting: the global step is %d.", step)
                logged = step
            clock.wait(_WAITER_GLANCE)
        self._is_started = True
