"""Private helpers of `tensorflow.python.training` about the global step."""

from __future__ import annotations

from typing import Any, NamedTuple

from thalweg.alias import names

tf = names.root()

GLOBAL_STEP_READ_KEY = "global_step_read_op_cache"


def _get_or_create_global_step_read(graph: Any = None) -> Any:  # pyright: ignore[reportUnusedFunction] - found by name
    """The value of the global step, read in one place of a graph; None without a global step."""
    graph = graph or tf.get_default_graph()
    found = graph.get_collection(GLOBAL_STEP_READ_KEY)
    if found:
        return found[0]
    step = tf.train.get_global_step(graph)
    if step is None:
        return None
    with graph.as_default(), graph.name_scope(f"{step.op.name}/"):
        value = tf.identity(step, name="read_of_step")
    graph.add_to_collection(GLOBAL_STEP_READ_KEY, value)
    return value


def get_or_create_steps_per_run_variable() -> Any:
    """The local variable that says how many steps a run makes."""
    with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
        return tf.get_variable(
            "steps_per_run", initializer=1, trainable=False, collections=["local_variables"]
        )


class VocabInfo(NamedTuple):
    """How a vocabulary of today relates to that of a checkpoint."""

    new_vocab: str
    new_vocab_size: int
    num_oov_buckets: int
    old_vocab: str
    old_vocab_size: int = -1
    backup_initializer: Any = None
    axis: int = 0


def warm_start(
    ckpt_to_initialize_from: str,
    vars_to_warm_start: Any = ".*",
    var_name_to_vocab_info: Any = None,
    var_name_to_prev_var_name: Any = None,
) -> None:
    """Let variables begin with their values in a checkpoint."""
    if var_name_to_vocab_info:
        raise NotImplementedError("Warm starts across vocabularies are not here.")
    renamed: dict[str, str] = var_name_to_prev_var_name or {}
    chosen = (
        tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope=vars_to_warm_start)
        if isinstance(vars_to_warm_start, str)
        else tf.global_variables()
    )
    known = {name for name, _ in tf.train.list_variables(ckpt_to_initialize_from)}
    found = {renamed.get(v.op.name, v.op.name): v for v in chosen}
    wanted = {name: variable for name, variable in found.items() if name in known}
    tf.train.init_from_checkpoint(ckpt_to_initialize_from, wanted)
