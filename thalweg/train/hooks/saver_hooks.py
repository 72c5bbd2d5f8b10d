"""Hooks that write while training runs: checkpoints and summaries.

A file that cannot be written is logged and tried again when its time comes round; only the first
and the last checkpoint must succeed, because without them the run would be for nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from thalweg.graph.collections import GraphKeys
from thalweg.graph.context import Runner
from thalweg.graph.graph import get_default_graph
from thalweg.graph.nest import as_list
from thalweg.graph.node import Tensor
from thalweg.platform import tf_logging
from thalweg.public import public
from thalweg.saved.saver import Saver
from thalweg.train.disk_errors import log_disk_errors
from thalweg.train.event_files import checkpoint_log, event_writer, start_log, write_graph_files
from thalweg.train.global_steps import global_step
from thalweg.train.hooks.session_run_hook import SessionRunArgs, SessionRunHook
from thalweg.train.hooks.step_timer import PeriodicHook, SecondOrStepTimer, watched_global_step
from thalweg.train.update_lock import between_updates, guard_updates

if TYPE_CHECKING:
    from thalweg.summary.writer import FileWriter
    from thalweg.train.coordinator import Coordinator
    from thalweg.train.hooks.session_run_hook import SessionRunContext, SessionRunValues
    from thalweg.train.scaffold import Scaffold


@public("train.CheckpointSaverListener", "estimator.CheckpointSaverListener")
class CheckpointSaverListener:
    """What to do around each checkpoint; every method may be left as it is."""

    def begin(self) -> None:
        """Called before the session is made."""

    def before_save(self, session: Runner, global_step_value: int) -> None:
        """Called before a checkpoint is written."""

    def after_save(self, session: Runner, global_step_value: int) -> bool | None:
        """Called when a checkpoint is written; return True to stop training."""

    def end(self, session: Runner, global_step_value: int) -> None:
        """Called after the last checkpoint."""


@public("train.CheckpointSaverHook", "estimator.CheckpointSaverHook")
class CheckpointSaverHook(PeriodicHook):
    """Saves a checkpoint at the start, every so many steps or seconds, and at the end.

    With `background` the files are written beside the steps that follow. Listeners are told of a
    checkpoint when it is there, so with them a step waits for its checkpoint all the same.
    """

    def __init__(
        self,
        checkpoint_dir: str,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Saver | None = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Scaffold | None = None,
        listeners: Sequence[CheckpointSaverListener] | None = None,
        background: bool = False,
    ) -> None:
        tf_logging.info("Create CheckpointSaverHook.")
        if saver is not None and scaffold is not None:
            raise ValueError("You cannot provide both saver and scaffold.")
        super().__init__(SecondOrStepTimer(save_secs, save_steps))
        self._saver = saver
        self._checkpoint_dir = checkpoint_dir
        self._save_path = os.path.join(checkpoint_dir, checkpoint_basename)
        self._scaffold = scaffold
        self._listeners = list(listeners or ())
        self._background = background and not self._listeners
        self._saved_step: int | None = None

    def begin(self) -> None:
        """Open the event file, which makes the folder."""
        guard_updates(get_default_graph())
        self._summary_writer = event_writer(self._checkpoint_dir)
        super().begin()
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Runner, coord: Coordinator) -> None:
        """Write the graph, now that it is complete, and a first checkpoint.

        If that fails there is no use in training; in a session that replaces a lost one there is.
        """
        step = global_step(session, self._global_step_tensor)
        is_first = self._timer.last_triggered_step() is None
        with log_disk_errors("Writing the graph", unless=is_first):
            self._write_graph()
        self._save(session, step, must_succeed=is_first)
        self._timer.update_last_triggered_step(step)

    def _write_graph(self) -> None:
        saver = self._get_saver()
        saver_def = None if saver is None else saver.saver_def
        write_graph_files(self._checkpoint_dir, self._summary_writer, saver_def)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Save when it is time."""
        step = self.due_step(run_context, run_values)
        if step is None:
            return
        self._timer.update_last_triggered_step(step)
        if self._save(run_context.session, step):
            run_context.request_stop()

    def end(self, session: Runner) -> None:
        """Save the last step, unless that is done, and see to it that it is written."""
        step = global_step(session, self._global_step_tensor)
        if not self._is_saved(step):
            self._save(session, step, must_succeed=True)
        for listener in self._listeners:
            listener.end(session, step)

    def _is_saved(self, step: int) -> bool:
        with log_disk_errors("Saving a checkpoint"):
            self._wait()
            return step == self._saved_step
        return False

    def _save(self, session: Any, step: int, must_succeed: bool = False) -> bool:
        """Save, and wait for it if it must succeed; whether a listener wants to stop."""
        tf_logging.info("Saving checkpoints for %d into %s.", step, self._save_path)
        for listener in self._listeners:
            listener.before_save(session, step)
        with log_disk_errors("Saving a checkpoint"):
            self._wait()
        self._saved_step = saved = self._written(session, step, must_succeed)
        if saved is None:
            return False
        with log_disk_errors("Writing an event"):
            self._summary_writer.add_session_log(checkpoint_log(self._save_path), saved)
        wishes = [listener.after_save(session, saved) for listener in self._listeners]
        return any(wishes)

    def _written(self, session: Any, step: int, must_succeed: bool) -> int | None:
        """The step of the checkpoint that was written; None where that failed."""
        with log_disk_errors(f"Saving the checkpoint of step {step}", unless=must_succeed):
            saved = self._write(session)
            if must_succeed:
                self._wait()
            return saved
        return None

    def _write(self, session: Any) -> int:
        """Save under the step that the checkpoint has: updates may have come since it was due."""
        saver = self._get_saver()
        if self._background and can_save_in_background(saver):
            save = partial(saver.save, background=True)
        else:
            save = saver.save
        with between_updates(session.graph):
            step = global_step(session, self._global_step_tensor)
            save(session, self._save_path, global_step=step)
        return step

    def _wait(self) -> None:
        """Wait for the checkpoint that is still being written; raise what went wrong with it."""
        if self._background:
            wait_for(self._get_saver())

    def _get_saver(self) -> Any:
        if self._saver is None:
            self._saver = _collected_saver() if self._scaffold is None else self._scaffold.saver
        return self._saver


def can_save_in_background(saver: Any) -> bool:
    """Whether this is a saver of ours; a program's own one may know nothing of backgrounds."""
    return isinstance(saver, Saver) and type(saver).save is Saver.save


def wait_for(saver: Any) -> None:
    """Wait for what a saver writes in the background; raise what went wrong."""
    if isinstance(saver, Saver):
        saver.wait()


def _collected_saver() -> Any:
    key = GraphKeys.SAVERS
    savers = get_default_graph().get_collection(key)
    if not savers:
        raise RuntimeError(
            f"No items in collection {key}. Please add a saver to the collection or provide a "
            "saver or scaffold."
        )
    if len(savers) > 1:
        raise RuntimeError(
            f"More than one item in collection {key}. Please indicate which one to use by passing "
            "it to the constructor."
        )
    return savers[0]


@public("train.SummarySaverHook", "estimator.SummarySaverHook")
class SummarySaverHook(SessionRunHook):
    """Writes summaries every so many steps or seconds, the first time at the first step.

    Args:
        save_steps: write every so many steps.
        save_secs: write every so many seconds; give one of the two.
        output_dir: the folder.
        summary_writer: a writer, instead of a folder.
        scaffold: where the summaries come from, instead of `summary_op`.
        summary_op: the summaries.

    Example:
        >>> step = tf.train.get_or_create_global_step()
        >>> summary = tf.summary.scalar("step", step)
        >>> hook = tf.train.SummarySaverHook(1, output_dir="logs", summary_op=summary)
        >>> with tf.train.MonitoredSession(hooks=[hook]) as session:
        ...     session.run(step)
        np.int64(0)
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: FileWriter | None = None,
        scaffold: Scaffold | None = None,
        summary_op: Tensor | Sequence[Tensor] | None = None,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise ValueError("Exactly one of scaffold or summary_op must be provided.")
        self._summary_op = summary_op
        self._summary_writer = summary_writer
        self._output_dir = output_dir
        self._scaffold = scaffold
        self._timer = SecondOrStepTimer(save_secs, save_steps)

    def begin(self) -> None:
        """Open the event file."""
        if self._summary_writer is None and self._output_dir:
            self._summary_writer = event_writer(self._output_dir)
        self._next_step: int | None = None
        self._is_due = False
        self._global_step_tensor = watched_global_step(self)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the summaries when it is time."""
        next_step = self._next_step
        self._is_due = next_step is None or self._timer.should_trigger_for_step(next_step)
        summaries = self._summaries() if self._is_due else []
        return SessionRunArgs([self._global_step_tensor, *summaries])

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Write them."""
        step, *summaries = run_values.results
        if self._is_due:
            step = run_context.session.run(self._global_step_tensor)
            self._timer.update_last_triggered_step(int(step))
            with log_disk_errors("Writing a summary"):
                self._write(int(step), summaries)
        self._next_step = int(step) + 1

    def _write(self, step: int, summaries: Sequence[bytes]) -> None:
        if self._summary_writer is None:
            return
        if self._next_step is None:
            self._summary_writer.add_session_log(start_log(), step)
        for summary in summaries:
            self._summary_writer.add_summary(summary, step)

    def end(self, session: Runner | None = None) -> None:
        """Wait until all is in the file."""
        if self._summary_writer is not None:
            with log_disk_errors("Writing summaries"):
                self._summary_writer.flush()

    def _summaries(self) -> list[Any]:
        op = self._summary_op
        if op is None and self._scaffold is not None:
            op = self._scaffold.summary_op
        return [] if op is None else as_list(op)
