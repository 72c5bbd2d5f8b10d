"""When a hook's time has come: every so many seconds or steps. And the step that it watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Tensor
from thalweg.public import public
from thalweg.train import clock
from thalweg.train.global_steps import get_global_step, global_step
from thalweg.train.hooks.session_run_hook import SessionRunArgs, SessionRunHook

if TYPE_CHECKING:
    from thalweg.train.hooks.session_run_hook import SessionRunContext, SessionRunValues


@public("train.SecondOrStepTimer", "estimator.SecondOrStepTimer")
class SecondOrStepTimer:
    """Triggers at the first step it is asked about, then every so many seconds or steps."""

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        if every_secs is None and every_steps is None:
            raise ValueError("Either every_secs or every_steps should be provided.")
        if every_secs is not None and every_steps is not None:
            raise ValueError("Can not provide both every_secs and every_steps.")
        self._every_secs = every_secs
        self._every_steps = every_steps
        self._last_step: int | None = None
        self._last_time = 0.0

    def reset(self) -> None:
        """Forget when it last triggered."""
        self._last_step = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it is time at this step. The same step never triggers twice."""
        if self._last_step is None:
            return True
        if self._last_step == step:
            return False
        if self._every_secs is not None:
            return clock.now() >= self._last_time + self._every_secs
        return self._every_steps is not None and step >= self._last_step + self._every_steps

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Note that it triggered; the seconds and steps since the last time, if there was one."""
        now = clock.now()
        elapsed = None, None
        if self._last_step is not None:
            elapsed = now - self._last_time, step - self._last_step
        self._last_step, self._last_time = step, now
        return elapsed

    def last_triggered_step(self) -> int | None:
        """The step at which it last triggered."""
        return self._last_step


class NeverTriggerTimer(SecondOrStepTimer):
    """Never triggers."""

    def __init__(self) -> None:
        super().__init__(every_steps=1)

    def should_trigger_for_step(self, step: int) -> bool:
        """No."""
        return False

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Nothing is noted."""
        return None, None


def watched_global_step(hook: object) -> Tensor:
    """The tensor of the global step that a hook fetches with every step."""
    step = get_global_step()
    if step is None:
        raise RuntimeError(f"Global step should be created to use {type(hook).__name__}.")
    return get_default_graph().as_graph_element(step)


class PeriodicHook(SessionRunHook):
    """A hook that acts behind some steps: when its timer says so."""

    def __init__(self, timer: SecondOrStepTimer) -> None:
        self._timer = timer
        self._global_step_tensor: Any = None

    def begin(self) -> None:
        """Find the global step."""
        self._global_step_tensor = watched_global_step(self)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the global step."""
        return SessionRunArgs(self._global_step_tensor)

    def due_step(self, run_context: SessionRunContext, run_values: SessionRunValues) -> int | None:
        """The global step if it is time to act, else None.

        The step that was fetched may be the one before the update: near the time it is read again.
        """
        if not self._timer.should_trigger_for_step(int(run_values.results) + 1):
            return None
        step = global_step(run_context.session, self._global_step_tensor)
        return step if self._timer.should_trigger_for_step(step) else None
