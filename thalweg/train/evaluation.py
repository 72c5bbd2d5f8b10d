"""Evaluation of a checkpoint: run ops so many times in a session of its own, then some once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thalweg.graph import nest
from thalweg.graph.collections import GraphKeys
from thalweg.graph.dtypes import int64
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import FetchLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import control_dependencies
from thalweg.ops.core import basic
from thalweg.platform import tf_logging
from thalweg.public import public
from thalweg.train.hooks.basic import FinalOpsHook
from thalweg.train.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from thalweg.train.monitored_session import ChiefSessionCreator, MonitoredSession
from thalweg.variables.initializers import Zeros
from thalweg.variables.scope import get_variable
from thalweg.variables.variable import Variable


@public("contrib.training.get_or_create_eval_step")
def get_or_create_eval_step() -> Variable:
    """The variable that counts evaluations in the default graph.

    Returns:
        A local int64 variable.

    Example:
        >>> tf.contrib.training.get_or_create_eval_step().op.name
        'eval_step'
    """
    found = get_default_graph().get_collection(GraphKeys.EVAL_STEP)
    if len(found) > 1:
        raise ValueError("Multiple tensors added to tf.GraphKeys.EVAL_STEP")
    return found[0] if found else get_variable(
        "eval_step",
        shape=[],
        dtype=int64,
        initializer=Zeros(),
        trainable=False,
        collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.EVAL_STEP],
    )  # fmt: skip


@public("contrib.training.StopAfterNEvalsHook")
class StopAfterNEvalsHook(SessionRunHook):
    """Ends an evaluation after so many runs.

    Args:
        num_evals: how many; None: until the inputs end.
        log_progress: whether to log how far it is.

    Example:
        >>> isinstance(tf.contrib.training.StopAfterNEvalsHook(10), tf.train.SessionRunHook)
        True
    """

    def __init__(self, num_evals: int | None, log_progress: bool = True) -> None:
        self._num_evals = num_evals
        self._log_progress = log_progress
        self._completed: Any = None
        self._log_frequency = 1 if num_evals is None or num_evals < 20 else num_evals // 10

    def count_with(self, updated_eval_step: Tensor) -> None:
        """Take the tensor that tells how many runs there were."""
        self._completed = updated_eval_step

    _set_evals_completed_tensor = count_with  # what loops of other packages call

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Ask for the count."""
        return SessionRunArgs({"evals_completed": self._completed})

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Stop when it is enough."""
        completed, wanted = run_values.results["evals_completed"], self._num_evals
        if self._log_progress and (completed % self._log_frequency == 0 or completed == wanted):
            tf_logging.info("Evaluation [%s%s]", completed, "" if wanted is None else f"/{wanted}")
        if wanted is not None and completed >= wanted:
            run_context.request_stop()


@public("contrib.training.evaluate_once")
def evaluate_once(
    checkpoint_path: str | None,
    master: str = "",
    scaffold: Any = None,
    eval_ops: FetchLike | None = None,
    feed_dict: Mapping[Any, Any] | None = None,
    final_ops: FetchLike | None = None,
    final_ops_feed_dict: Mapping[Any, Any] | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
    config: Any = None,
) -> Any:
    """Restore a checkpoint, run ops until a hook stops it, then others once.

    Args:
        checkpoint_path: the checkpoint; None: variables are initialized.
        master: the target of the session.
        scaffold: a `tf.train.Scaffold`.
        eval_ops: what is run again and again: a tensor, a list or a dict of them.
        feed_dict: what is fed to them.
        final_ops: what is run once at the end.
        final_ops_feed_dict: what is fed to those.
        hooks: hooks, such as `StopAfterNEvalsHook`.
        config: a ConfigProto.

    Returns:
        The values of `final_ops`, or None.

    Example:
        >>> total = tf.get_variable("total", initializer=0.0, collections=["local_variables"])
        >>> add = tf.assign_add(total, 2.0)
        >>> hooks = [tf.contrib.training.StopAfterNEvalsHook(3)]
        >>> tf.contrib.training.evaluate_once(None, eval_ops=add, final_ops=total, hooks=hooks)
        np.float32(6.0)
    """
    step = get_or_create_eval_step()
    all_hooks = list(hooks or [])
    if eval_ops is not None:
        eval_ops = _counting(eval_ops, step.assign_add(1, use_locking=True))
        with control_dependencies(nest.flatten(eval_ops)):
            count = basic.identity(step.read_value())
        for hook in all_hooks:
            if isinstance(hook, StopAfterNEvalsHook):
                hook.count_with(count)
    creator = ChiefSessionCreator(
        scaffold=scaffold,
        checkpoint_filename_with_path=checkpoint_path,
        master=master,
        config=config,
    )
    final = FinalOpsHook(final_ops, final_ops_feed_dict)
    with MonitoredSession(session_creator=creator, hooks=[*all_hooks, final]) as session:
        if eval_ops is not None:
            while not session.should_stop():
                session.run(eval_ops, feed_dict)
    tf_logging.info("Finished evaluation")
    return final.final_ops_values


def _counting(eval_ops: Any, update: Any) -> Any:
    """The ops that are run, and the one that counts."""
    if nest.is_mapping(eval_ops):
        return {**eval_ops, "update_eval_step": update}
    return [*nest.as_list(eval_ops), update]
