"""Private helpers of `tensorflow.python.training` about the global step."""

from __future__ import annotations

from typing import Any

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
