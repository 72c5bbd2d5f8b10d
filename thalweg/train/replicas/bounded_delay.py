"""`BoundedDelay`: no worker gets more than τ steps ahead of the slowest.

Two queues for each worker, on one device: at the end of a step a worker puts a token into its
*finished* queue, then takes a *permit* for the next step out of its other one. The chief's thread
takes a token from each finished queue, which is there when all workers have made that step, and
gives every worker one permit for it. Workers begin with τ permits: so many steps can a fast one
end before the slowest ends its first. τ = 0 is a barrier after each step.
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
    """Lets workers run at their own pace, but none more than some steps ahead of the slowest.

    Every worker builds it, runs `after(train_op)` instead of its train op, and has the hook of
    `make_session_run_hook`. Its state is in queues on one device, which outlive the sessions of
    workers: one that is killed goes on where it was; the others wait for it at the bound.

    Args:
        max_delay: while the slowest works on step s, others work on step s + max_delay at most;
            0 keeps all of them in step.
        num_workers: how many workers there are.
        worker_index: which of them this one is.
        device_name: where the queues are: the same for all, such as "/job:ps/task:0".
        name: the name of the nodes and queues; the same for all.

    Raises:
        ValueError: where the delay is negative, or there is no such worker.

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
            #: Where it has no value, no permit was given: the queues are new, or lost with it.
            self._is_begun = Variable(True, trainable=False, collections=[], name="is_begun")

    def __repr__(self) -> str:
        workers = len(self._finished)
        return described(self, max_delay=self.max_delay, workers=workers, worker=self._worker_index)

    def after(self, train_op: NodeLike) -> Node:
        """A node that ends a worker's step: runs its train op, then waits for the next permit.

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
        """Have the chief do something between the workers' steps: after all have ended one.

        Args:
            make: a function that makes the node to run; called when the chief's op is built.
        """
        if self._runner is not None:
            raise RuntimeError("The op of the chief is built already.")
        self._round_work.append(make)

    def get_chief_queue_runner(self) -> QueueRunner:
        """The `tf.train.QueueRunner` with the chief's thread, for one of the workers to start."""
        if self._runner is None:
            self._runner = ChiefQueueRunner(self._round(), "bounded_delay_chief")
        return self._runner

    def _round(self) -> Node:
        """What the chief repeats: wait for a step of every worker, then permit each one more."""
        with device(self._device_name):
            finished = [queue.dequeue() for queue in self._finished]
        with control_dependencies(finished):
            work = [make() for make in self._round_work]
        own = self._permits[self._worker_index]
        with device(self._device_name), control_dependencies([*finished, *work]):
            others = [queue.enqueue(0) for queue in self._permits if queue is not own]
            with control_dependencies(others):  # who leaves with its last permit cuts off nobody
                return own.enqueue(0)

    def get_init_permits_op(self) -> Node:
        """A node with which the chief gives the first permits, once for new queues."""
        permits = filling.zeros([self.max_delay], dtypes.int32)
        with device(self._device_name):
            given = [queue.enqueue_many([permits]) for queue in self._permits]
            with control_dependencies(given):
                return basic.group(self._is_begun.initializer)

    def make_session_run_hook(self, is_chief: bool) -> SessionRunHook:
        """A hook that does the chief's part on the chief, and nothing on other workers.

        Args:
            is_chief: whether this worker is the one whose thread gives the permits.

        Returns:
            A `tf.train.SessionRunHook` for `tf.train.MonitoredTrainingSession`.
        """
        return _ChiefHook(self) if is_chief else SessionRunHook()

    def is_begun(self) -> Tensor:
        """Whether the first permits were given."""
        return state.is_variable_initialized(self._is_begun)


class _ChiefHook(SessionRunHook):
    """Gives the first permits, and starts the thread that gives all others."""

    def __init__(self, delay: BoundedDelay) -> None:
        self._delay = delay

    def begin(self) -> None:
        """Make what has to be in the graph."""
        self._runner = self._delay.get_chief_queue_runner()
        self._begin_op = self._delay.get_init_permits_op()
        self._is_begun = self._delay.is_begun()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Begin, unless an earlier chief did and the queues are still there."""
        if not session.run(self._is_begun):
            session.run(self._begin_op)
        self._runner.create_threads(session, coord=coord, daemon=True, start=True)


def _queues(what: str, name: str, count: int) -> list[FIFOQueue]:
    return [
        FIFOQueue(-1, dtypes.int32, shapes=[()], shared_name=f"{name}/{what}_{index}", name=what)
        for index in range(count)
    ]
