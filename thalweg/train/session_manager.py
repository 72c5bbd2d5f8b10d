"""Sessions that start well: restored from a checkpoint, initialised, or waited for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from thalweg import errors, protos
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.node import Node, Tensor
from thalweg.inspect.session import Session
from thalweg.platform import tf_logging
from thalweg.public import public
from thalweg.saved.checkpoint_state import get_checkpoint_state
from thalweg.train import clock
from thalweg.train.disk_errors import log_disk_errors
from thalweg.train.hooks.saver_hooks import wait_for

if TYPE_CHECKING:
    from thalweg.saved.saver import Saver

Readiness = tuple[bool, str | None]  # and if not, why

#: Seconds until somebody else's model is looked at again, at first; each time it is twice as long.
_FIRST_PAUSE: Final = 0.25


@public("train.SessionManager")
class SessionManager:
    """Makes sessions of a graph and sees to it that its variables have values.

    `ready_op` gives the names of what has none; `local_init_op` initialises what checkpoints do
    not hold, once `ready_for_local_init_op` finds nothing missing.
    """

    def __init__(
        self,
        local_init_op: Node | Tensor | None = None,
        ready_op: Tensor | None = None,
        ready_for_local_init_op: Tensor | None = None,
        graph: Graph | None = None,
        recovery_wait_secs: float = 30,
        local_init_run_options: protos.RunOptions | None = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        if ready_for_local_init_op is not None and local_init_op is None:
            raise ValueError(
                "If you pass a ready_for_local_init_op you must also pass a local_init_op "
                f", ready_for_local_init_op [{ready_for_local_init_op}]"
            )
        self._local_init_op = local_init_op
        self._ready_op = ready_op
        self._ready_for_local_init_op = ready_for_local_init_op
        self._graph = get_default_graph() if graph is None else graph
        self._recovery_wait_secs = recovery_wait_secs
        self._local_init_run_options = local_init_run_options
        self._local_init_feed_dict = local_init_feed_dict

    def prepare_session(
        self,
        master: str,
        init_op: Node | Tensor | None = None,
        saver: Saver | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: protos.ConfigProto | None = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Any], Any] | None = None,
    ) -> Session:
        """A session that is ready: restored from the last checkpoint if there is one, else new."""
        session, is_restored = self._restored(
            master,
            saver,
            checkpoint_dir,
            checkpoint_filename_with_path,
            max_wait_secs if wait_for_checkpoint else 0,
            config,
        )
        if not is_restored:
            self._initialize(session, init_op, init_feed_dict, init_fn)
        made = f"Init op: {_name(init_op)}, init fn: {init_fn}"
        is_ready, reason = self._try_local_init(session)
        if not is_ready:
            raise RuntimeError(
                f"Init operations did not make model ready for local_init.  {made}, error: {reason}"
            )
        is_ready, reason = readiness(self._ready_op, session, "Model not ready")
        if not is_ready:
            raise RuntimeError(
                f"Init operations did not make model ready.  {made}, "
                f"local_init_op: {_name(self._local_init_op)}, error: {reason}"
            )
        return session

    def _initialize(
        self,
        session: Session,
        init_op: Any,
        feeds: Mapping[Any, Any] | None,
        init_fn: Callable[[Any], Any] | None,
    ) -> None:
        if init_op is None and not init_fn and self._local_init_op is None:
            raise RuntimeError(
                "Model is not initialized and no init_op or init_fn or local_init_op was given"
            )
        if init_op is not None:
            session.run(init_op, feeds)
        if init_fn:
            init_fn(session)

    def recover_session(
        self,
        master: str,
        saver: Saver | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: protos.ConfigProto | None = None,
    ) -> tuple[Session, bool]:
        """A session, and whether a checkpoint made it ready."""
        session, is_restored = self._restored(
            master,
            saver,
            checkpoint_dir,
            checkpoint_filename_with_path,
            max_wait_secs if wait_for_checkpoint else 0,
            config,
        )
        is_ready, reason = self._try_local_init(session)
        if not is_restored:
            return session, False
        wanted = "ready for local init"
        if is_ready:
            wanted = "ready"
            is_ready, reason = readiness(self._ready_op, session, "Model not ready")
        source = checkpoint_dir or checkpoint_filename_with_path
        if is_ready:
            tf_logging.info("Restored model from %s", source)
        else:
            tf_logging.info(
                "Restoring model from %s did not make model %s: %s", source, wanted, reason
            )
        return session, is_ready

    def wait_for_session(
        self,
        master: str,
        config: protos.ConfigProto | None = None,
        max_wait_secs: float | None = math.inf,
    ) -> Session:
        """A session of a model that someone else makes ready; tries until it is, or time is up."""
        patience = math.inf if max_wait_secs is None else max_wait_secs
        deadline = clock.now() + patience
        pause = min(_FIRST_PAUSE, self._recovery_wait_secs)
        while True:
            session = Session(master, graph=self._graph, config=config)
            is_ready, reason = self._try_local_init(session)
            if is_ready:
                is_ready, reason = readiness(self._ready_op, session, "Model not ready")
            if is_ready:
                return session
            with suppress(errors.OpError):  # it is given up in any case
                session.close()
            rest = deadline - clock.now()
            if rest <= 0:
                raise errors.DeadlineExceededError(
                    None, None, f"Session was not ready after waiting {patience:g} secs: {reason}"
                )
            tf_logging.info("Waiting for model to be ready: %s", reason)
            clock.wait(min(pause, rest))
            pause = min(2 * pause, self._recovery_wait_secs)

    def _restored(
        self,
        master: str,
        saver: Any,
        folder: str | None,
        path: str | None,
        patience: float,
        config: Any,
    ) -> tuple[Session, bool]:
        """A new session, and whether it was restored from a checkpoint."""
        if folder and path:
            raise ValueError(
                "Can not provide both checkpoint_dir and checkpoint_filename_with_path."
            )
        session = Session(master, graph=self._graph, config=config)
        if not saver or not (folder or path):
            return session, False
        if path:
            saver.restore(session, path)
            return session, True
        with log_disk_errors("Saving a checkpoint"):
            wait_for(saver)
        state = self._awaited_state(folder, patience)
        if state is None:
            return session, False
        saver.restore(session, state.model_checkpoint_path)
        saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        return session, True

    def _awaited_state(self, folder: str | None, patience: float) -> Any:
        """What a folder says of its checkpoints, as soon as it says something."""
        deadline = clock.now() + patience
        while (state := get_checkpoint_state(folder or "")) is None:
            rest = deadline - clock.now()
            if rest <= 0:
                return None
            tf_logging.info("Waiting for checkpoint to be available.")
            clock.wait(min(self._recovery_wait_secs, rest))
        return state

    def _try_local_init(self, session: Session) -> Readiness:
        """Run the local initialisation if the model is ready for it."""
        if self._local_init_op is None:
            return True, None
        is_ready, reason = readiness(
            self._ready_for_local_init_op, session, "Model not ready for local init"
        )
        if not is_ready:
            return False, reason
        tf_logging.info("Running local_init_op.")
        feeds, options = self._local_init_feed_dict, self._local_init_run_options
        session.run(self._local_init_op, feeds, options)
        tf_logging.info("Done running local_init_op.")
        return True, None


def readiness(op: Any, session: Session, otherwise: str) -> Readiness:
    """Whether an op finds nothing that is missing."""
    if op is None:
        return True, None
    try:
        missing = session.run(op)
    except errors.FailedPreconditionError as error:
        if "uninitialized" not in str(error):
            tf_logging.warning("%s: error [%s]", otherwise, error)
            raise
        return False, f"{otherwise}: {error}"
    # An op such as `assert_variables_initialized` gives no names: that it ran is enough.
    array = np.asarray(missing)
    if array.dtype != object or not array.size:
        return True, None
    names = ", ".join(name.decode() for name in array.tolist())
    return False, f"Variables not initialized: {names}"


def _name(op: Any) -> str:
    return getattr(op, "name", str(op))
