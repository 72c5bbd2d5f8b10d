"""The threads of a supervisor: each does one thing again and again until training stops."""

from __future__ import annotations

from typing import Any

from thalweg.platform import tf_logging
from thalweg.train import clock
from thalweg.train.coordinator import LooperThread
from thalweg.train.disk_errors import log_disk_errors
from thalweg.train.event_files import checkpoint_log, rate_summary
from thalweg.train.global_steps import global_step


class SVSummaryThread(LooperThread):
    """Computes and writes the summaries."""

    def __init__(self, sv: Any, sess: Any) -> None:
        super().__init__(sv.coord, sv.save_summaries_secs)
        self._sv = sv
        self._sess = sess

    def run_loop(self) -> None:
        """Write the summaries once."""
        wanted = {"summary": self._sv.summary_op}
        if self._sv.global_step is not None:
            wanted["step"] = self._sv.global_step
        found = self._sess.run(wanted)
        if self._sv.summary_writer:
            tf_logging.info("Recording summary at step %s.", found.get("step"))
            with log_disk_errors("Writing a summary"):
                self._sv.summary_writer.add_summary(found["summary"], found.get("step"))


class SVStepCounterThread(LooperThread):
    """Measures how many steps are made in a second."""

    def __init__(self, sv: Any, sess: Any, step_counter: Any = None) -> None:
        super().__init__(sv.coord, sv.save_summaries_secs)
        self._sv = sv
        self._sess = sess
        self._step_counter = sv.global_step if step_counter is None else step_counter
        self._tag = f"{self._step_counter.op.name}/sec"

    def start_loop(self) -> None:
        """Begin to measure."""
        self._last_time = clock.now()
        self._last_step = global_step(self._sess, self._step_counter)

    def run_loop(self) -> None:
        """Write the rate since the last time."""
        step, now = global_step(self._sess, self._step_counter), clock.now()
        steps, seconds = step - self._last_step, now - self._last_time
        self._last_step, self._last_time = step, now
        rate = steps / seconds if seconds > 0 else float("inf")
        if self._sv.summary_writer:
            with log_disk_errors("Writing a summary"):
                self._sv.summary_writer.add_summary(rate_summary(self._tag, rate), step)
        tf_logging.info("%s: %g", self._tag, rate)


class SVTimerCheckpointThread(LooperThread):
    """Saves checkpoints."""

    def __init__(self, sv: Any, sess: Any) -> None:
        super().__init__(sv.coord, sv.save_model_secs)
        self._sv = sv
        self._sess = sess

    def run_loop(self) -> None:
        """Save a checkpoint; if the disk does not let it, there will be another one."""
        with log_disk_errors(f"Saving a checkpoint to {self._sv.save_path}"):
            self._save()

    def _save(self) -> None:
        sv = self._sv
        step = None if sv.global_step is None else global_step(self._sess, sv.global_step)
        tf_logging.info("Saving checkpoint to path %s", sv.save_path)
        sv.saver.save(self._sess, sv.save_path, global_step=step)
        if sv.summary_writer and step is not None:
            sv.summary_writer.add_session_log(checkpoint_log(sv.save_path), step)
