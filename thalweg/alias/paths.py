"""Which modules TensorFlow has inside, and where the names of each are found here: data.

`MODULES` lists the modules that public programs and libraries import, by package. `SOURCES` says in
which places the names of a module are looked for, first match wins; a module that has no row takes
that of its package. `RENAMED` has the names that are called otherwise here.

A place is a namespace below `tf.` ("" is tf itself), a package or module of Thalweg with all inside
it ("thalweg.graph"), RAW for the constructors of ops, or MESSAGES for protocol buffers.
"""

from __future__ import annotations

from typing import Final

RAW: Final = "<raw ops>"
MESSAGES: Final = "<messages>"

#: The modules of each package below `tensorflow`.
MODULES: Final[dict[str, str]] = {
    "": "python core examples tools",
    "contrib.crf.python.ops": "crf",
    "contrib.cudnn_rnn.python.ops": "cudnn_rnn_ops",
    "contrib.distributions": "python",
    "contrib.distributions.python.ops": (
        "bijectors categorical conditional_distribution distribution_util independent logistic "
        "mixture mixture_same_family mvn_diag mvn_full_covariance mvn_linear_operator mvn_tril "
        "onehot_categorical poisson relaxed_bernoulli relaxed_onehot_categorical"
    ),
    "contrib.eager.python": "tfe",
    "contrib.eager": "python",
    "contrib.framework.python.framework": "checkpoint_utils tensor_util",
    "contrib.framework.python.ops": "arg_scope audio_ops ops variables",
    "contrib.image.python.ops": "image_ops",
    "contrib.layers.python": "layers ops",
    "contrib.layers.python.layers": (
        "encoders initializers layers normalization optimizers regularizers summaries utils"
    ),
    "contrib.learn.python.learn": (
        "datasets estimators experiment learn_runner metric_spec monitors preprocessing utils"
    ),
    "contrib.learn.python.learn.estimators": (
        "constants estimator model_fn prediction_key run_config tensor_signature"
    ),
    "contrib.learn.python.learn.preprocessing": "text",
    "contrib.learn.python.learn.datasets": "base mnist",
    "contrib.legacy_seq2seq.python.ops": "seq2seq",
    "contrib.lookup": "lookup_ops",
    "contrib.metrics.python.ops": "metric_ops set_ops",
    "contrib.rnn.python.ops": "core_rnn core_rnn_cell rnn rnn_cell",
    "contrib.rnn": "core_rnn_cell ops rnn_cell",
    "contrib.rnn.ops": "rnn_cell",
    "contrib.seq2seq.python.ops": (
        "attention_wrapper basic_decoder beam_search_decoder beam_search_ops decoder helper loss"
    ),
    "contrib.tensorboard.plugins": "projector",
    "contrib.training.python.training": "evaluation hparam training",
    "contrib.tpu.python": "tpu",
    "contrib.tpu.python.tpu": "tpu_config tpu_estimator tpu_optimizer",
    "contrib": "learn nn testing",
    "contrib.learn": (
        "datasets estimators learn_runner metric_spec monitors prediction_key preprocessing utils"
    ),
    "contrib.learn.estimators": "constants model_fn prediction_key run_config",
    "core.example": "example_pb2 feature_pb2",
    "core.framework": (
        "allocation_description_pb2 attr_value_pb2 cost_graph_pb2 device_attributes_pb2 "
        "function_pb2 graph_pb2 kernel_def_pb2 log_memory_pb2 node_def_pb2 op_def_pb2 "
        "resource_handle_pb2 step_stats_pb2 summary_pb2 tensor_description_pb2 tensor_pb2 "
        "tensor_shape_pb2 tensor_slice_pb2 types_pb2 variable_pb2 versions_pb2"
    ),
    "core.kernels.boosted_trees": "boosted_trees_pb2",
    "core.lib.core": "error_codes_pb2",
    "core.protobuf": (
        "cluster_pb2 config_pb2 control_flow_pb2 debug_pb2 device_properties_pb2 "
        "meta_graph_pb2 named_tensor_pb2 queue_runner_pb2 rewriter_config_pb2 saved_model_pb2 "
        "saver_pb2 struct_pb2 tensor_bundle_pb2 tensorflow_server_pb2"
    ),
    "core.util": "event_pb2 saved_tensor_slice_pb2",
    "examples.tutorials.mnist": "input_data mnist",
    "python.client": "device_lib session timeline",
    "python.compat": "compat",
    "python.data.experimental": "ops",
    "python.data.experimental.ops": "grouping interleave_ops iterator_ops optimization",
    "python.data.ops": "dataset_ops iterator_ops readers",
    "python.data.util": "nest",
    "python.debug.lib": "debug_data",
    "python.debug.wrappers": "dumping_wrapper hooks local_cli_wrapper",
    "python.distribute": (
        "distribute_lib distribution_strategy_context estimator_training reduce_util values"
    ),
    "python.eager": "backprop context def_function function monitoring tape wrap_function",
    "python.feature_column": (
        "dense_features dense_features_v2 feature_column feature_column_lib feature_column_v2 utils"
    ),
    "python.framework": (
        "common_shapes composite_tensor constant_op cpp_shape_inference_pb2 device "
        "device_spec dtypes errors errors_impl func_graph function function_def_to_graph "
        "graph_io graph_to_function_def graph_util graph_util_impl importer indexed_slices "
        "load_library meta_graph op_def_library op_def_registry ops random_seed registry "
        "smart_cond sparse_tensor subscribe tensor_conversion_registry tensor_shape "
        "tensor_spec tensor_util test_util type_spec versions"
    ),
    "python.keras": "activations backend metrics models utils",
    "python.keras.engine": "input_spec training training_utils",
    "python.keras.layers": "core normalization_v2 recurrent_v2",
    "python.keras.optimizer_v2": "adagrad adam ftrl gradient_descent optimizer_v2 rmsprop",
    "python.keras.utils": "losses_utils tf_utils",
    "python.layers": "base convolutional core layers normalization pooling utils",
    "python.lib.core": "error_codes_pb2",
    "python.lib.io": "file_io python_io tf_record",
    "python.ops": (
        "accumulate_n_benchmark array_grad array_ops batch_ops bitwise_ops boosted_trees_ops "
        "candidate_sampling_ops check_ops clip_ops clustering_ops cond_v2 confusion_matrix "
        "control_flow_ops control_flow_util control_flow_v2_toggles ctc_ops custom_gradient "
        "data_flow_ops embedding_ops functional_ops gen_array_ops gen_audio_ops "
        "gen_bitwise_ops gen_candidate_sampling_ops gen_control_flow_ops gen_ctc_ops "
        "gen_data_flow_ops gen_dataset_ops gen_functional_ops gen_image_ops gen_io_ops "
        "gen_linalg_ops gen_logging_ops gen_lookup_ops gen_math_ops gen_nn_ops "
        "gen_parsing_ops gen_random_ops gen_resource_variable_ops gen_script_ops gen_sdca_ops "
        "gen_sparse_ops gen_spectral_ops gen_state_ops gen_string_ops gen_training_ops "
        "gradient_checker gradient_checker_v2 gradients gradients_impl gradients_util "
        "histogram_ops image_ops image_ops_impl init_ops init_ops_v2 initializers_ns "
        "inplace_ops io_ops linalg_ops list_ops logging_ops lookup_ops manip_ops map_fn "
        "math_grad math_ops metrics metrics_impl nn nn_grad nn_impl nn_ops numerics "
        "op_selector parsing_ops partitioned_variables random_ops resource_variable_ops rnn "
        "rnn_cell rnn_cell_impl script_ops seq2seq session_ops sets sets_impl sparse_grad "
        "sparse_ops special_math_ops spectral_ops standard_ops state_ops stateless_random_ops "
        "string_ops summary_op_util summary_ops_v2 template tensor_array_grad tensor_array_ops "
        "variable_scope variables weights_broadcast_ops while_v2"
    ),
    "python.ops.distributions": (
        "bernoulli beta bijector categorical dirichlet distribution distributions exponential "
        "gamma kullback_leibler laplace multinomial normal student_t uniform util"
    ),
    "python.ops.linalg": (
        "linalg linalg_impl linear_operator linear_operator_addition linear_operator_adjoint "
        "linear_operator_algebra linear_operator_block_diag linear_operator_circulant "
        "linear_operator_composition linear_operator_diag linear_operator_full_matrix "
        "linear_operator_householder linear_operator_identity linear_operator_inversion "
        "linear_operator_kronecker linear_operator_low_rank_update "
        "linear_operator_lower_triangular linear_operator_test_util linear_operator_toeplitz "
        "linear_operator_util linear_operator_zeros"
    ),
    "python.ops.losses": "losses losses_impl util",
    "python.ops.signal": "fft_ops signal",
    "python.platform": (
        "app benchmark control_imports flags gfile googletest resource_loader status_bar "
        "sysconfig test tf_logging"
    ),
    "python.saved_model": (
        "builder builder_impl constants loader loader_impl main_op main_op_impl model_utils "
        "signature_constants signature_def_utils signature_def_utils_impl simple_save "
        "tag_constants utils utils_impl"
    ),
    "python.saved_model.model_utils": "export_output export_utils mode_keys",
    "python.summary": "summary summary_iterator writer",
    "python.summary.writer": "event_file_writer writer writer_cache",
    "python.tools": ("freeze_graph inspect_checkpoint optimize_for_inference_lib strip_unused_lib"),
    "python.training": (
        "adadelta adagrad adagrad_da adam basic_loops basic_session_run_hooks "
        "checkpoint_management checkpoint_ops checkpoint_state_pb2 checkpoint_utils "
        "coordinator device_setter distribute evaluation ftrl gradient_descent input "
        "learning_rate_decay momentum monitored_session moving_averages optimizer "
        "proximal_adagrad proximal_gradient_descent queue_runner queue_runner_impl rmsprop "
        "saver server_lib session_manager session_run_hook slot_creator summary_io supervisor "
        "sync_replicas_optimizer tensorboard_logging training training_ops training_util "
        "warm_starting_util"
    ),
    "python.training.tracking": "base graph_view tracking util",
    "python.util": (
        "all_util compat compat_internal decorator_utils deprecation dispatch function_utils "
        "is_in_graph_mode keyword_args lazy_loader lock_util memory module_wrapper nest "
        "object_identity protobuf_compat serialization tf_contextlib tf_decorator tf_export "
        "tf_inspect tf_should_use tf_stack"
    ),
    "python": "platform pywrap_tensorflow tf2",
    "tools": "graph_transforms",
}

_NAMESPACES = ("", "nn", "train", "image", "losses", "metrics", "layers", "summary", "test")
_DEFAULT = (*_NAMESPACES, "thalweg.ops", "thalweg.variables", "thalweg.graph", RAW)
_HELPERS = "thalweg.alias.inside"

#: Where the names of a module, or of the modules of a package, are looked for.
SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "": _DEFAULT,
    "contrib.crf": ("contrib.crf", *_DEFAULT),
    "contrib.distributions": ("contrib.distributions", "contrib.distributions.bijectors"),
    "contrib.eager.python.tfe": ("contrib.eager", ""),
    "contrib.framework": ("contrib.framework", "", "train"),
    "contrib.layers": ("contrib.layers", "layers", "initializers", "contrib.framework"),
    "contrib.learn": ("thalweg.alias.learn",),
    "contrib.learn.python.learn.datasets": ("thalweg.alias.learn", "thalweg.alias.mnist"),
    "contrib.learn.monitors": ("train",),
    "contrib.learn.datasets": ("thalweg.alias.learn", "thalweg.alias.mnist"),
    "contrib.learn.python.learn.monitors": ("train",),
    "contrib.legacy_seq2seq": ("contrib.legacy_seq2seq", "thalweg.seq2seq"),
    "contrib.lookup": ("contrib.lookup", *_DEFAULT),
    "contrib.metrics": ("contrib.metrics", "sets", "metrics"),
    "contrib.nn": ("nn", "thalweg.alias.contrib.small"),
    "contrib.rnn": ("contrib.rnn", "nn.rnn_cell", "nn", "thalweg.nn"),
    "contrib.seq2seq": ("contrib.seq2seq", "thalweg.seq2seq"),
    "contrib.tensorboard.plugins.projector": ("contrib.tensorboard.plugins.projector",),
    "contrib.testing": ("test",),
    "contrib.tpu": ("contrib.tpu",),
    "contrib.training": ("contrib.training", "train"),
    "core": ("", MESSAGES, *_DEFAULT),
    "core.lib.core.error_codes_pb2": ("errors", "thalweg.errors"),
    "examples.tutorials.mnist.input_data": ("thalweg.alias.mnist",),
    "examples.tutorials.mnist.mnist": ("thalweg.alias.mnist_model",),
    "python": ("", "thalweg.ops", "thalweg.graph"),
    "python.client.device_lib": ("python.client.device_lib",),
    "python.client.session": ("", "thalweg.runtime"),
    "python.client.timeline": ("profiler", "thalweg.inspect"),
    "python.compat.compat": (f"{_HELPERS}.framework.compat_window",),
    "python.data": ("data", "data.experimental", "thalweg.data"),
    "python.data.util.nest": ("nest", "thalweg.graph.nest"),
    "python.debug": (f"{_HELPERS}.framework.debug",),
    "python.distribute": (f"{_HELPERS}.framework.distribute",),
    "python.eager": ("", f"{_HELPERS}.framework.eager_context", "thalweg.functions"),
    "python.eager.monitoring": (f"{_HELPERS}.framework.monitoring",),
    "python.feature_column": ("feature_column", "thalweg.alias.feature_columns"),
    "python.framework": ("", "thalweg.graph", "thalweg.ops", f"{_HELPERS}.framework.ops"),
    "python.framework.common_shapes": ("thalweg.graph", "thalweg.ops"),
    "python.framework.device": ("thalweg.graph.device", "", f"{_HELPERS}.framework.ops"),
    "python.framework.dtypes": ("thalweg.graph.dtypes", ""),
    "python.framework.errors": ("errors", "thalweg.errors"),
    "python.framework.errors_impl": ("errors", "thalweg.errors"),
    "python.framework.function": ("", f"{_HELPERS}.framework.ops", "thalweg.graph"),
    "python.framework.graph_util": ("graph_util", "thalweg.graph", "thalweg.train"),
    "python.framework.graph_util_impl": ("graph_util", "thalweg.graph", "thalweg.train"),
    "python.framework.meta_graph": ("train", "thalweg.saved", "thalweg.train", "thalweg.graph"),
    "python.framework.op_def_registry": ("thalweg.graph",),
    "python.framework.ops": (
        "",
        "thalweg.saved.collection_protos",
        f"{_HELPERS}.framework.ops",
        "thalweg.graph",
        "thalweg.ops",
        "thalweg.autodiff",
    ),
    "python.framework.smart_cond": (f"{_HELPERS}.keras.tf_utils",),
    "python.framework.tensor_shape": (
        "thalweg.graph.shapes",
        "",
        "thalweg.graph",
        f"{_HELPERS}.framework.ops",
    ),
    "python.framework.test_util": (f"{_HELPERS}.framework.test_util", "test", "thalweg.testing"),
    "python.keras": ("keras",),
    "python.keras.backend": (f"{_HELPERS}.keras.backend", "keras.backend"),
    "python.keras.activations": ("keras.activations",),
    "python.keras.engine": ("keras.engine",),
    "python.keras.engine.input_spec": ("thalweg.nn.layer",),
    "python.keras.engine.training": (f"{_HELPERS}.keras.model",),
    "python.keras.engine.training_utils": ("keras.engine.training_utils",),
    "python.keras.layers": ("keras.layers",),
    "python.keras.metrics": ("keras.metrics",),
    "python.keras.models": ("keras.models",),
    "python.keras.optimizer_v2": ("keras.optimizers", f"{_HELPERS}.keras.optimizers"),
    "python.keras.utils": ("keras.utils",),
    "python.keras.utils.losses_utils": (
        "keras.utils.losses_utils",
        f"{_HELPERS}.keras.losses_utils",
    ),
    "python.keras.utils.tf_utils": (f"{_HELPERS}.keras.tf_utils",),
    "python.layers": (
        f"{_HELPERS}.training.layers",
        "layers",
        "thalweg.layers",
        "layers.experimental",
    ),
    "python.lib.io.file_io": (f"{_HELPERS}.framework.file_io",),
    "python.lib.io": ("python_io",),
    "python.ops": _DEFAULT,
    "python.ops.clustering_ops": (f"{_HELPERS}.training.clustering_ops",),
    "python.ops.control_flow_ops": ("", "control", "thalweg.control", *_DEFAULT),
    "python.ops.control_flow_util": (
        f"{_HELPERS}.framework.control_flow_util",
        "",
        "thalweg.control",
    ),
    "python.ops.distributions": ("distributions", "thalweg.distributions"),
    "python.ops.gradient_checker": ("test", "thalweg.testing"),
    "python.ops.image_ops": ("image", *_DEFAULT),
    "python.ops.image_ops_impl": ("image", *_DEFAULT),
    "python.ops.linalg": ("linalg", "thalweg.linear_operators", "thalweg.ops"),
    "python.ops.linalg.linear_operator_util": ("thalweg.linear_operators.matrices",),
    "python.ops.linalg_ops": ("linalg", *_DEFAULT),
    "python.ops.lookup_ops": ("lookup", "contrib.lookup", *_DEFAULT),
    "python.ops.losses": ("losses", "thalweg.losses"),
    "python.ops.metrics": ("metrics", "thalweg.metrics"),
    "python.ops.metrics_impl": (f"{_HELPERS}.training.metrics", "metrics", "thalweg.metrics"),
    "python.ops.weights_broadcast_ops": (f"{_HELPERS}.training.metrics", "thalweg.losses.matching"),
    "python.ops.confusion_matrix": ("thalweg.losses.matching", ""),
    "python.ops.nn": ("nn", *_DEFAULT),
    "python.ops.nn_impl": ("nn", "thalweg.nn", *_DEFAULT),
    "python.ops.nn_ops": ("nn", "thalweg.nn", *_DEFAULT),
    "python.ops.op_selector": ("contrib.graph_editor",),
    "python.ops.rnn": ("nn", "thalweg.nn"),
    "python.ops.rnn_cell": ("nn.rnn_cell", "thalweg.nn"),
    "python.ops.rnn_cell_impl": ("nn.rnn_cell", "thalweg.nn"),
    "python.ops.resource_variable_ops": (*_DEFAULT, f"{_HELPERS}.framework.ops"),
    "python.ops.sets": ("sets", "thalweg.ops"),
    "python.ops.signal": ("signal",),
    "python.ops.sparse_ops": ("sparse", *_DEFAULT),
    "python.ops.string_ops": ("strings", *_DEFAULT),
    "python.ops.summary_ops_v2": ("contrib.summary",),
    "python.ops.variable_scope": ("", "thalweg.variables", f"{_HELPERS}.framework.ops"),
    "python.ops.variables": ("", "thalweg.variables"),
    "python.platform": ("test", ""),
    "python.platform.app": ("app", "thalweg.platform.app"),
    "python.platform.flags": ("flags", "thalweg.platform.flags"),
    "python.platform.gfile": ("gfile", "thalweg.platform.files.gfile"),
    "python.platform.googletest": ("test", "thalweg.testing"),
    "python.platform.resource_loader": ("resource_loader",),
    "python.platform.test": ("test", "thalweg.testing"),
    "python.platform.tf_logging": ("logging",),
    "python.pywrap_tensorflow": ("train", "thalweg.saved", "errors"),
    "python.saved_model": ("saved_model", "thalweg.saved"),
    "python.saved_model.builder": ("saved_model.builder",),
    "python.saved_model.builder_impl": ("saved_model.builder",),
    "python.saved_model.constants": ("saved_model.constants",),
    "python.saved_model.loader": ("saved_model.loader", "thalweg.saved"),
    "python.saved_model.loader_impl": ("saved_model.loader", "thalweg.saved"),
    "python.saved_model.main_op": ("saved_model.main_op",),
    "python.saved_model.main_op_impl": ("saved_model.main_op",),
    "python.saved_model.model_utils": (f"{_HELPERS}.training.export_outputs",),
    "python.saved_model.signature_constants": ("saved_model.signature_constants",),
    "python.saved_model.signature_def_utils": ("saved_model.signature_def_utils",),
    "python.saved_model.signature_def_utils_impl": ("saved_model.signature_def_utils",),
    "python.saved_model.tag_constants": ("saved_model.tag_constants",),
    "python.saved_model.utils": ("saved_model.utils",),
    "python.saved_model.utils_impl": (
        f"{_HELPERS}.training.saved_model_paths",
        "saved_model.utils",
    ),
    "python.summary": ("summary",),
    "python.summary.summary_iterator": ("train",),
    "python.summary.writer": ("summary", "train"),
    "python.tf2": (f"{_HELPERS}.framework.tf2",),
    "python.tools.freeze_graph": ("thalweg.saved",),
    "python.training": ("train", "thalweg.train", "", RAW, f"{_HELPERS}.training.training_util"),
    "python.training.saver": ("train", "thalweg.saved", ""),
    "python.training.tensorboard_logging": ("thalweg.summary.tensorboard_logging",),
    "python.training.tracking": (f"{_HELPERS}.training.tracking",),
    **{
        f"python.util.{name}": (f"{_HELPERS}.util.{name}",)
        for name in (
            "all_util",
            "deprecation",
            "function_utils",
            "keyword_args",
            "lazy_loader",
            "module_wrapper",
            "object_identity",
            "tf_contextlib",
            "tf_decorator",
            "tf_export",
            "tf_inspect",
        )
    },
    "python.util.compat": ("compat",),
    "python.util.compat_internal": (f"{_HELPERS}.util.compat_internal",),
    "python.util.nest": ("nest", "thalweg.graph.nest", f"{_HELPERS}.util.nests"),
    "python.util.tf_should_use": (f"{_HELPERS}.util.tf_decorator",),
    "tools.graph_transforms": ("graph_util",),
}

#: Packages of other people that are a part of TensorFlow, by the path they have there.
PACKAGES: Final[dict[str, str]] = {
    "contrib.keras": "keras",
    "contrib.slim.nets": "tf_slim.nets",
    "contrib.slim.python.slim": "tf_slim",
    "contrib.slim": "tf_slim",
    "estimator": "tensorflow_estimator.estimator",
    "keras": "keras",
    "python.estimator": "tensorflow_estimator.python.estimator",
    "python.keras": "keras",
}

#: Names that are called otherwise here: a dotted name below `tf.`, or "module:name".
RENAMED: Final[dict[str, str]] = {
    **{
        f"python.training.monitored_session._{name}": f"thalweg.train.wrapped_sessions:{name}"
        for name in ("WrappedSession", "CoordinatedSession", "RecoverableSession", "HookedSession")
    },
    **{
        f"contrib.eager.python.tfe.{name}": f"thalweg.alias.inside.framework.test_util:{new}"
        for name, new in (
            ("run_all_tests_in_graph_and_eager_modes", "run_all_in_graph_and_eager_modes"),
            ("run_test_in_graph_and_eager_modes", "run_in_graph_and_eager_modes"),
        )
    },
    "contrib.learn.RunConfig": "estimator.RunConfig",
    "python.framework.device.merge_device": "thalweg.graph.device:device_function",
    **{
        f"python.layers.convolutional.{old}": f"layers.{new}"
        for old, new in (
            ("Convolution1D", "Conv1D"),
            ("Convolution2D", "Conv2D"),
            ("Convolution3D", "Conv3D"),
            ("Convolution2DTranspose", "Conv2DTranspose"),
            ("Convolution3DTranspose", "Conv3DTranspose"),
        )
    },
    "python.data.ops.dataset_ops.DatasetV2": "data.Dataset",
    "python.framework.device_spec.DeviceSpecV1": "DeviceSpec",
    "python.framework.ops.EagerTensor": "thalweg.functions.tensors:EagerTensor",
    "python.ops.array_ops.boolean_mask_v2": "boolean_mask",
    "python.ops.data_flow_ops.StagingArea": "contrib.staging.StagingArea",
    "python.ops.array_ops.shape_internal": "thalweg.alias.inside.framework.ops:shape_internal",
    "python.ops.gradients_impl.gradients_v2": "gradients",
    "python.ops.metrics_impl._streaming_sparse_average_precision_at_top_k": (
        "thalweg.metrics.top_k:average_precision_at_top_k"
    ),
    "python.ops.init_ops.Zeros": "zeros_initializer",
    "python.ops.lookup_ops.LookupInterface": "thalweg.data.lookup:LookupInterface",
    "python.training.basic_session_run_hooks._MultiStepStopAtStepHook": "train.StopAtStepHook",
    "python.ops.rnn_cell_impl._zero_state_tensors": "thalweg.nn.rnn_cell:zero_states",
    "python.ops.variable_scope._pure_variable_scope": (
        "thalweg.variables.scope:pure_variable_scope"
    ),
    "python.ops.variable_scope.variable": "Variable",
    **{
        f"python.{old}": f"{_HELPERS}.framework.small_helpers:{new}"
        for old, new in (
            ("framework.tensor_util.ShapeEquals", "shape_equals"),
            ("ops.gen_data_flow_ops._tensor_array_read_v2", "tensor_array_read"),
            ("ops.gen_data_flow_ops.tensor_array_read_v3", "tensor_array_read"),
            ("ops.init_ops._random_walk", "random_walk"),
            ("ops.resource_variable_ops.resource_scatter_add", "resource_scatter_add"),
            ("pywrap_tensorflow.EventsWriter", "EventsWriter"),
            ("ops.template._skip_common_stack_elements", "skip_common_stack_elements"),
            ("ops.tensor_array_grad._GetGradSource", "grad_source"),
        )
    },
    "python.framework.tensor_util.ConstantValue": "thalweg.graph.known:constant_value",
    "python.framework.tensor_util.MakeNdarray": "make_ndarray",
    "python.framework.test_util.TensorFlowTestCase": "test.TestCase",
    "python.ops.array_ops.placeholder_v2": "placeholder",
    "python.ops.control_flow_ops._Enter": "control.enter",
    "python.ops.control_flow_ops._Identity": "thalweg.control.primitives:same",
    "python.ops.control_flow_ops._SwitchRefOrTensor": "control.switch",
    "python.platform.googletest.GetTempDir": "test.get_temp_dir",
    **{
        f"python.training.evaluation._{name}": f"contrib.training.{name}"
        for name in ("StopAfterNEvalsHook", "evaluate_once", "get_or_create_eval_step")
    },
    "python.training.evaluation._MultiStepStopAfterNEvalsHook": (
        "contrib.training.StopAfterNEvalsHook"
    ),
    "python.training.basic_session_run_hooks._SecondOrStepTimer": "train.SecondOrStepTimer",
}
