"""Sessions that look after themselves: initialised or restored, hooked, coordinated, recovered.

`MonitoredTrainingSession(checkpoint_dir=...)` is what a training job needs: started again after a
kill it goes on from the last checkpoint.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from thalweg import errors, protos
from thalweg.graph.collections import GraphKeys
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.likes import FetchLike, MaybeNone, Structure, UserObject
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.train.coordinator import Coordinator
from thalweg.train.hooks.basic import StepCounterHook
from thalweg.train.hooks.saver_hooks import CheckpointSaverHook, SummarySaverHook
from thalweg.train.hooks.session_run_hook import SessionRunHook
from thalweg.train.queue_runner import start_queue_runners
from thalweg.train.scaffold import Scaffold
from thalweg.train.session_manager import SessionManager
from thalweg.train.wrapped_sessions import (
    CoordinatedSession,
    HookedSession,
    RecoverableSession,
)
from thalweg.train.wrapped_sessions import StepContext as _StepContext

if TYPE_CHECKING:
    from thalweg.inspect.session import Session
    from thalweg.runtime.config import RunMetadata

#: Stands for "the caller gave nothing", where None means "never".
USE_DEFAULT: Any = object()

_SUMMARY_STEPS = 100
_CHECKPOINT_SECONDS = 600
_MAX_PAUSE = 2.0  # seconds until a worker looks again whether the chief has made the model ready


@public("train.SessionCreator")
class SessionCreator:
    """Makes the plain session inside a monitored one."""

    def create_session(self) -> Session:
        """A new session, ready to train."""
        raise TypeError(f"{type(self).__name__} does not say how to create a session.")


@public("train.ChiefSessionCreator")
class ChiefSessionCreator(SessionCreator):
    """Makes sessions that are initialized, or restored from a checkpoint.

    Args:
        scaffold: a `tf.train.Scaffold`, where the parts of the job are not the default ones.
        master: the target of a server of the cluster; the empty string runs in this process.
        config: a `tf.ConfigProto`.
        checkpoint_dir: the folder whose latest checkpoint is restored.
        checkpoint_filename_with_path: the checkpoint itself, instead of a folder.

    Example:
        >>> v = tf.Variable(7.0)
        >>> creator = tf.train.ChiefSessionCreator(config=tf.ConfigProto())
        >>> with tf.train.MonitoredSession(creator) as session:
        ...     session.run(v)
        np.float32(7.0)
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: protos.ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        self._scaffold = scaffold or Scaffold()
        self._master = master
        self._config = config
        self._checkpoint_dir = checkpoint_dir
        self._checkpoint_filename_with_path = checkpoint_filename_with_path

    def create_session(self) -> Session:
        """A new session."""
        scaffold = self._scaffold.finalize()
        return _manager(scaffold).prepare_session(
            self._master,
            saver=scaffold.saver,
            checkpoint_dir=self._checkpoint_dir,
            checkpoint_filename_with_path=self._checkpoint_filename_with_path,
            config=self._config,
            init_op=scaffold.init_op,
            init_feed_dict=scaffold.init_feed_dict,
            init_fn=scaffold.init_fn,
        )


@public("train.WorkerSessionCreator")
class WorkerSessionCreator(SessionCreator):
    """Makes sessions of a model that the chief makes ready."""

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: protos.ConfigProto | None = None,
        max_wait_secs: float = 1800,
    ) -> None:
        self._scaffold = scaffold or Scaffold()
        self._master = master
        self._config = config
        self._max_wait_secs = max_wait_secs

    def create_session(self) -> Session:
        """A new session, as soon as the model is ready."""
        manager = _manager(self._scaffold.finalize())
        return manager.wait_for_session(self._master, self._config, self._max_wait_secs)


def _manager(scaffold: Scaffold) -> SessionManager:
    return SessionManager(
        local_init_op=scaffold.local_init_op,
        local_init_feed_dict=scaffold.local_init_feed_dict,
        ready_op=scaffold.ready_op,
        ready_for_local_init_op=scaffold.ready_for_local_init_op,
        graph=get_default_graph(),
        recovery_wait_secs=_MAX_PAUSE,
    )


def _check_hook(hook: Any) -> None:
    if isinstance(hook, type) or not hasattr(hook, "begin"):
        raise TypeError(f"A hook must be a SessionRunHook object, not {hook!r}")


class CoordinatedSessionCreator(SessionCreator):
    """Makes sessions with hooks and threads of their own."""

    def __init__(
        self,
        session_creator: Any,
        hooks: Sequence[SessionRunHook],
        stop_grace_period_secs: float,
    ) -> None:
        self._session_creator = session_creator
        self._hooks = hooks
        self._stop_grace_period_secs = stop_grace_period_secs
        self.coord: Any = None
        self.tf_sess: Any = None

    def create_session(self) -> Any:
        """A new session; its queue runners run and the hooks know it."""
        self.tf_sess = self._session_creator.create_session()
        # What ends a thread cleanly is for the program to hear of too.
        self.coord = Coordinator(clean_stop_exception_types=[])
        if get_default_graph().get_collection(GraphKeys.QUEUE_RUNNERS):
            start_queue_runners(sess=self.tf_sess, coord=self.coord)
        for hook in self._hooks:
            hook.after_create_session(self.tf_sess, self.coord)
        hooked = HookedSession(self.tf_sess, self._hooks)
        return CoordinatedSession(hooked, self.coord, self._stop_grace_period_secs)


class _MonitoredSession:
    """What MonitoredSession and SingularMonitoredSession share."""

    StepContext = _StepContext

    def __init__(
        self,
        session_creator: SessionCreator | None,
        hooks: Sequence[SessionRunHook] | None,
        should_recover: bool,
        stop_grace_period_secs: float,
    ) -> None:
        self._graph: Any = get_default_graph()
        self._graph_was_finalized = self._graph.finalized
        self._hooks = list(hooks or ())
        for hook in self._hooks:
            _check_hook(hook)
            hook.begin()
        self._coordinated_creator = CoordinatedSessionCreator(
            session_creator or ChiefSessionCreator(), self._hooks, stop_grace_period_secs
        )
        make: Callable[[Any], Any] = RecoverableSession if should_recover else _created
        self._sess: Any = make(self._coordinated_creator)

    def __repr__(self) -> str:
        state = "closed" if self._tf_sess() is None else "open"
        return described(self, hooks=len(self._hooks), state=state)

    @property
    def graph(self) -> Graph | MaybeNone:
        """The graph of the session, None once it is closed."""
        session = self._tf_sess()
        return None if session is None else session.graph

    def run(
        self,
        fetches: FetchLike,
        feed_dict: Mapping[Any, Any] | None = None,
        options: protos.RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Structure:
        """Run a step, with the hooks around it."""
        return self._open_session().run(
            fetches, feed_dict=feed_dict, options=options, run_metadata=run_metadata
        )

    def _open_session(self) -> Any:
        if self._sess is None:
            raise RuntimeError("The monitored session is closed.")
        return self._sess

    def run_step_fn(self, step_fn: Callable[[Any], Any]) -> UserObject:
        """Call `step_fn(step_context)`, which may run steps with hooks and without."""
        names = tuple(inspect.signature(step_fn).parameters)
        if len(names) != 1:
            raise ValueError(
                "`step_fn` may either have one `step_context` argument, or have two arguments: "
                f"`self` and `step_context` if it's a method. Got {names} instead."
            )
        return self._open_session().run_step_fn(step_fn, self._tf_sess)

    def should_stop(self) -> bool:
        """Whether to run no more steps: a hook or a thread asked to stop, or it is closed."""
        return self._sess is None or self._sess.should_stop()

    def close(self) -> None:
        """End the hooks and the session."""
        self._close_internal()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if exception_type in (errors.OutOfRangeError, StopIteration):
            exception_type = None  # the usual end of the data
        self._close_internal(exception_type)
        return exception_type is None

    def _close_internal(self, exception_type: type[BaseException] | None = None) -> None:
        """Close everything; hooks end only where all went well."""
        if self._sess is None:
            raise RuntimeError("Session is already closed.")
        try:
            if not exception_type:
                for hook in self._hooks:
                    hook.end(self._coordinated_creator.tf_sess)
        finally:
            self._close_session()

    def _close_session(self) -> None:
        try:
            self._sess.close()
        finally:
            self._sess = None
            self._coordinated_creator.tf_sess = None
            self._coordinated_creator.coord = None
            if not self._graph_was_finalized:
                self._graph._finalized = False  # as it was found

    def _is_closed(self) -> bool:
        return self._coordinated_creator.tf_sess is None

    def _tf_sess(self) -> Any:
        return self._coordinated_creator.tf_sess


def _created(creator: CoordinatedSessionCreator) -> Any:
    return creator.create_session()


@public("train.MonitoredSession")
class MonitoredSession(_MonitoredSession):
    """A session that initializes, calls hooks, and is rebuilt when its machine goes away.

    Args:
        session_creator: what makes the session; a `tf.train.ChiefSessionCreator` if None.
        hooks: `tf.train.SessionRunHook`s, called around every step.
        stop_grace_period_secs: seconds that threads get to stop.

    Example:
        >>> v = tf.Variable(7.0)
        >>> with tf.train.MonitoredSession() as session:
        ...     session.run(v)
        np.float32(7.0)
    """

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        stop_grace_period_secs: float = 120,
    ) -> None:
        super().__init__(session_creator, hooks, True, stop_grace_period_secs)


@public("train.SingularMonitoredSession")
class SingularMonitoredSession(_MonitoredSession):
    """A session that initialises and calls hooks, but is not rebuilt."""

    def __init__(
        self,
        hooks: Sequence[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: protos.ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        creator = ChiefSessionCreator(
            scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path
        )
        super().__init__(creator, hooks, False, stop_grace_period_secs)

    def raw_session(self) -> Session | MaybeNone:
        """The plain session, None once it is closed."""
        return self._tf_sess()


@public("train.MonitoredTrainingSession")
def MonitoredTrainingSession(
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: str | None = None,
    scaffold: Scaffold | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
    chief_only_hooks: Sequence[SessionRunHook] | None = None,
    save_checkpoint_secs: float | None = USE_DEFAULT,
    save_summaries_steps: int | None = USE_DEFAULT,
    save_summaries_secs: float | None = USE_DEFAULT,
    config: protos.ConfigProto | None = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = 7200,
    save_checkpoint_steps: int | None = USE_DEFAULT,
    summary_dir: str | None = None,
) -> MonitoredSession:
    """A session for a training job: saves checkpoints, writes summaries, starts where it left off.

    Args:
        master: the target of a server of the cluster; the empty string runs in this process.
        is_chief: whether this process initializes and saves; others wait for it.
        checkpoint_dir: the folder of checkpoints; None saves none.
        scaffold: a `tf.train.Scaffold`, where the parts of the job are not the default ones.
        hooks: `tf.train.SessionRunHook`s, called around every step.
        chief_only_hooks: hooks that only the chief calls.
        save_checkpoint_secs, save_checkpoint_steps: how often to save; by default every ten
            minutes, beside the steps.
        save_summaries_secs, save_summaries_steps: how often to write summaries; every 100 steps.
        config: a `tf.ConfigProto`.
        stop_grace_period_secs: seconds that threads get to stop.
        log_step_count_steps: how often steps per second are logged.
        max_wait_secs: how long others wait for the chief.
        summary_dir: the folder of summaries; `checkpoint_dir` if None.

    Returns:
        A `tf.train.MonitoredSession`, which runs until `should_stop()`.

    Example:
        >>> step = tf.train.get_or_create_global_step()
        >>> train = tf.assign_add(step, 1)
        >>> hooks = [tf.train.StopAtStepHook(last_step=3)]
        >>> with tf.train.MonitoredTrainingSession(checkpoint_dir="job", hooks=hooks) as session:
        ...     while not session.should_stop():
        ...         print(session.run(train))
        1
        2
        3
        >>> tf.train.latest_checkpoint("job")
        'job/model.ckpt-3'
    """
    scaffold = scaffold or Scaffold()
    if not is_chief:
        worker = WorkerSessionCreator(scaffold, master, config, max_wait_secs)
        return MonitoredSession(worker, hooks, stop_grace_period_secs)
    summaries = _period(save_summaries_steps, save_summaries_secs, (_SUMMARY_STEPS, None))
    checkpoints = _period(save_checkpoint_steps, save_checkpoint_secs, (None, _CHECKPOINT_SECONDS))
    all_hooks = list(chief_only_hooks or ())
    summary_dir = summary_dir or checkpoint_dir
    if summary_dir and log_step_count_steps and log_step_count_steps > 0:
        all_hooks.append(StepCounterHook(log_step_count_steps, output_dir=summary_dir))
    if summary_dir and _is_enabled(*summaries):
        all_hooks.append(SummarySaverHook(*summaries, output_dir=summary_dir, scaffold=scaffold))
    if checkpoint_dir and _is_enabled(*checkpoints):
        steps, seconds = checkpoints
        all_hooks.append(
            CheckpointSaverHook(checkpoint_dir, seconds, steps, scaffold=scaffold, background=True)
        )
    chief = ChiefSessionCreator(scaffold, master, config, checkpoint_dir)
    return MonitoredSession(chief, [*all_hooks, *(hooks or ())], stop_grace_period_secs)


def _period(
    steps: Any, seconds: Any, default: tuple[int | None, float | None]
) -> tuple[int | None, float | None]:
    """How often, in steps or seconds: the default only if the caller says neither."""
    if steps is USE_DEFAULT and seconds is USE_DEFAULT:
        return default
    return None if steps is USE_DEFAULT else steps, None if seconds is USE_DEFAULT else seconds


def _is_enabled(steps: int | None, seconds: float | None) -> bool:
    return bool((steps and steps > 0) or (seconds and seconds > 0))
