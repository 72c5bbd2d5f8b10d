"""Names of TensorFlow that Thalweg does not have, and what to use instead.

A row holds for a name and for all names that begin with it. A test looks up whether what rows are
about is absent, and whether everything they recommend exists.
"""

from __future__ import annotations

_PROCESS = "tf.device and tf.train.replica_device_setter place ops on devices and tasks"
_COMPILED = "every step is compiled, there is nothing to switch on; see Session.plan"
_COLUMNS = "prepare features with Dataset.map, tf.one_hot and tf.nn.embedding_lookup"
_KERAS = "it is the package Keras: pip install 'thalweg[keras]'"
_ESTIMATOR = "it is the package tensorflow-estimator: pip install 'thalweg[estimator]'"
_SLIM = "it is the package tf-slim: pip install 'thalweg[slim]'"
_DECODER = "decode with tf.while_loop or tf.nn.raw_rnn around a cell of tf.nn.rnn_cell"
_PROFILE = "read Session.plan, or a tf.RunMetadata with tf.profiler.Timeline"

#: What to use instead, by the beginning of a name below `tf.`.
INSTEAD: dict[str, str] = {
    "AUTOTUNE": "it is tf.data.experimental.AUTOTUNE",
    "RaggedTensor": "pad to equal lengths, with tf.sequence_mask for what counts",
    "autograph": "use tf.cond and tf.while_loop",
    "compat.v2": "the API is that of TensorFlow 1.x",
    "contrib": "contrib is here in parts; look for the name in tf, tf.nn or tf.layers",
    "contrib.all_reduce": _PROCESS,
    "contrib.data": "use tf.data",
    "contrib.eager": "use tf.enable_eager_execution and tf.GradientTape",
    "contrib.estimator": "write the loop with tf.train.MonitoredTrainingSession and its hooks",
    "contrib.framework.add_arg_scope": _SLIM,
    "contrib.framework.arg_scope": _SLIM,
    "contrib.graph_editor": "nodes never change: use tf.contrib.graph_editor.graph_replace",
    "contrib.image": "see tf.image",
    "contrib.keras": _KERAS,
    "contrib.layers.conv2d_transpose": _SLIM,
    "contrib.layers.layer_norm": _SLIM,
    "contrib.layers.optimize_loss": _SLIM,
    "contrib.layers.softmax": _SLIM,
    "contrib.layers.summarize_activation": _SLIM,
    "contrib.signal": "see tf.signal",
    "contrib.slim": _SLIM,
    "contrib.memory_stats": "tf.RunMetadata has what a step allocates",
    "contrib.stat_summarizer": _PROFILE,
    "contrib.tfprof": _PROFILE,
    "contrib.timeseries": "write the model as layers over windows of the series, fed by tf.data",
    "contrib.tpu": "there is no TPU here; leave it out",
    "contrib.training.batch_sequences_with_states": "use Dataset.padded_batch",
    "disable_tensor_equality": "leave it out: == compares objects here",
    "enable_tensor_equality": "write tf.equal",
    "enable_v2_behavior": "leave it out: the API here is that of TensorFlow 1",
    "estimator": _ESTIMATOR,
    "get_logger": "use tf.logging",
    "keras": _KERAS,
    "lite": "save with tf.saved_model and run it here",
    "lookup.experimental": "use tf.contrib.lookup",
    "losses.BinaryCrossentropy": "use tf.losses.sigmoid_cross_entropy",
    "losses.CategoricalCrossentropy": "use tf.losses.softmax_cross_entropy",
    "losses.MeanSquaredError": "use tf.losses.mean_squared_error",
    "losses.SparseCategoricalCrossentropy": "use tf.losses.sparse_softmax_cross_entropy",
    "metrics.Accuracy": "use tf.metrics.accuracy",
    "metrics.Mean": "use tf.metrics.mean",
    "metrics.SparseCategoricalAccuracy": "use tf.metrics.accuracy of tf.argmax",
    "mlir": "print(sess.plan(fetches)) shows what a step becomes",
    "models": "TensorFlow's models are not shipped",
    "optimizers": "they are in tf.train, such as tf.train.AdamOptimizer",
    "profiler": _PROFILE,
    "ragged": "pad to equal lengths, with tf.sequence_mask for what counts",
    "random.Generator": "use tf.random_normal and tf.set_random_seed",
    "random.set_seed": "use tf.set_random_seed",
    "raw_ops": "use the function of that name in tf",
    "recompute_grad": "leave it out: what is cheap is recomputed anyway",
    "saved_model.save": "use tf.saved_model.simple_save",
    "summary.create_file_writer": "use tf.summary.FileWriter",
    "summary.initialize": "use tf.summary.FileWriter",
    "tpu": "there is no TPU here; leave it out",
    "train.Checkpoint": "use tf.train.Saver",
    "train.warm_start": "use tf.train.init_from_checkpoint",
    "vectorized_map": "use tf.map_fn",
    "wrap_function": "use tf.function",
}

#: Names of TensorFlow 1.x for which there is nothing.
NOTHING = frozenset(
    [
        "CXX11_ABI_FLAG",
        "CriticalSection",
        "IndexedSlicesSpec",
        "LMDBReader",
        "RaggedTensorSpec",
        "TensorArraySpec",
        "audio",
        "contrib.bayesflow",
        "contrib.boosted_trees",
        "contrib.factorization",
        "contrib.ffmpeg",
        "contrib.gan",
        "contrib.linear_optimizer",
        "contrib.saved_model",
        "contrib.session_bundle",
        "contrib.tensor_forest",
        "extract_volume_patches",
        "fingerprint",
        "image.adjust_jpeg_quality",
        "image.combined_non_max_suppression",
        "image.non_max_suppression_overlaps",
        "image.non_max_suppression_padded",
        "image.non_max_suppression_with_scores",
        "image.random_jpeg_quality",
        "image.ssim",
        "image.ssim_multiscale",
        "io.decode_proto",
        "io.encode_proto",
        "linalg.lu",
        "linalg.tridiagonal_matmul",
        "linalg.tridiagonal_solve",
        "nondifferentiable_batch_function",
        "sparse.cross",
        "sparse.cross_hashed",
        "strings.ngrams",
        "strings.unicode_decode",
        "strings.unicode_decode_with_offsets",
        "strings.unicode_encode",
        "strings.unicode_script",
        "strings.unicode_split",
        "strings.unicode_split_with_offsets",
        "sysconfig",
        "train.sdca_fprint",
        "train.sdca_optimizer",
        "train.sdca_shrink_l1",
    ]
)


def row_of(name: str) -> str | None:
    """The row that a name falls under: the longest that it begins with."""
    beginnings = (name[:length] for length in range(len(name), 0, -1))
    return next((beginning for beginning in beginnings if beginning in INSTEAD), None)
