"""The chief's thread, which runs an op for all workers."""

from __future__ import annotations

from typing import Any

from thalweg import errors
from thalweg.graph.node import Node
from thalweg.ops.state.queues import FIFOQueue
from thalweg.train.coordinator import Coordinator
from thalweg.train.queue_runner import QueueRunner
from thalweg.train.update_lock import update_lock


class ChiefQueueRunner(QueueRunner):
    """A thread that runs one op repeatedly, for all workers, until its session is closed.

    The op waits for the workers, so a coordinator must not join the thread: the session is closed
    after all threads of a coordinator have ended. The thread closes no queue that outlives its
    session, so that workers can continue with another chief.
    """

    _is_joined = False

    def __init__(self, op: Node, name: str, enough: Node | None = None) -> None:
        self._enough = enough  # done when the op will not block: only then is the update lock held
        queue = FIFOQueue(1, "int32", shapes=[()], name=name)
        end_errors = (errors.OutOfRangeError, errors.CancelledError)
        super().__init__(queue, [op], queue_closed_exception_types=end_errors)

    def _enqueue(self, sess: Any, node: Any, coord: Coordinator | None) -> None:
        lock = update_lock(sess.graph)
        if self._enough is None or lock is None:
            super()._enqueue(sess, node, coord)
            return
        wait, update = sess.make_callable(self._enough), sess.make_callable(node)
        while coord is None or not coord.should_stop():
            wait()
            with lock:
                update()

    def _report(self, error: Exception, coord: Coordinator | None) -> None:
        """Report an error to the coordinator, unless it is caused by the end of its session."""
        if coord is None or not coord.joined:
            super()._report(error, coord)
