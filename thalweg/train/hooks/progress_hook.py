"""A hook that shows how far training is: step, loss, steps a second, time left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.graph.context import Runner
from thalweg.graph.node import Tensor
from thalweg.platform.notebook import progress_bar
from thalweg.public import public
from thalweg.train.global_steps import global_step
from thalweg.train.hooks.session_run_hook import SessionRunArgs, SessionRunHook
from thalweg.train.hooks.step_timer import SecondOrStepTimer, watched_global_step

if TYPE_CHECKING:
    from thalweg.train.coordinator import Coordinator
    from thalweg.train.hooks.session_run_hook import SessionRunContext, SessionRunValues


@public("train.ProgressHook")
class ProgressHook(SessionRunHook):
    """Shows a bar of tqdm, on a terminal or in a notebook; the time left needs the `last_step`.

    `hooks=[tf.train.ProgressHook(loss, last_step=10000)]`. More options go to tqdm.
    """

    def __init__(
        self,
        loss: Tensor | None = None,
        last_step: int | None = None,
        every_n_secs: float = 0.1,
        **tqdm_options: Any,
    ) -> None:
        self._loss = loss
        self._last_step = last_step
        self._options = {"unit": "step", "dynamic_ncols": True} | tqdm_options
        self._timer = SecondOrStepTimer(every_secs=every_n_secs)
        self._bar: Any = None

    def begin(self) -> None:
        """Find the global step."""
        self._is_due = False
        self._count = 0
        self._global_step_tensor = watched_global_step(self)

    def after_create_session(self, session: Runner, coord: Coordinator) -> None:
        """Begin where the session begins; one that replaces a lost one may be further back."""
        step = global_step(session, self._global_step_tensor)
        if self._bar is None:
            self._bar = _tqdm()(initial=step, total=self._last_step, **self._options)
        self._move(step)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for step and loss when it is time: what is not shown need not be fetched."""
        self._is_due = self._timer.should_trigger_for_step(self._count)
        if not self._is_due:
            return None
        shown = {"step": self._global_step_tensor}
        return SessionRunArgs(shown if self._loss is None else shown | {"loss": self._loss})

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Show them."""
        if self._is_due:
            self._timer.update_last_triggered_step(self._count)
            if "loss" in run_values.results:
                self._bar.set_postfix(loss=f"{run_values.results['loss']:.4g}", refresh=False)
            self._move(int(run_values.results["step"]))
        self._count += 1

    def end(self, session: Any) -> None:
        """Leave the bar as it is at the last step."""
        self._move(global_step(session, self._global_step_tensor))
        self._bar.close()

    def _move(self, step: int) -> None:
        """Show a step. It may be an earlier one, and tqdm counts forward only."""
        self._bar.n = min(step, self._bar.n)
        self._bar.update(step - self._bar.n)
        self._bar.refresh()


def _tqdm() -> Any:
    try:
        return progress_bar()
    except ImportError as error:
        raise ImportError("ProgressHook shows a bar of tqdm: pip install tqdm") from error
