"""A hook that traces a step now and then: a Chrome trace to a file, and the step to TensorBoard."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from thalweg import protos
from thalweg.inspect.timeline import Timeline
from thalweg.platform import tf_logging
from thalweg.platform.files import gfile
from thalweg.public import public
from thalweg.train.disk_errors import log_disk_errors
from thalweg.train.event_files import event_writer
from thalweg.train.global_steps import global_step
from thalweg.train.hooks.session_run_hook import SessionRunArgs, SessionRunHook
from thalweg.train.hooks.step_timer import SecondOrStepTimer, watched_global_step

if TYPE_CHECKING:
    from thalweg.train.hooks.session_run_hook import SessionRunContext, SessionRunValues


@public("train.ProfilerHook", "estimator.ProfilerHook")
class ProfilerHook(SessionRunHook):
    """Writes `timeline-<step>.json` every so many steps or seconds; the first step is never traced.

    Open the file in chrome://tracing or Perfetto.

    Args:
        save_steps: write every so many steps.
        save_secs: write every so many seconds; one of the two is given.
        output_dir: the folder; by default the current one.
        show_dataflow: whether arrows show what waits for what.
        show_memory: whether memory is shown.

    Example:
        >>> step = tf.train.create_global_step()
        >>> count = tf.assign_add(step, 1)
        >>> hook = tf.train.ProfilerHook(save_steps=2, output_dir="traces")
        >>> with tf.train.MonitoredSession(hooks=[hook]) as session:
        ...     steps = [int(session.run(count)) for _ in range(4)]
        >>> sorted(name for name in tf.gfile.ListDirectory("traces") if name.startswith("timeline"))
        ['timeline-3.json']
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
    ) -> None:
        self._output_dir = output_dir
        self._file_writer = event_writer(output_dir)
        self._show_dataflow = show_dataflow
        self._show_memory = show_memory
        self._timer = SecondOrStepTimer(save_secs, save_steps)

    def begin(self) -> None:
        """Find the global step."""
        self._next_step: int | None = None
        self._is_due = False
        self._global_step_tensor = watched_global_step(self)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Have the step traced when it is time."""
        next_step = self._next_step
        self._is_due = next_step is not None and self._timer.should_trigger_for_step(next_step)
        if not self._is_due:
            return SessionRunArgs(self._global_step_tensor)
        options = protos.RunOptions(trace_level=protos.RunOptions.FULL_TRACE)
        return SessionRunArgs(self._global_step_tensor, options=options)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Write the trace."""
        step = int(run_values.results)
        if self._next_step is None:
            self._timer.update_last_triggered_step(step)
        if self._is_due:
            step = global_step(run_context.session, self._global_step_tensor)
            self._timer.update_last_triggered_step(step)
            with log_disk_errors(f"Writing the trace of step {step}"):
                self._write(step, run_values.run_metadata)
        self._next_step = step + 1

    def _write(self, step: int, run_metadata: Any) -> None:
        path = os.path.join(self._output_dir, f"timeline-{step}.json")
        tf_logging.info("Saving timeline for %d into '%s'.", step, path)
        trace = Timeline(run_metadata.step_stats).generate_chrome_trace_format(
            self._show_dataflow, self._show_memory
        )
        with gfile.GFile(path, "w") as file:
            file.write(trace)
        self._file_writer.add_run_metadata(run_metadata, f"step_{step}", step)
