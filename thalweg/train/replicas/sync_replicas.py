"""`SyncReplicasOptimizer`: one update of the variables from the mean gradient of many workers.

Each variable has an accumulator on its device. A worker's step pushes its gradients there, each
with the global step that it was computed for, and waits for a token. When enough gradients have
arrived, the chief's thread takes their means, applies them, increments the global step, and
enqueues a token for each worker: the new global step. Gradients of an earlier global step are
dropped on arrival, so the first m of n workers are enough and the others are backups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from thalweg.graph.collections import GraphKeys
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import colocate_with, control_dependencies, device, name_scope
from thalweg.ops.core import basic, filling
from thalweg.ops.state import state
from thalweg.ops.state.accumulators import ConditionalAccumulator, SparseConditionalAccumulator
from thalweg.ops.state.queues import FIFOQueue
from thalweg.platform import tf_logging
from thalweg.public import public
from thalweg.train.averages import ExponentialMovingAverage
from thalweg.train.hooks.session_run_hook import SessionRunHook
from thalweg.train.optimizers.optimizer import Gradient, GradientAndVariable, Optimizer
from thalweg.train.queue_runner import QueueRunner
from thalweg.train.replicas.sync_runner import ChiefQueueRunner
from thalweg.train.session_manager import readiness
from thalweg.variables.collections import global_variables, report_uninitialized_variables
from thalweg.variables.variable import Variable


class _Aggregation(NamedTuple):
    """The accumulator of a variable, a worker's push to it, and the mean that the chief takes."""

    accumulator: ConditionalAccumulator | SparseConditionalAccumulator
    push: Node
    mean: Gradient


@public("train.SyncReplicasOptimizer", "train.SyncReplicasOptimizerV2")
class SyncReplicasOptimizer(Optimizer):
    """Updates variables with the mean of the gradients of many workers.

    Every worker builds it and runs its train op as with any optimizer, in a session with the hook
    of `make_session_run_hook`.

    Args:
        opt: the optimizer that applies the means.
        replicas_to_aggregate: the number of gradients of one update.
        total_num_replicas: the number of workers. Those above `replicas_to_aggregate` are backups:
            the last gradients are dropped. If there are fewer, a worker computes several gradients
            for an update.
        variable_averages: a `tf.train.ExponentialMovingAverage` to update with every step.
        variables_to_average: the variables that it averages.
        use_locking: ignored; accepted for old programs.
        name: the name of the nodes; a program with several of these gives each its own.

    Example:
        >>> w, step = tf.Variable(3.0), tf.train.create_global_step()
        >>> descent = tf.train.GradientDescentOptimizer(0.25)
        >>> optimizer = tf.train.SyncReplicasOptimizer(descent, replicas_to_aggregate=1)
        >>> train = optimizer.minimize(tf.square(w), global_step=step)
        >>> stop = tf.train.StopAtStepHook(last_step=2)
        >>> hooks = [optimizer.make_session_run_hook(is_chief=True), stop]
        >>> with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
        ...     while not session.should_stop():
        ...         step_run = session.run(train)
    """

    local_step_init_op: Node
    chief_init_op: Node
    ready_for_local_init_op: Tensor

    def __init__(
        self,
        opt: Optimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        variable_averages: ExponentialMovingAverage | None = None,
        variables_to_average: Sequence[Variable] | None = None,
        use_locking: bool = False,
        name: str = "sync_replicas",
    ) -> None:
        super().__init__(use_locking, name)
        total = replicas_to_aggregate if total_num_replicas is None else total_num_replicas
        tf_logging.info(
            "%s: replicas_to_aggregate=%s; total_num_replicas=%s",
            name,
            replicas_to_aggregate,
            total,
        )
        self._opt = opt
        self._replicas_to_aggregate = replicas_to_aggregate
        self._total_num_replicas = total
        self._variable_averages = variable_averages
        self._variables_to_average = variables_to_average
        self._global_step: Any = None
        self._token_queue: FIFOQueue | None = None
        self._chief_queue_runner: QueueRunner | None = None

    # The wrapped optimizer

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[GradientAndVariable]:
        """The gradients of this worker, by the wrapped optimizer: clip them before they are pushed.

        Args:
            *args, **kwargs: as for `tf.train.Optimizer.compute_gradients`.

        Returns:
            (gradient, variable) pairs.
        """
        return self._opt.compute_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Variable | None:
        """The slot of a variable in the wrapped optimizer, if it exists."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """The names of the slots of the wrapped optimizer, sorted."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> list[Variable]:
        """The variables of the wrapped optimizer."""
        return self._opt.variables()

    # The graph

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Any:
        """A node that pushes this worker's gradients and waits for the update that follows.

        Args:
            grads_and_vars: (gradient, variable) pairs; those without a gradient are skipped.
            global_step: the variable that counts updates; it determines which gradients are stale.
            name: the name of the nodes.

        Returns:
            A node to run, which is done when the worker may start its next step.

        Raises:
            ValueError: where there are no variables, or no global step.
        """
        pairs = list(grads_and_vars)
        if not pairs:
            raise ValueError("Must supply at least one variable")
        if global_step is None:
            raise ValueError("Global step is required to check staleness")
        self._global_step = global_step
        local_step = self._make_local_step(global_step)
        with name_scope(name, self._name):
            aggregations = [self._aggregate(g, v, local_step) for g, v in pairs]
            means = [(a and a.mean, v) for a, (_, v) in zip(aggregations, pairs, strict=True)]
            present = [a for a in aggregations if a is not None]
            with device(global_step.device):
                pushed = basic.group(*(a.push for a in present), name="push")
                with name_scope(""):
                    update = self._opt.apply_gradients(means, global_step)
            with colocate_with(global_step.op, ignore_existing=True):
                dtype, shared_name = global_step.dtype.base_dtype, f"{self._name}/token_queue"
                self._token_queue = FIFOQueue(
                    -1, dtype, shapes=[()], shared_name=shared_name, name="sync_token_q"
                )
                synchronise = self._enqueue_tokens(self._token_queue, update, global_step)
                with control_dependencies([pushed]):
                    token = self._token_queue.dequeue()
            enough = basic.group(*(self._await(a) for a in present), name="enough")
            self._chief_queue_runner = ChiefQueueRunner(synchronise, "chief_queue", enough)
            self.chief_init_op = self._make_chief_init_op(present, global_step)
        return state.assign(local_step, token)

    def _make_local_step(self, global_step: Any) -> Variable:
        """A variable on the worker: the global step that its gradients are computed for."""
        worker = basic.no_op(
            name="sync_rep_worker"
        ).device  # a device setter puts variables on servers
        with device(None), device(worker):
            local_step = Variable(
                0,
                trainable=False,
                collections=[GraphKeys.LOCAL_VARIABLES],
                dtype=global_step.dtype.base_dtype,
                name="sync_rep_local_step",
            )
        self.local_step_init_op = state.assign(local_step, global_step).op
        self.ready_for_local_init_op = report_uninitialized_variables(global_variables())
        return local_step

    def _aggregate(
        self, gradient: Any, variable: Variable, local_step: Variable
    ) -> _Aggregation | None:
        """Push a gradient into the accumulator of its variable."""
        if gradient is None:
            return None
        if not isinstance(gradient, Tensor | IndexedSlices):
            raise ValueError(f"Unknown grad type! {gradient!r}")
        shared_name = f"{self._name}/{variable.op.name}/grad_accum"  # the same in all workers
        arguments = gradient.dtype.base_dtype, variable.shape, shared_name
        count = self._replicas_to_aggregate
        with colocate_with(variable.op, ignore_existing=True):
            if isinstance(gradient, Tensor):
                dense = ConditionalAccumulator(*arguments)
                push = dense.apply_grad(gradient, local_step=local_step)
                return _Aggregation(dense, push, dense.take_grad(count))
            sparse = SparseConditionalAccumulator(*arguments)
            push = sparse.apply_indexed_slices_grad(gradient, local_step=local_step)
            return _Aggregation(sparse, push, sparse.take_indexed_slices_grad(count))

    def _await(self, aggregation: _Aggregation) -> Node:
        """A node that is done when a variable has enough gradients; it takes none."""
        accumulator = aggregation.accumulator
        with colocate_with(accumulator.accumulator_ref, ignore_existing=True):
            return accumulator.await_grads(self._replicas_to_aggregate)

    def _enqueue_tokens(self, tokens: FIFOQueue, update: Node, global_step: Any) -> Node:
        """The op that the chief repeats: update, then enqueue a token for each worker."""
        count = max(self._total_num_replicas, self._replicas_to_aggregate)
        with control_dependencies([update]):
            done = tokens.enqueue_many([filling.fill([count], global_step)])
        if self._variable_averages is None:
            return done
        with control_dependencies([done]), name_scope(""):
            return self._variable_averages.apply(self._variables_to_average)

    def _make_chief_init_op(self, aggregations: list[_Aggregation], global_step: Any) -> Node:
        steps: list[Node] = []
        for accumulator, _, _ in aggregations:
            with colocate_with(accumulator.accumulator_ref, ignore_existing=True):
                steps.append(accumulator.set_global_step(global_step, name="SetGlobalStep"))
        return basic.group(self.local_step_init_op, *steps)

    # The chief

    def get_chief_queue_runner(self) -> QueueRunner:
        """The `tf.train.QueueRunner` of the chief's thread, built by `apply_gradients`.

        Returns:
            The runner, which one of the workers starts.

        Raises:
            ValueError: where `apply_gradients` was not called.
        """
        if self._chief_queue_runner is None:
            raise ValueError("Should be called after apply_gradients().")
        return self._chief_queue_runner

    def get_init_tokens_op(self, num_tokens: int = -1) -> Node:
        """A node that enqueues the tokens of the first step; the chief runs it once.

        Args:
            num_tokens: the number of tokens; `replicas_to_aggregate` if -1. At least
                `replicas_to_aggregate - total_num_replicas` are needed.

        Returns:
            A node to run once.

        Raises:
            ValueError: where `apply_gradients` was not called, or there are too few tokens.
        """
        if self._token_queue is None:
            raise ValueError("get_init_tokens_op() should be called after apply_gradients().")
        needed = self._replicas_to_aggregate - self._total_num_replicas
        count = self._replicas_to_aggregate if num_tokens == -1 else num_tokens
        if count < needed:
            raise ValueError(
                f"Too few tokens to finish the first step: {count} (given) vs {needed} (needed)"
            )
        if count <= 0:
            return basic.no_op(name="no_init_tokens")
        with colocate_with(self._global_step.op, ignore_existing=True), name_scope(""):
            return self._token_queue.enqueue_many([filling.fill([count], self._global_step)])

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> SessionRunHook:
        """A hook that initialises this worker in each new session, and starts the chief's thread.

        Args:
            is_chief: whether this worker applies the updates.
            num_tokens: as for `get_init_tokens_op`.

        Returns:
            A `tf.train.SessionRunHook` for `tf.train.MonitoredTrainingSession`.
        """
        return _SynchronisingHook(self, is_chief, num_tokens)


class _SynchronisingHook(SessionRunHook):
    """Initialises a worker in every new session, and starts the chief's thread on the chief."""

    def __init__(self, optimizer: SyncReplicasOptimizer, is_chief: bool, num_tokens: int) -> None:
        self._optimizer = optimizer
        self._is_chief = is_chief
        self._num_tokens = num_tokens

    def begin(self) -> None:
        """Build the nodes."""
        optimizer = self._optimizer
        self._runner = optimizer.get_chief_queue_runner()
        self._init_op = optimizer.local_step_init_op
        if self._is_chief:
            self._init_op = optimizer.chief_init_op
            self._tokens_op = optimizer.get_init_tokens_op(self._num_tokens)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Set the worker's step; on the chief, enqueue the first tokens and start the thread."""
        is_ready, reason = readiness(
            self._optimizer.ready_for_local_init_op, session, "The model is not initialized"
        )
        if not is_ready:
            raise RuntimeError(
                f"Init operations did not make model ready for {self._init_op.name}: {reason}"
            )
        session.run(self._init_op)
        if self._is_chief:
            session.run(self._tokens_op)
            self._runner.create_threads(session, coord=coord, daemon=True, start=True)
