"""The plainest training loop: steps in a supervised session until somebody asks for a stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from thalweg import errors
from thalweg.platform import tf_logging
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.train.supervisor import Supervisor


@public("train.basic_train_loop")
def basic_train_loop(
    supervisor: Supervisor,
    train_step_fn: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    master: str = "",
) -> None:
    """Call `train_step_fn(session, *args, **kwargs)` until a stop; start again when aborted."""
    while True:
        try:
            with supervisor.managed_session(master) as session:
                while not supervisor.should_stop():
                    train_step_fn(session, *(args or ()), **(kwargs or {}))
            return
        except errors.AbortedError as error:
            tf_logging.info("The session was lost; training starts again: %s", error)
