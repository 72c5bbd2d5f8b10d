"""The supervisor of a training job: prepares sessions, and keeps threads beside them that save
checkpoints, write summaries and count steps, until somebody asks for a stop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from thalweg import errors, protos
from thalweg.graph.collections import GraphKeys
from thalweg.graph.context import Runner
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.likes import MaybeNone
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.basic import group
from thalweg.platform import tf_logging
from thalweg.public import public
from thalweg.saved.saver import Saver
from thalweg.summary.constructors import merge_all
from thalweg.summary.writer import FileWriter
from thalweg.train.coordinator import Coordinator, LooperThread
from thalweg.train.event_files import start_log, stop_log, write_graph_files
from thalweg.train.global_steps import global_step as step_value
from thalweg.train.session_manager import SessionManager
from thalweg.train.supervisor_services import (
    SVStepCounterThread,
    SVSummaryThread,
    SVTimerCheckpointThread,
)
from thalweg.variables.collections import (
    global_variables,
    global_variables_initializer,
    is_buffer,
    local_variables_initializer,
    report_uninitialized_variables,
    tables_initializer,
)

if TYPE_CHECKING:
    from thalweg.inspect.session import Session
    from thalweg.variables.variable import Variable

_DEFAULT = 0  # what a program passes for "find it or make it"; None means "without"


@public("train.Supervisor")
class Supervisor:
    """Prepares a session and looks after the training that runs in it.

    It restores or initializes the model, saves it and writes summaries in threads of its own.
    `tf.train.MonitoredTrainingSession` is the newer way.

    Args:
        graph: the graph; the default one if None.
        ready_op: gives the names of variables that are not initialized.
        ready_for_local_init_op: the same, for what local initialization needs.
        is_chief: whether this process initializes, saves and writes; others wait for it.
        init_op, init_feed_dict, init_fn: how a model without checkpoint begins.
        local_init_op, local_init_run_options: how local variables begin.
        logdir: the folder of checkpoints and summaries; None writes none.
        summary_op: the summaries to write; all that were collected by default.
        saver: the Saver; one of all variables by default.
        global_step: the step; that of the graph by default.
        save_summaries_secs, save_model_secs: seconds between summaries and checkpoints; 0: never.
        recovery_wait_secs: seconds between looks at whether the model is ready.
        stop_grace_secs: seconds that threads get to stop.
        checkpoint_basename: the name of checkpoints.
        session_manager, summary_writer: what makes sessions and writes, where it is another.

    Example:
        >>> v = tf.Variable(1.0)
        >>> supervisor = tf.train.Supervisor(logdir="logs", save_summaries_secs=0)
        >>> with supervisor.managed_session() as session:
        ...     session.run(v)
        np.float32(1.0)
        >>> tf.train.latest_checkpoint("logs")
        'logs/model.ckpt'
    """

    USE_DEFAULT = _DEFAULT

    def __init__(
        self,
        graph: Graph | None = None,
        ready_op: Tensor | int | None = USE_DEFAULT,
        ready_for_local_init_op: Tensor | int | None = USE_DEFAULT,
        is_chief: bool = True,
        init_op: Node | Tensor | int | None = USE_DEFAULT,
        init_feed_dict: Mapping[Any, Any] | None = None,
        local_init_op: Node | Tensor | int | None = USE_DEFAULT,
        logdir: str | None = None,
        summary_op: Tensor | int | None = USE_DEFAULT,
        saver: Saver | int | None = USE_DEFAULT,
        global_step: Tensor | Variable | int | None = USE_DEFAULT,
        save_summaries_secs: float = 120,
        save_model_secs: float = 600,
        recovery_wait_secs: float = 30,
        stop_grace_secs: float = 120,
        checkpoint_basename: str = "model.ckpt",
        session_manager: SessionManager | None = None,
        summary_writer: FileWriter | int | None = USE_DEFAULT,
        init_fn: Callable[[Any], Any] | None = None,
        local_init_run_options: protos.RunOptions | None = None,
    ) -> None:
        self._graph = get_default_graph() if graph is None else graph
        keys = GraphKeys
        with self._graph.as_default():
            self._ready_op = self._part(ready_op, keys.READY_OP, report_uninitialized_variables)
            self._ready_for_local_init_op = self._part(
                ready_for_local_init_op, keys.READY_FOR_LOCAL_INIT_OP, lambda: None
            )
            self._init_op = self._part(init_op, keys.INIT_OP, global_variables_initializer)
            self._local_init_op = self._part(local_init_op, keys.LOCAL_INIT_OP, _local_init_op)
            self._saver = self._part(saver, keys.SAVERS, _saver)
            self._summary_op = self._part(summary_op, keys.SUMMARY_OP, merge_all)
        is_default = global_step is _DEFAULT
        self._global_step: Any = self._found_step() if is_default else global_step
        self._init_feed_dict = init_feed_dict
        self._init_fn = init_fn
        self._is_chief = is_chief
        self._coord = Coordinator()
        self._stop_grace_secs = stop_grace_secs
        self._logdir = logdir if is_chief else None
        self._save_summaries_secs = save_summaries_secs if is_chief else None
        self._save_model_secs = save_model_secs if is_chief else None
        self._save_path = _joined(self._logdir, checkpoint_basename)
        self._summary_writer: Any = self._writer(summary_writer) if is_chief else None
        self._graph_added_to_summary = False
        self._session_manager = session_manager or SessionManager(
            local_init_op=self._local_init_op,
            ready_op=self._ready_op,
            ready_for_local_init_op=self._ready_for_local_init_op,
            graph=self._graph,
            recovery_wait_secs=recovery_wait_secs,
            local_init_run_options=local_init_run_options,
        )
        self._verify_setup()
        self._graph.finalize()

    # What it is made of

    def _part(self, given: Any, key: str, make: Callable[[], Any]) -> Any:
        """The argument if given, else the first item of a collection, else a new one."""
        if given is not _DEFAULT:
            return given
        items = self._graph.get_collection(key)
        if items:
            return items[0]
        result = make()
        if result is not None:
            self._graph.add_to_collection(key, result)
        return result

    def _found_step(self) -> Any:
        """The collected global step, or the tensor of that name if it counts."""
        items = self._graph.get_collection(GraphKeys.GLOBAL_STEP)
        if items:
            return items[0]
        try:
            result = self._graph.get_tensor_by_name("global_step:0")
        except KeyError:
            return None
        if result.dtype.base_dtype.is_integer:
            return result
        tf_logging.warning("Found 'global_step' but is not an integer: %s", result.dtype)
        return None

    def _writer(self, given: Any) -> Any:
        if given is not _DEFAULT:
            return given
        return FileWriter(self._logdir) if self._logdir else None

    def _verify_setup(self) -> None:
        """Among replicas every variable has its place, or each replica would have its own."""
        if self._is_chief:
            return
        for node in self._graph.nodes:
            if is_buffer(node) and not node.device:
                raise ValueError(
                    f"When using replicas, all Variables must have their device set: {node}"
                )

    @property
    def is_chief(self) -> bool:
        """Whether this supervisor initialises, saves and writes."""
        return self._is_chief

    @property
    def session_manager(self) -> SessionManager:
        """What makes the sessions."""
        return self._session_manager

    @property
    def coord(self) -> Coordinator:
        """What stops the threads."""
        return self._coord

    @property
    def init_op(self) -> Node | Tensor | MaybeNone:
        """Initialises the model."""
        return self._init_op

    @property
    def init_feed_dict(self) -> Mapping[Any, Any] | None:
        """What `init_op` is fed."""
        return self._init_feed_dict

    @property
    def ready_op(self) -> Tensor | MaybeNone:
        """Gives the names of what is not initialised."""
        return self._ready_op

    @property
    def ready_for_local_init_op(self) -> Tensor | MaybeNone:
        """Gives the names of what has to be initialised before the local initialisation."""
        return self._ready_for_local_init_op

    @property
    def summary_writer(self) -> FileWriter | MaybeNone:
        """Writes the events of the chief."""
        return self._summary_writer

    @property
    def summary_op(self) -> Tensor | MaybeNone:
        """Gives the summaries."""
        return self._summary_op

    @property
    def save_summaries_secs(self) -> float | None:
        """Seconds between summaries."""
        return self._save_summaries_secs

    @property
    def global_step(self) -> Variable | MaybeNone:
        """The tensor that counts the steps."""
        return self._global_step

    @property
    def saver(self) -> Saver | MaybeNone:
        """Saves the checkpoints."""
        return self._saver

    @property
    def save_model_secs(self) -> float | None:
        """Seconds between checkpoints."""
        return self._save_model_secs

    @property
    def save_path(self) -> str | None:
        """What the names of checkpoints begin with."""
        return self._save_path

    # Sessions

    def prepare_or_wait_for_session(
        self,
        master: str = "",
        config: protos.ConfigProto | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        start_standard_services: bool = True,
    ) -> Session:
        """A session that is ready; the chief makes it so, the others wait. Threads are started."""
        self._coord.clear_stop()
        if self._summary_writer:
            self._summary_writer.reopen()
        if not self._is_chief:
            session = self._session_manager.wait_for_session(master, config, max_wait_secs)
        else:
            session = self._prepared(master, config, wait_for_checkpoint, max_wait_secs)
            if start_standard_services:
                tf_logging.info("Starting standard services.")
                self.start_standard_services(session)
        if start_standard_services:
            tf_logging.info("Starting queue runners.")
            self.start_queue_runners(session)
        return session

    def _prepared(
        self, master: str, config: Any, wait_for_checkpoint: bool, max_wait_secs: float
    ) -> Any:
        session = self._session_manager.prepare_session(
            master,
            init_op=self._init_op,
            saver=self._saver,
            checkpoint_dir=self._logdir,
            wait_for_checkpoint=wait_for_checkpoint,
            max_wait_secs=max_wait_secs,
            config=config,
            init_feed_dict=self._init_feed_dict,
            init_fn=self._init_fn,
        )
        self._write_graph()
        return session

    def _write_graph(self) -> None:
        writer = None if self._graph_added_to_summary else self._summary_writer
        saver_def = self._saver.saver_def if self._saver else None
        with self._graph.as_default():
            write_graph_files(self._logdir, writer, saver_def)
        self._graph_added_to_summary = True

    @contextmanager
    def managed_session(
        self,
        master: str = "",
        config: protos.ConfigProto | None = None,
        start_standard_services: bool = True,
        close_summary_writer: bool = True,
    ) -> Generator[Any]:
        """A session for a block: at its end all threads stop, and their errors are raised."""
        session: Any = None
        try:
            session = self.prepare_or_wait_for_session(
                master, config, start_standard_services=start_standard_services
            )
            yield session
        except Exception as error:
            self.request_stop(error)
        finally:
            try:
                self.stop(close_summary_writer=close_summary_writer)
            finally:
                if session is not None:
                    with suppress(errors.OpError):  # this ends steps that still block
                        session.close()

    # Threads

    def start_standard_services(self, sess: Runner) -> list[LooperThread]:
        """Start the threads that write summaries, count steps and save checkpoints."""
        if not self._is_chief:
            raise RuntimeError("Only chief supervisor can start standard services.")
        if not self._logdir:
            tf_logging.warning("Standard services need a 'logdir' passed to the Supervisor")
            return []
        if self._global_step is not None and self._summary_writer:
            step = step_value(sess, self._global_step)
            self._summary_writer.add_session_log(start_log(), step)
        threads = list(self._services(sess))
        for thread in threads:
            thread.start()
        return threads

    def _services(self, sess: Any) -> Iterable[LooperThread]:
        if self._save_summaries_secs and self._summary_writer:
            if self._summary_op is not None:
                yield SVSummaryThread(self, sess)
            if self._global_step is not None:
                yield SVStepCounterThread(self, sess)
        if self._saver and self._save_model_secs:
            yield SVTimerCheckpointThread(self, sess)

    def start_queue_runners(
        self, sess: Runner, queue_runners: Sequence[Any] | None = None
    ) -> list[threading.Thread]:
        """Start the threads of queue runners: those given, or those of the graph."""
        if queue_runners is None:
            queue_runners = self._graph.get_collection(GraphKeys.QUEUE_RUNNERS)
        threads: list[threading.Thread] = []
        for runner in queue_runners:
            threads += runner.create_threads(sess, coord=self._coord, daemon=True, start=True)
        return threads

    def loop(
        self,
        timer_interval_secs: float | None,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> LooperThread:
        """Start a thread that calls a function on a timer until a stop is requested."""
        return LooperThread.loop(self._coord, timer_interval_secs, target, args, kwargs)

    def stop(
        self,
        threads: Iterable[threading.Thread] | None = None,
        close_summary_writer: bool = True,
        ignore_live_threads: bool = False,
    ) -> None:
        """Stop all threads, wait for them, and raise the error of the one that failed first."""
        self._coord.request_stop()
        try:
            self._coord.join(threads, self._stop_grace_secs, ignore_live_threads)
        finally:
            if close_summary_writer and self._summary_writer:
                self._close_writer()

    def _close_writer(self) -> None:
        self._summary_writer.add_session_log(stop_log())
        self._summary_writer.close()
        self._graph_added_to_summary = False

    def request_stop(self, ex: BaseException | tuple[Any, Any, Any] | None = None) -> None:
        """Ask all threads to stop, with the error that is the reason."""
        self._coord.request_stop(ex)

    def should_stop(self) -> bool:
        """Whether a stop was requested."""
        return self._coord.should_stop()

    def stop_on_exception(self) -> AbstractContextManager[None]:
        """Request a stop with whatever the block raises."""
        return self._coord.stop_on_exception()

    def wait_for_stop(self) -> None:
        """Wait until a stop is requested."""
        self._coord.wait_for_stop()

    def summary_computed(
        self, sess: Runner, summary: bytes | protos.Summary, global_step: int | None = None
    ) -> None:
        """Write a summary that the program computed."""
        if not self._summary_writer:
            raise RuntimeError("Writing a summary requires a summary writer.")
        if global_step is None and self._global_step is not None:
            global_step = step_value(sess, self._global_step)
        self._summary_writer.add_summary(summary, global_step)

    # Their old names
    PrepareSession = prepare_or_wait_for_session
    StartQueueRunners = start_queue_runners
    StartStandardServices = start_standard_services
    Loop = loop
    Stop = stop
    RequestStop = request_stop
    ShouldStop = should_stop
    StopOnException = stop_on_exception
    WaitForStop = wait_for_stop
    SummaryComputed = summary_computed


def _local_init_op() -> Any:
    return group(local_variables_initializer(), tables_initializer())


def _joined(folder: str | None, name: str) -> str | None:
    return os.path.join(folder, name) if folder else None


def _saver() -> Saver | None:
    return Saver() if global_variables() else None
