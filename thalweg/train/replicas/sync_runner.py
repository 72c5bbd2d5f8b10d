"""The chief's threads and hook: what one of the workers does so that all of them step together."""

from __future__ import annotations

from typing import Any, Protocol

from thalweg import errors
from thalweg.graph.node import Node
from thalweg.ops.state.queues import FIFOQueue
from thalweg.train.coordinator import Coordinator
from thalweg.train.hooks.session_run_hook import SessionRunHook
from thalweg.train.queue_runner import QueueRunner
from thalweg.train.session_manager import readiness
from thalweg.train.update_lock import update_lock


class ChiefQueueRunner(QueueRunner):
    """A thread that runs one op for all workers, again and again until its session is closed.

    The op waits for the workers, so a coordinator must not wait for the thread: the session is
    closed after all threads of a coordinator have ended. It closes no queue that outlives its
    session, or workers could not go on with another chief.
    """

    _is_joined = False

    def __init__(self, op: Node, name: str, enough: Node | None = None) -> None:
        self._enough = enough  # done when the op will not block: it must not hold a lock and wait
        own = FIFOQueue(1, "int32", shapes=[()], name=name)
        ends = (errors.OutOfRangeError, errors.CancelledError)
        super().__init__(own, [op], queue_closed_exception_types=ends)

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
        """Tell the coordinator, unless it is done with its session, as whose end this is."""
        if coord is None or not coord.joined:
            super()._report(error, coord)


class Synchronised(Protocol):
    """A program that keeps workers in step: the ops that its chief and its workers begin with."""

    chief_init_op: Node
    local_step_init_op: Node
    ready_for_local_init_op: Any

    def get_chief_queue_runner(self) -> QueueRunner: ...

    def get_init_tokens_op(self, num_tokens: int = -1) -> Node: ...


class SynchronisingHook(SessionRunHook):
    """Begins a worker's part with every new session; the chief's thread too, on the chief."""

    def __init__(self, program: Synchronised, is_chief: bool, num_tokens: int = -1) -> None:
        self._program = program
        self._is_chief = is_chief
        self._num_tokens = num_tokens

    def begin(self) -> None:
        """Make what has to be in the graph."""
        program = self._program
        self._runner = program.get_chief_queue_runner()
        self._init_op = program.local_step_init_op
        if self._is_chief:
            self._init_op = program.chief_init_op
            self._tokens_op = program.get_init_tokens_op(self._num_tokens)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Set the worker's step; on the chief, hand out the first tokens and start the thread."""
        is_ready, reason = readiness(
            self._program.ready_for_local_init_op, session, "The model is not initialized"
        )
        if not is_ready:
            raise RuntimeError(
                f"Init operations did not make model ready for {self._init_op.name}: {reason}"
            )
        session.run(self._init_op)
        if self._is_chief:
            session.run(self._tokens_op)
            self._runner.create_threads(session, coord=coord, daemon=True, start=True)
