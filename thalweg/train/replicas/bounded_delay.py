"""`BoundedDelay`: no worker gets more than τ steps ahead of the slowest.

Each worker has two queues, on one device: at the end of a step it enqueues a token into its
*finished* queue, then dequeues a *permit* for the next step from the other one. The chief's thread
dequeues a token from every finished queue, so that all workers have ended that step, and then
enqueues one permit for every worker. Workers start with τ permits: a fast one can end τ steps
before the slowest ends its first. τ = 0 is a barrier after each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.graph import dtypes
from thalweg.graph.likes import NodeLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import control_dependencies, device, name_scope
from thalweg.ops.core import basic, filling
from thalweg.ops.state import state
from thalweg.ops.state.queues import FIFOQueue
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.train.hooks.session_run_hook import SessionRunHook
from thalweg.train.queue_runner import QueueRunner
from thalweg.train.replicas.sync_runner import ChiefQueueRunner
from thalweg.variables.variable import Variable


@public("train.BoundedDelay")
class BoundedDelay:
    """Lets workers run asynchronously, but none more than `max_delay` steps ahead of the slowest.

    Every worker builds it, runs `after(train_op)` instead of its train op, and uses the hook of
    `make_session_run_hook`. Its state is in queues on one device, which outlive the sessions of
    workers: a killed worker resumes at its step, while the others wait for it at the bound.

    Args:
        max_delay: while the slowest runs step s, the others run step s + max_delay at most; 0 keeps
            all of them in lockstep.
        num_workers: the number of workers.
        worker_index: the index of this one.
        device_name: the device of the queues, the same for all workers, such as "/job:ps/task:0".
        name: the name of the nodes and queues; the same for all workers.

    Raises:
        ValueError: where the delay is negative, or the index is out of range.

    Example:
        >>> w = tf.Variable(3.0)
        >>> train = tf.train.GradientDescentOptimizer(0.25).minimize(tf.square(w))
        >>> delay = tf.train.BoundedDelay(max_delay=2, num_workers=1, worker_index=0)
        >>> step = delay.after(train)
        >>> hooks = [delay.make_session_run_hook(is_chief=True)]
        >>> with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
        ...     steps = [session.run(step) for _ in range(4)]
        ...     session.run(w)
        np.float32(0.1875)
    """

    def __init__(
        self,
        max_delay: int,
        num_workers: int,
        worker_index: int,
        device_name: str = "",
        name: str = "bounded_delay",
    ) -> None:
        if max_delay < 0:
            raise ValueError(f"A worker cannot be {max_delay} steps ahead")
        if not 0 <= worker_index < num_workers:
            raise ValueError(f"There is no worker {worker_index} of {num_workers}")
        self.max_delay = max_delay
        self._worker_index = worker_index
        self._device_name = device_name
        self._round_work: list[Callable[[], Any]] = []
        self._runner: QueueRunner | None = None
        with device(device_name), name_scope(name):
            self._finished = _queues("finished", name, num_workers)
            self._permits = _queues("permits", name, num_workers)
            #: Initialised with the first permits, and lost with the queues.
            self._is_begun = Variable(True, trainable=False, collections=[], name="is_begun")

    def __repr__(self) -> str:
        workers = len(self._finished)
        return described(self, max_delay=self.max_delay, workers=workers, worker=self._worker_index)

    def after(self, train_op: NodeLike) -> Node:
        """A node that ends a worker's step: runs the train op, then waits for the next permit.

        Args:
            train_op: the node that updates the variables.

        Returns:
            A node to run.
        """
        worker = self._worker_index
        with device(self._device_name):
            with control_dependencies([train_op]):
                finished = self._finished[worker].enqueue(0)
            with control_dependencies([finished]):
                return self._permits[worker].dequeue().op

    def at_round_end(self, make: Callable[[], Any]) -> None:
        """Run a node on the chief after all workers have ended a step, before the next permits.

        Args:
            make: a function that builds the node; called when the chief's op is built.
        """
        if self._runner is not None:
            raise RuntimeError("The op of the chief is built already.")
        self._round_work.append(make)

    def get_chief_queue_runner(self) -> QueueRunner:
        """The `tf.train.QueueRunner` of the chief's thread, which one of the workers starts."""
        if self._runner is None:
            self._runner = ChiefQueueRunner(self._round(), "bounded_delay_chief")
        return self._runner

    def _round(self) -> Node:
        """The op that the chief repeats: wait for a step of every worker, then enqueue a permit for
        each."""
        with device(self._device_name):
            finished = [queue.dequeue() for queue in self._finished]
        with control_dependencies(finished):
            work = [make() for make in self._round_work]
        own = self._permits[self._worker_index]
        with device(self._device_name), control_dependencies([*finished, *work]):
            others = [queue.enqueue(0) for queue in self._permits if queue is not own]
            with control_dependencies(others):  # own last: the chief may leave once it has a permit
                return own.enqueue(0)

    def get_init_permits_op(self) -> Node:
        """A node that enqueues the first permits; the chief runs it once for new queues."""
        permits = filling.zeros([self.max_delay], dtypes.int32)
        with device(self._device_name):
            enqueued = [queue.enqueue_many([permits]) for queue in self._permits]
            with control_dependencies(enqueued):
                return basic.group(self._is_begun.initializer)

    def make_session_run_hook(self, is_chief: bool) -> SessionRunHook:
        """A hook that starts the chief's thread on the chief, and does nothing on other workers.

        Args:
            is_chief: whether this worker runs the thread that enqueues permits.

        Returns:
            A `tf.train.SessionRunHook` for `tf.train.MonitoredTrainingSession`.
        """
        return _ChiefHook(self) if is_chief else SessionRunHook()

    def is_begun(self) -> Tensor:
        """Whether the first permits have been enqueued."""
        return state.is_variable_initialized(self._is_begun)


class _ChiefHook(SessionRunHook):
    """Enqueues the first permits, and starts the thread that enqueues all others."""

    def __init__(self, delay: BoundedDelay) -> None:
        self._delay = delay

    def begin(self) -> None:
        """Build the nodes."""
        self._runner = self._delay.get_chief_queue_runner()
        self._begin_op = self._delay.get_init_permits_op()
        self._is_begun = self._delay.is_begun()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Enqueue the first permits unless an earlier chief did, and start the thread."""
        if not session.run(self._is_begun):
            session.run(self._begin_op)
        self._runner.create_threads(session, coord=coord, daemon=True, start=True)


def _queues(what: str, name: str, count: int) -> list[FIFOQueue]:
    return [
        FIFOQueue(-1, dtypes.int32, shapes=[()], shared_name=f"{name}/{what}_{index}", name=what)
        for index in range(count)
    ]
