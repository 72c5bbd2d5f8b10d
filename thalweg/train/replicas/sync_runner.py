"""The chief's thread and the hook of workers that are synchronised."""

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
        if self._enough is None:
            super()._enqueue(sess, node, coord)
            return
        wait, update = sess.make_callable(self._enough), sess.make_callable(node)
        while coord is None or not coord.should_stop():
            wait()
            with update_lock(sess.graph):
                update()

    def _report(self, error: Exception, coord: Coordinator | None) -> None:
        """Report an error to the coordinator, unless it is caused by the end of its session."""
        if coord is None or not coord.joined:
            super()._report(error, coord)


class Synchronised(Protocol):
    """The initial ops of a synchronised program: those of the chief, and those of all workers."""

    chief_init_op: Node
    local_step_init_op: Node
    ready_for_local_init_op: Any

    def get_chief_queue_runner(self) -> QueueRunner: ...

    def get_init_tokens_op(self, num_tokens: int = -1) -> Node: ...


class SynchronisingHook(SessionRunHook):
    """Initialises a worker in every new session, and starts the chief's thread on the chief."""

    def __init__(self, program: Synchronised, is_chief: bool, num_tokens: int = -1) -> None:
        self._program = program
        self._is_chief = is_chief
        self._num_tokens = num_tokens

    def begin(self) -> None:
        """Build the nodes."""
        program = self._program
        self._runner = program.get_chief_queue_runner()
        self._init_op = program.local_step_init_op
        if self._is_chief:
            self._init_op = program.chief_init_op
            self._tokens_op = program.get_init_tokens_op(self._num_tokens)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Set the worker's step; on the chief, enqueue the first tokens and start the thread."""
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
