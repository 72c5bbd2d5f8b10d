"""Docstrings of the messages that programs make themselves, by the name of the message."""

from __future__ import annotations

from typing import Final

DOCSTRINGS: Final = {
    "Example": """A message with the named features of one example: what TFRecord files hold.

    Args:
        features: a `tf.train.Features`.

    Example:
        >>> age = tf.train.Feature(int64_list=tf.train.Int64List(value=[7]))
        >>> example = tf.train.Example(features=tf.train.Features(feature={"age": age}))
        >>> text = example.SerializeToString()
        >>> tf.train.Example.FromString(text).features.feature["age"].int64_list.value[0]
        7
    """,
    "Features": """A message with features by name.

    Args:
        feature: a dict from names to `tf.train.Feature`.

    Example:
        >>> name = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"Ann"]))
        >>> sorted(tf.train.Features(feature={"name": name, "alias": name}).feature)
        ['alias', 'name']
    """,
    "Feature": """A message with the values of one feature, of one of three kinds.

    Args:
        bytes_list: a `tf.train.BytesList`: strings.
        float_list: a `tf.train.FloatList`: float32 numbers.
        int64_list: a `tf.train.Int64List`: integers.

    Example:
        >>> feature = tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, 1.5]))
        >>> feature.WhichOneof("kind"), list(feature.float_list.value)
        ('float_list', [0.5, 1.5])
    """,
    "Int64List": """A message with integers, for a `tf.train.Feature`.

    Args:
        value: a list of integers.

    Example:
        >>> list(tf.train.Int64List(value=[1, 2]).value)
        [1, 2]
    """,
    "FloatList": """A message with float32 numbers, for a `tf.train.Feature`.

    Args:
        value: a list of numbers.

    Example:
        >>> list(tf.train.FloatList(value=[0.5, 2]).value)
        [0.5, 2.0]
    """,
    "BytesList": """A message with strings of bytes, for a `tf.train.Feature`.

    Args:
        value: a list of bytes; text must be encoded.

    Example:
        >>> list(tf.train.BytesList(value=["é".encode()]).value)
        [b'\\xc3\\xa9']
    """,
    "GraphDef": """A graph as a message: what `.pb` files hold.

    Args:
        node: a list of NodeDefs: name, op, inputs, device, attributes.
        versions: the versions of the format that wrote it and can read it.
        version: the old form of that.
        library: functions that nodes call.
        debug_info: where nodes were made; not used here.

    Example:
        >>> x = tf.add(1.0, 2.0, name="x")
        >>> text = tf.get_default_graph().as_graph_def().SerializeToString()
        >>> [node.name for node in tf.GraphDef.FromString(text).node]
        ['x/x', 'x/y', 'x']
    """,
    "Summary": """A message with tagged values, as summary ops make and event files keep them.

    Args:
        value: a list of `tf.Summary.Value`: a tag, and a number, picture, sound or histogram.

    Example:
        >>> value = tf.Summary.Value(tag="accuracy", simple_value=0.5)
        >>> with tf.summary.FileWriter("logs") as writer:
        ...     writer.add_summary(tf.Summary(value=[value]), global_step=1)
    """,
    "ConfigProto": """How a session runs its steps.

    Args:
        device_count: how many devices of a kind there are: `{"CPU": 2}`.
        intra_op_parallelism_threads: the threads that run a step; 0 takes one per core.
        allow_soft_placement: run nodes on another device where the one asked for cannot.
        log_device_placement: print the device of each node when a step is planned.
        operation_timeout_in_ms: a limit for every step, after which it fails.
        inter_op_parallelism_threads, use_per_session_threads, session_inter_op_thread_pool,
            placement_period, device_filters, gpu_options, pluggable_device_options, graph_options,
            rpc_options, cluster_def, isolate_session_state, share_cluster_devices_in_session,
            experimental: as TensorFlow has them, ignored.

    Example:
        >>> config = tf.ConfigProto(intra_op_parallelism_threads=1, device_count={"CPU": 2})
        >>> with tf.Session(config=config) as session:
        ...     [name.rpartition("/")[2] for name in session.list_devices()]
        ['device:CPU:0', 'device:CPU:1']
    """,
    "GPUOptions": """Options of GPUs in `tf.ConfigProto`: kept and ignored.

    Args:
        per_process_gpu_memory_fraction, allow_growth, allocator_type, deferred_deletion_bytes,
            visible_device_list, polling_active_delay_usecs, polling_inactive_delay_msecs,
            force_gpu_compatible, experimental: as TensorFlow has them, ignored.

    Example:
        >>> options = tf.GPUOptions(allow_growth=True)
        >>> tf.ConfigProto(gpu_options=options).gpu_options.allow_growth
        True
    """,
    "OptimizerOptions": """How far graphs are optimized, in `tf.GraphOptions`: kept and ignored.

    Args:
        do_common_subexpression_elimination, do_constant_folding, max_folded_constant_in_bytes,
            do_function_inlining, opt_level, global_jit_level, cpu_global_jit: as TensorFlow has
            them, ignored.

    Example:
        >>> tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0).opt_level
        -1
    """,
    "GraphOptions": """How graphs are prepared, in `tf.ConfigProto`: kept and ignored.

    Args:
        optimizer_options: a `tf.OptimizerOptions`.
        enable_recv_scheduling, build_cost_model, build_cost_model_after, infer_shapes,
            place_pruned_graph, enable_bfloat16_sendrecv, timeline_step, rewrite_options: as
            TensorFlow has them, ignored.

    Example:
        >>> options = tf.GraphOptions(optimizer_options=tf.OptimizerOptions(opt_level=1))
        >>> tf.ConfigProto(graph_options=options).graph_options.optimizer_options.opt_level
        1
    """,
    "RunOptions": """The options of one step, for `Session.run`.

    Args:
        trace_level: `tf.RunOptions.FULL_TRACE` records the step in the `run_metadata` given.
        timeout_in_ms: a limit after which the step fails with `DeadlineExceededError`; 0: none.
        output_partition_graphs: put what each device does, as GraphDefs, into `run_metadata`.
        inter_op_thread_pool, debug_options, report_tensor_allocations_upon_oom, experimental: as
            TensorFlow has them, ignored.

    Example:
        >>> options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        >>> metadata = tf.RunMetadata()
        >>> sess.run(tf.constant(1) + 2, options=options, run_metadata=metadata)
        np.int32(3)
        >>> len(metadata.step_stats.dev_stats) > 0
        True
    """,
    "RunMetadata": """What a traced step tells about itself, where its options ask for it.

    Args:
        step_stats: when each node ran, by device.
        partition_graphs: what each device does, where the options ask for it.
        cost_graph, function_graphs, session_metadata: as TensorFlow has them, empty.

    Example:
        >>> metadata = tf.RunMetadata()
        >>> options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        >>> sess.run(tf.constant(1) + 2, options=options, run_metadata=metadata)
        np.int32(3)
        >>> metadata.step_stats.dev_stats[0].device[-5:]
        'CPU:0'
    """,
    "SequenceExample": """A message with one example that has lists of features too.

    Args:
        context: a `tf.train.Features`: what holds for the whole example.
        feature_lists: a `tf.train.FeatureLists`.

    Example:
        >>> word = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"hi"]))
        >>> lists = {"words": tf.train.FeatureList(feature=[word, word])}
        >>> example = tf.train.SequenceExample(
        ...     feature_lists=tf.train.FeatureLists(feature_list=lists)
        ... )
        >>> len(example.feature_lists.feature_list["words"].feature)
        2
    """,
    "FeatureLists": """A message with lists of features by name.

    Args:
        feature_list: a dict from names to `tf.train.FeatureList`.

    Example:
        >>> lists = tf.train.FeatureLists(feature_list={"words": tf.train.FeatureList()})
        >>> list(lists.feature_list)
        ['words']
    """,
    "FeatureList": """A message with a list of features, such as one for each step.

    Args:
        feature: a list of `tf.train.Feature`.

    Example:
        >>> one = tf.train.Feature(int64_list=tf.train.Int64List(value=[7]))
        >>> len(tf.train.FeatureList(feature=[one, one]).feature)
        2
    """,
    "SaverDef": """A message with the names of what a `tf.train.Saver` added to the graph.

    Args:
        filename_tensor_name: the tensor that the path is fed to.
        save_tensor_name: the tensor that saves.
        restore_op_name: the node that restores.
        max_to_keep: how many checkpoints are kept.
        sharded: whether each device has a file of its own.
        keep_checkpoint_every_n_hours: how often one is kept for good.
        version: the version of the format.

    Example:
        >>> v = tf.Variable(1.0)
        >>> saver = tf.train.Saver(max_to_keep=3).as_saver_def()
        >>> saver.restore_op_name, saver.max_to_keep
        ('save/restore_all', 3)
    """,
    "NodeDef": """A message with one node of a `tf.GraphDef`.

    Args:
        name: its name.
        op: its type.
        input: a list of inputs: `name`, `name:1` for other outputs, `^name` for control inputs.
        device: the device that was asked for.
        attr: a dict from names to `tf.AttrValue`.
        experimental_debug_info: which nodes it was made of.
        experimental_type: the type of its output.

    Example:
        >>> x = tf.constant(1.0, name="x")
        >>> node = tf.negative(x, name="y").op.node_def
        >>> node.name, node.op, list(node.input)
        ('y', 'Neg', ['x'])
    """,
}
