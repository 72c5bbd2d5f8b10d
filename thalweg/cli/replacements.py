"""TensorFlow names that are not here, and what to use instead; longest prefix first.

What an advice names below `tf.` exists: a test looks each of them up.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache

from thalweg import public

_MAX_SPELLINGS = 3

#: A name, or the beginning of names, and what to do.
ADVICE: dict[str, str] = {
    "keras": "build models with tf.layers, train them with tf.train.AdamOptimizer and its kin",
    "keras.layers": "use tf.layers",
    "keras.layers.Dense": "use tf.layers.Dense or tf.layers.dense",
    "keras.layers.Conv2D": "use tf.layers.Conv2D or tf.layers.conv2d",
    "keras.layers.Dropout": "use tf.layers.dropout",
    "keras.layers.Flatten": "use tf.layers.flatten",
    "keras.layers.Embedding": "use tf.nn.embedding_lookup",
    "keras.layers.LSTM": "use tf.nn.rnn_cell.LSTMCell with tf.nn.dynamic_rnn",
    "keras.layers.GRU": "use tf.nn.rnn_cell.GRUCell with tf.nn.dynamic_rnn",
    "keras.losses": "use tf.losses",
    "keras.metrics": "use tf.metrics",
    "keras.optimizers": "use the optimizers of tf.train",
    "keras.initializers": "use tf.glorot_uniform_initializer and its kin",
    "keras.datasets": "read data with NumPy, or with tf.data",
    "keras.callbacks": "use the hooks of tf.train, such as tf.train.CheckpointSaverHook",
    "estimator": "write the loop with tf.train.MonitoredTrainingSession and its hooks",
    "feature_column": "use tf.parse_example and tf.nn.embedding_lookup",
    "contrib": "contrib is here in parts; look for the name in tf, tf.nn or tf.layers",
    "contrib.slim": "use tf.layers, with tf.variable_scope for arguments in common",
    "contrib.learn": "write the loop with tf.train.MonitoredTrainingSession and its hooks",
    "contrib.estimator": "write the loop with tf.train.MonitoredTrainingSession and its hooks",
    "contrib.data": "use tf.data",
    "contrib.keras": "use tf.layers",
    "contrib.eager": "use tf.enable_eager_execution and tf.GradientTape",
    "contrib.tpu": "there is no TPU here; leave it out",
    "contrib.distribute": "a process is one machine; tf.device puts ops on its devices",
    "distribute": "a process is one machine; tf.device puts ops on its devices",
    "tpu": "there is no TPU here; leave it out",
    "lite": "save with tf.saved_model and run it here",
    "raw_ops": "use the function of that name in tf",
    "python": "these are TensorFlow's insides; use the public name below tf",
    "examples": "TensorFlow's examples are not shipped; read data with NumPy or tf.data",
    "models": "TensorFlow's models are not shipped",
    "tools": "TensorFlow's tools are not shipped; `thalweg inspect` looks into files",
    "profiler": "use sess.plan(fetches).profile()",
    "autograph": "use tf.cond and tf.while_loop",
    "ragged": "pad to equal lengths, with tf.sequence_mask for what counts",
    "RaggedTensor": "pad to equal lengths, with tf.sequence_mask for what counts",
    "train.ClusterSpec": "a process is one machine; tf.device puts ops on its devices",
    "train.Server": "a process is one machine; use tf.Session without a target",
    "train.replica_device_setter": "a process is one machine; tf.device puts ops on its devices",
    "train.SyncReplicasOptimizer": "a process is one machine; use its optimizer alone",
    "py_function": "use tf.py_func",
    "vectorized_map": "use tf.map_fn",
    "enable_v2_behavior": "leave it out: the API here is that of TensorFlow 1",
    "enable_resource_variables": "give tf.get_variable use_resource=True where it matters",
    "disable_resource_variables": "leave it out",
    "enable_control_flow_v2": "leave it out: there is one kind of control flow",
    "disable_control_flow_v2": "leave it out: there is one kind of control flow",
    "enable_tensor_equality": "write tf.equal",
    "disable_tensor_equality": "leave it out: == compares objects here",
    "get_logger": "use tf.logging",
    "tensor_scatter_nd_update": "use tf.scatter_nd, with tf.where for what stays",
    "tensor_scatter_update": "use tf.scatter_nd, with tf.where for what stays",
    "tensor_scatter_nd_add": "add tf.scatter_nd to the tensor",
    "tensor_scatter_add": "add tf.scatter_nd to the tensor",
    "tensor_scatter_nd_sub": "subtract tf.scatter_nd from the tensor",
    "tensor_scatter_sub": "subtract tf.scatter_nd from the tensor",
    "recompute_grad": "leave it out: what is cheap is recomputed anyway",
    "Module": "use a class of your own, with tf.variable_scope for its variables",
    "xla": "leave it out: every step is compiled",
    "mlir": "print(sess.plan(fetches)) shows what a step becomes",
    "config": "use tf.ConfigProto",
    "lookup.experimental": "use tf.contrib.lookup",
}


def advice(name: str) -> str:
    """What to use instead of a name that is not here; empty if nobody knows."""
    beginnings = [name.rsplit(".", cut)[0] for cut in range(name.count(".") + 1)]
    exact = ADVICE.get(name)
    if exact is not None:
        return exact
    elsewhere = _elsewhere(name)
    if elsewhere:
        return f"use tf.{elsewhere}"
    for beginning in beginnings:
        if beginning in ADVICE:
            return ADVICE[beginning]
    near = get_close_matches(name, public.names(), _MAX_SPELLINGS, 0.8)
    return "did you mean " + " or ".join(f"tf.{each}" for each in near) + "?" if near else ""


def _elsewhere(name: str) -> str:
    """The shortest public name that ends as this one does: where TensorFlow moved it from."""
    found = _by_leaf().get(name.rpartition(".")[2], [])
    return min(found, key=lambda each: (each.count("."), len(each)), default="")


@cache
def _by_leaf() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in public.names():
        found.setdefault(name.rpartition(".")[2], []).append(name)
    return found
