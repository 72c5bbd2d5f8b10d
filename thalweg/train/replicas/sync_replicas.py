"""`SyncReplicasOptimizer`: one update of the variables from the mean gradient of many workers.

Each variable has an accumulator beside it. A worker's step pushes its gradients there, each with
the global step that it was computed for, and waits for a token. The chief's thread takes the means
once enough gradients are there, applies them, counts the global step, and hands out one token for
each worker: the new global step. Gradients of an earlier global step are dropped on arrival, so of
n workers the first m are enough and the others are backups.
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
from thalweg.train.replicas.sync_runner import ChiefQueueRunner, SynchronisingHook
from thalweg.variables.collections import global_variables, report_uninitialized_variables
from thalweg.variables.variable import Variable


class _Aggregated(NamedTuple):
    """One variable's accumulator: a worker's push, and the chief's mean."""

    accumulator: ConditionalAccumulator | SparseConditionalAccumulator
    push: Node
    mean: Gradient


@public("train.SyncReplicasOptimizer", "train.SyncReplicasOptimizerV2")
class SyncReplicasOptimizer(Optimizer):
    """Updates variables once for the gradients of many workers, with their mean.

    Every worker builds it and runs its train op as if it were alone; the hook of
    `make_session_run_hook` does the rest.

    Args:
        opt: the optimizer that applies the means.
        replicas_to_aggregate: how many gradients make one update.
        total_num_replicas: how many workers there are. Those above `replicas_to_aggregate` are
            backups: the gradients that come last are dropped. If there are fewer, a worker computes
            several gradients for an update.
        variable_averages: a `tf.train.ExponentialMovingAverage` to update with every step.
        variables_to_average: the variables that it averages.
        use_locking: taken for old programs; updates are always whole.
        name: the name of the nodes; programs with several of these give each its own.

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

    # The optimizer inside

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[GradientAndVariable]:
        """The gradients of this worker, by the optimizer inside: clip them before they are pushed.

        Args:
            *args, **kwargs: as for `tf.train.Optimizer.compute_gradients`.

        Returns:
            (gradient, variable) pairs.
        """
        return self._opt.compute_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Variable | None:
        """The slot of a variable in the optimizer inside, if it was made."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """The names of all kinds of slots of the optimizer inside, in order."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> list[Variable]:
        """The variables of the optimizer inside."""
        return self._opt.variables()

    # The program

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Any:
        """A node that pushes this worker's gradients and waits for the update that follows.

        Args:
            grads_and_vars: (gradient, variable) pairs; None as a gradient leaves the variable.
            global_step: the variable that counts updates; gradients are stale or not by it.
            name: the name of the nodes.

        Returns:
            A node to run, which is done when the worker may begin its next step.

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
            found = [self._aggregate(g, v, local_step) for g, v in pairs]
            means = [(part and part.mean, v) for part, (_, v) in zip(found, pairs, strict=True)]
            parts = [part for part in found if part is not None]
            with device(global_step.device):
                pushed = basic.group(*(part.push for part in parts), name="push")
                with name_scope(""):
                    update = self._opt.apply_gradients(means, global_step)
            with colocate_with(global_step.op, ignore_existing=True):
                self._token_queue = self._make_token_queue(global_step)
                synchronise = self._hand_out(self._token_queue, update, global_step)
                with control_dependencies([pushed]):
                    token = self._token_queue.dequeue()
            enough = basic.group(*(self._await(part) for part in parts), name="enough")
            self._chief_queue_runner = ChiefQueueRunner(synchronise, "chief_queue", enough)
            self.chief_init_op = self._make_chief_init_op(parts, global_step)
        return state.assign(local_step, token)

    def _make_local_step(self, global_step: Any) -> Variable:
        """The global step that this worker's gradients are computed for, kept on the worker."""
        here = basic.no_op(name="sync_rep_worker").device  # parameter servers are for variables
        with device(None), device(here):
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
    ) -> _Aggregated | None:
        """Push a gradient into the accumulator beside its variable."""
        if gradient is None:
            return None
        if not isinstance(gradient, Tensor | IndexedSlices):
            raise ValueError(f"Unknown grad type! {gradient!r}")
        about = gradient.dtype.base_dtype, variable.shape, self._shared_name(variable)
        count = self._replicas_to_aggregate
        with colocate_with(variable.op, ignore_existing=True):
            if isinstance(gradient, Tensor):
                dense = ConditionalAccumulator(*about)
                push = dense.apply_grad(gradient, local_step=local_step)
                return _Aggregated(dense, push, dense.take_grad(count))
            sparse = SparseConditionalAccumulator(*about)
            push = sparse.apply_indexed_slices_grad(gradient, local_step=local_step)
            return _Aggregated(sparse, push, sparse.take_indexed_slices_grad(count))

    def _await(self, part: _Aggregated) -> Node:
        """A node that is done when there are enough gradients of a variable; it takes none."""
        with colocate_with(part.accumulator.accumulator_ref, ignore_existing=True):
            return part.accumulator.await_grads(self._replicas_to_aggregate)

    def _shared_name(self, variable: Variable) -> str:
        """What all workers call the accumulator of a variable."""
        return f"{self._name}/{variable.op.name}/grad_accum"

    def _make_token_queue(self, global_step: Any) -> FIFOQueue:
        dtype, name = global_step.dtype.base_dtype, f"{self._name}/token_queue"
        return FIFOQueue(-1, dtype, shapes=[()], shared_name=name, name="sync_token_q")

    def _hand_out(self, tokens: FIFOQueue, update: Node, global_step: Any) -> Node:
        """What the chief repeats: update, then give each worker the new global step."""
        count = max(self._total_num_replicas, self._replicas_to_aggregate)
        with control_dependencies([update]):
            done = tokens.enqueue_many([filling.fill([count], global_step)])
        if self._variable_averages is None:
            return done
        with control_dependencies([done]), name_scope(""):
            return self._variable_averages.apply(self._variables_to_average)

    def _make_chief_init_op(self, parts: list[_Aggregated], global_step: Any) -> Node:
        steps: list[Node] = []
        for part in parts:
            with colocate_with(part.accumulator.accumulator_ref, ignore_existing=True):
                steps.append(part.accumulator.set_global_step(global_step, name="SetGlobalStep"))
        return basic.group(self.local_step_init_op, *steps)

    # What the chief runs

    def get_chief_queue_runner(self) -> QueueRunner:
        """The `tf.train.QueueRunner` with the chief's thread, made by `apply_gradients`.

        Returns:
            The runner, which one of the workers starts.

        Raises:
            ValueError: where `apply_gradients` was not called.
        """
        if self._chief_queue_runner is None:
            raise ValueError("Should be called after apply_gradients().")
        return self._chief_queue_runner

    def get_init_tokens_op(self, num_tokens: int = -1) -> Node:
        """A node with which the chief hands out the tokens of the first step.

        Args:
            num_tokens: how many; `replicas_to_aggregate` if -1. They must make up for workers
                that there are not.

        Returns:
            A node to run once.

        Raises:
            ValueError: where `apply_gradients` was not called, or the tokens are too few.
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
        """A hook that begins this worker's part with each new session.

        Args:
            is_chief: whether this worker is the one that applies the updates.
            num_tokens: as for `get_init_tokens_op`.

        Returns:
            A `tf.train.SessionRunHook` for `tf.train.MonitoredTrainingSession`.
        """
        return SynchronisingHook(self, is_chief, num_tokens)
