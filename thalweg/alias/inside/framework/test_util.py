"""`tensorflow.python.framework.test_util`: decorators of tests, and comparisons of messages."""

from __future__ import annotations

from typing import Any

from thalweg.alias import names

tf = names.root()


def _unchanged(function: Any = None, **_: Any) -> Any:
    """The test as it is: there is one mode, one kind of control flow, one device."""
    return _itself if function is None else function


def _itself(function: Any) -> Any:
    return function


run_in_graph_and_eager_modes = run_v1_only = run_deprecated_v1 = _unchanged
run_all_in_graph_and_eager_modes = enable_control_flow_v2 = disable_control_flow_v2 = _unchanged
with_c_shapes = with_control_flow_v2 = deprecated_graph_mode_only = _unchanged
enable_all_with_v1_control_flow = skip_if = disable_xla = also_run_as_tf_function = _unchanged


def _for_argument(*_: Any, **__: Any) -> Any:
    return _itself


run_v1_only = disable_xla = enable_v2 = _for_argument  # each takes a reason


def IsGoogleCudaEnabled() -> bool:
    """False."""
    return False


def is_gpu_available(*_: Any, **__: Any) -> bool:
    """False."""
    return False


CudaSupportsHalfMatMulAndConv = IsMklEnabled = InstallStackTraceHandler = IsGoogleCudaEnabled


def gpu_device_name() -> str:
    """Empty: there is none."""
    return ""


def assert_equal_graph_def(actual: Any, expected: Any, **_: Any) -> None:
    """Raise where two GraphDefs differ in more than the order of their nodes."""
    tf.test.assert_equal_graph_def(actual, expected)


def assert_meta_graph_protos_equal(tester: Any, a: Any, b: Any) -> None:
    """Let a test fail where two MetaGraphDefs differ; collections are compared key by key."""
    tester.assertEqual(set(a.collection_def), set(b.collection_def))
    for key in a.collection_def:
        tester.assertEqual(a.collection_def[key], b.collection_def[key])
    first, second = (type(a)() for _ in range(2))
    first.CopyFrom(a)
    second.CopyFrom(b)
    for message in (first, second):
        message.ClearField("collection_def")
    assert_equal_graph_def(first.graph_def, second.graph_def)
    first.ClearField("graph_def")
    second.ClearField("graph_def")
    tester.assertEqual(first, second)
