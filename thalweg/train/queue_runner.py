"""Threads that keep queues filled: each runs an enqueue op until the data or the program ends.

`add_queue_runner` collects runners with the graph, `start_queue_runners` starts their threads. A
runner closes its queue when all its enqueue ops ran out of data, and cancels what still waits when
its coordinator asks for a stop.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from thalweg import errors, protos
from thalweg.graph import context
from thalweg.graph.collections import GraphKeys
from thalweg.graph.context import Runner
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import MaybeNone
from thalweg.graph.node import Node
from thalweg.platform import tf_logging
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.runtime.session import BaseSession
from thalweg.saved.collection_protos import register_proto_function
from thalweg.train.coordinator import Coordinator
from thalweg.variables.save_slice import strip_scope, with_scope

if TYPE_CHECKING:
    from thalweg.ops.state.queues import QueueBase

Kinds = tuple[type[errors.OpError], ...]


@public("train.QueueRunner", "train.queue_runner.QueueRunner")
class QueueRunner:
    """A queue and the enqueue ops that fill it, each to be run by a thread of its own.

    Args:
        queue: the queue.
        enqueue_ops: the ops; one that comes twice gets two threads.
        close_op: closes the queue when the threads end.
        cancel_op: closes it and cancels what waits.
        queue_closed_exception_types: errors that mean the queue is closed.
        queue_runner_def: a QueueRunnerDef protobuf to make it from.
        import_scope: the name scope that the names in that lie in.

    Example:
        >>> queue = tf.FIFOQueue(2, tf.float32, shapes=[()])
        >>> runner = tf.train.QueueRunner(queue, [queue.enqueue(tf.constant(7.0))])
        >>> coord = tf.train.Coordinator()
        >>> threads = runner.create_threads(sess, coord, start=True)
        >>> sess.run(queue.dequeue())
        np.float32(7.0)
        >>> coord.request_stop()
        >>> coord.join(threads)
    """

    #: Whether a coordinator waits for the threads to end.
    _is_joined = True

    def __init__(
        self,
        queue: QueueBase | None = None,
        enqueue_ops: Sequence[Any] | None = None,
        close_op: Node | None = None,
        cancel_op: Node | None = None,
        queue_closed_exception_types: Kinds | None = None,
        queue_runner_def: protos.QueueRunnerDef | None = None,
        import_scope: str | None = None,
    ) -> None:
        if queue_runner_def is not None:
            if queue is not None or enqueue_ops:
                raise ValueError("queue_runner_def and queue are mutually exclusive.")
            self._read(queue_runner_def, import_scope)
        elif queue is None or not enqueue_ops:
            raise ValueError("Must provide queue and enqueue_ops.")
        else:
            self._queue = queue
            self._enqueue_ops = list(enqueue_ops)
            self._closed_by = _checked(queue_closed_exception_types)
            # At the end of the data what waits is still let in; after an error nothing is.
            self._close_op = queue.close() if close_op is None else close_op
            self._cancel_op = (
                queue.close(cancel_pending_enqueues=True) if cancel_op is None else cancel_op
            )
        self._lock = threading.Lock()
        #: threads by session
        self._runs_per_session: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._exceptions_raised: list[Exception] = []

    def __repr__(self) -> str:
        return described(self, self._queue.name, enqueue_ops=len(self._enqueue_ops))

    @property
    def queue(self) -> QueueBase | MaybeNone:
        """The queue; the node of its reference, if the runner was made from a QueueRunnerDef."""
        return self._queue

    @property
    def enqueue_ops(self) -> list[Any]:
        """The ops that fill the queue."""
        return self._enqueue_ops

    @property
    def close_op(self) -> Node | MaybeNone:
        """The op that closes the queue behind what still waits."""
        return self._close_op

    @property
    def cancel_op(self) -> Node | MaybeNone:
        """The op that closes the queue and cancels what waits."""
        return self._cancel_op

    @property
    def queue_closed_exception_types(self) -> Kinds:
        """The errors of an enqueue op that mean the end of its data."""
        return self._closed_by

    @property
    def exceptions_raised(self) -> list[Exception]:
        """Errors of threads that had no coordinator to report them to."""
        return self._exceptions_raised

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._queue.name

    def create_threads(
        self,
        sess: Runner,
        coord: Coordinator | None = None,
        daemon: bool = False,
        start: bool = False,
    ) -> list[threading.Thread]:
        """A thread for each enqueue op, and with a coordinator one that cancels on its stop.

        There are none if those of an earlier call for this session still run.
        """
        with self._lock:
            if self._runs_per_session.get(sess, 0) > 0:
                return []
            self._runs_per_session[sess] = len(self._enqueue_ops)
            self._exceptions_raised = []
        threads = [
            threading.Thread(
                target=self._run,
                args=(sess, node, coord),
                name=f"QueueRunnerThread-{self.name}-{getattr(node, 'name', node)}",
            )
            for node in self._enqueue_ops
        ]
        if coord is not None:
            close = threading.Thread(
                target=self._close_on_stop,
                args=(sess, self._cancel_op, coord),
                name=f"QueueRunnerThread-{self.name}-close_on_stop",
            )
            threads.append(close)
        for thread in threads:
            if coord is not None and self._is_joined:
                coord.register_thread(thread)
            thread.daemon = daemon or thread.daemon
            if start:
                thread.start()
        return threads

    def _run(self, sess: Any, node: Any, coord: Coordinator | None) -> None:
        """What a thread does: enqueue until the end, and see to it that the end is known."""
        is_end = False
        try:
            self._enqueue(sess, node, coord)
        except self._closed_by:
            is_end = True
        except Exception as error:
            self._report(error, coord)
        finally:
            with self._lock:
                self._runs_per_session[sess] -= 1
                is_last = self._runs_per_session[sess] == 0
            if is_end and is_last:
                _try_to_run(sess, self._close_op)

    def _enqueue(self, sess: Any, node: Any, coord: Coordinator | None) -> None:
        step = sess.make_callable(node)
        while coord is None or not coord.should_stop():
            step()

    def _report(self, error: Exception, coord: Coordinator | None) -> None:
        if coord is not None:
            coord.request_stop(error)
            return
        tf_logging.error("Exception in QueueRunner: %s", error)
        with self._lock:
            self._exceptions_raised.append(error)
        raise error

    # Subclasses of libraries call this and use `_runs_per_session`, as in TensorFlow.
    def _close_on_stop(self, sess: Any, cancel_op: Any, coord: Coordinator) -> None:
        coord.wait_for_stop()
        _try_to_run(sess, cancel_op)

    # As protocol buffers

    def to_proto(self, export_scope: str | None = None) -> protos.QueueRunnerDef:
        """A QueueRunnerDef, or None if the queue is outside `export_scope`."""
        if export_scope is not None and not self.name.startswith(export_scope):
            return None
        return protos.QueueRunnerDef(
            queue_name=strip_scope(self.name, export_scope),
            enqueue_op_name=[strip_scope(node.name, export_scope) for node in self._enqueue_ops],
            close_op_name=strip_scope(self._close_op.name, export_scope),
            cancel_op_name=strip_scope(self._cancel_op.name, export_scope),
            queue_closed_exception_types=[
                errors.error_code_from_exception_type(kind) for kind in self._closed_by
            ],
        )

    @staticmethod
    def from_proto(
        queue_runner_def: protos.QueueRunnerDef, import_scope: str | None = None
    ) -> QueueRunner:
        """The runner a QueueRunnerDef describes, in the default graph."""
        return QueueRunner(queue_runner_def=queue_runner_def, import_scope=import_scope)

    def _read(self, definition: Any, import_scope: str | None) -> None:
        graph = get_default_graph()

        def element(name: str) -> Any:
            return graph.as_graph_element(with_scope(name, import_scope))

        self._queue = element(definition.queue_name)
        self._enqueue_ops = [element(name) for name in definition.enqueue_op_name]
        self._close_op = element(definition.close_op_name)
        self._cancel_op = element(definition.cancel_op_name)
        codes = definition.queue_closed_exception_types
        kinds = tuple(errors.exception_type_from_error_code(code) for code in codes)
        self._closed_by = kinds or (errors.OutOfRangeError,)


def _checked(kinds: Any) -> Kinds:
    if kinds is None:
        return (errors.OutOfRangeError,)
    given = cast("tuple[Any, ...]", kinds if isinstance(kinds, tuple) else ())
    if not given or not all(issubclass(kind, errors.OpError) for kind in given):
        raise TypeError(
            "queue_closed_exception_types, when provided, must be a non-empty tuple of tf.errors "
            f"types, but saw: {kinds}"
        )
    return given


def _try_to_run(sess: Any, node: Any) -> None:
    """Run an op that may fail without harm: a queue that is closed already is closed enough."""
    try:
        sess.run(node)
    except Exception as error:
        tf_logging.vlog(1, "Ignored exception: %s", error)


@public("train.add_queue_runner", "train.queue_runner.add_queue_runner")
def add_queue_runner(qr: QueueRunner, collection: str = GraphKeys.QUEUE_RUNNERS) -> None:
    """Keep a runner with the default graph, for `tf.train.start_queue_runners`.

    Args:
        qr: the runner.
        collection: the collection it joins.

    Example:
        >>> queue = tf.FIFOQueue(2, tf.float32)
        >>> runner = tf.train.QueueRunner(queue, [queue.enqueue(1.0)])
        >>> tf.train.add_queue_runner(runner)
        >>> tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS) == [runner]
        True
    """
    get_default_graph().add_to_collection(collection, qr)


@public("train.start_queue_runners", "train.queue_runner.start_queue_runners")
def start_queue_runners(
    sess: Runner | None = None,
    coord: Coordinator | None = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = GraphKeys.QUEUE_RUNNERS,
) -> list[threading.Thread]:
    """Start the threads that fill the queues of an input pipeline.

    Args:
        sess: the session; the default one if None.
        coord: a `tf.train.Coordinator` that stops the threads.
        daemon: whether threads still running let the program end.
        start: False makes the threads and does not start them.
        collection: the collection of runners.

    Returns:
        The threads.

    Raises:
        ValueError: where there is no session.

    Example:
        >>> number = tf.train.range_input_producer(3, shuffle=False).dequeue()
        >>> coord = tf.train.Coordinator()
        >>> threads = tf.train.start_queue_runners(sess, coord)
        >>> [int(sess.run(number)) for _ in range(4)]
        [0, 1, 2, 0]
        >>> coord.request_stop()
        >>> coord.join(threads)
    """
    session = context.sessions.top if sess is None else sess
    if session is None:
        raise ValueError(
            "Cannot start queue runners: No default session is registered. Use `with "
            "sess.as_default()` or pass an explicit session to tf.start_queue_runners(sess=sess)"
        )
    if not isinstance(session, BaseSession):
        return _started_already(session)
    threads: list[threading.Thread] = []
    with session.graph.as_default():
        for runner in session.graph.get_collection(collection):
            threads += runner.create_threads(session, coord=coord, daemon=daemon, start=start)
    return threads


def _started_already(session: Any) -> list[threading.Thread]:
    """Monitored sessions start the threads themselves."""
    if type(session).__name__ in ("MonitoredSession", "SingularMonitoredSession"):
        return []
    raise TypeError(f"sess must be a `tf.Session` object. Given class: {type(session)}")


register_proto_function(
    GraphKeys.QUEUE_RUNNERS,
    lambda: protos.QueueRunnerDef,
    QueueRunner.to_proto,
    QueueRunner.from_proto,
)
