"""`tf.test`: what each assertion accepts and refuses, sessions, threads, and gradient checks."""

import os
import random
from typing import Any

import numpy as np
import pytest

import thalweg as tf


class Case(tf.test.TestCase):
    def runTest(self) -> None:
        """Nothing: the tests call the assertions themselves."""


@pytest.fixture
def case() -> Any:
    made = Case()
    made.setUp()
    yield made
    made.tearDown()


NAN = float("nan")

HOLDS = {
    "close": lambda c: c.assertAllClose([1.0, 2.0], [1.0, 2.0 + 1e-7]),
    "close nan": lambda c: c.assertAllClose([NAN], [NAN]),
    "close nested": lambda c: c.assertAllClose(
        {"a": [[1.0], [1.0, 2.0]]}, {"a": [[1.0], [1.0, 2.0]]}
    ),
    "half": lambda c: c.assertAllCloseAccordingToType(np.float16([1.0]), [1.0005]),
    "bfloat16": lambda c: c.assertAllCloseAccordingToType(tf.constant(1.0, tf.bfloat16), 1.005),
    "equal": lambda c: c.assertAllEqual([1, 2], np.array([1, 2])),
    "equal text": lambda c: c.assertAllEqual([b"a"], np.array([b"a"], object)),
    "equal nan": lambda c: c.assertAllEqual([NAN], [NAN]),
    "tensor": lambda c: c.assertAllEqual(tf.constant([1, 2]), [1, 2]),
    "not equal": lambda c: c.assertNotAllEqual([1, 2], [1, 3]),
    "not close": lambda c: c.assertNotAllClose([1.0], [1.1]),
    "near": lambda c: c.assertNear(1.0, 1.05, 0.1),
    "array near": lambda c: c.assertArrayNear([1.0], [1.05], 0.1),
    "ndarray near": lambda c: c.assertNDArrayNear(np.ones(3), np.ones(3) + 0.01, 0.1),
    "greater": lambda c: c.assertAllGreater([1, 2], 0),
    "less": lambda c: c.assertAllLess([1, 2], 3),
    "range": lambda c: c.assertAllInRange([1, 2], 1, 2),
    "set": lambda c: c.assertAllInSet([1, 2, 1], {1, 2}),
    "finite": lambda c: c.assertAllFinite([1.0]),
    "shape": lambda c: c.assertShapeEqual(np.ones((2, 3)), tf.zeros([2, 3])),
    "starts": lambda c: c.assertStartsWith("abc", "ab"),
    "empty": lambda c: c.assertEmpty([]),
    "false": lambda c: c.assertFalse(np.zeros([0])),
    "length": lambda c: c.assertLen([1, 2], 2),
    "device": lambda c: c.assertDeviceEqual("/job:a/cpu:0", "/job:a/device:CPU:0"),
}

FAILS = {
    "close": lambda c: c.assertAllClose([1.0, 2.0], [1.0, 2.1]),
    "close shape": lambda c: c.assertAllClose([1.0], [[1.0]]),
    "close keys": lambda c: c.assertAllClose({"a": 1.0}, {"b": 1.0}),
    "close nan": lambda c: c.assertAllClose([NAN], [1.0]),
    "half": lambda c: c.assertAllCloseAccordingToType(np.float16([1.0]), [1.1]),
    "equal": lambda c: c.assertAllEqual([1, 2], [1, 3]),
    "near": lambda c: c.assertNear(1.0, 1.2, 0.1),
    "greater": lambda c: c.assertAllGreater([1, 2], 1),
    "range": lambda c: c.assertAllInRange([1, 2], 1, 2, open_upper_bound=True),
    "set": lambda c: c.assertAllInSet([3], {1, 2}),
    "finite": lambda c: c.assertAllFinite([NAN]),
    "shape": lambda c: c.assertShapeEqual(np.ones(3), tf.zeros([2])),
    "starts": lambda c: c.assertStartsWith("abc", "b"),
    "empty": lambda c: c.assertEmpty([1]),
    "false": lambda c: c.assertFalse(np.ones([1])),
    "device": lambda c: c.assertDeviceEqual("/cpu:0", "/cpu:1"),
}


@pytest.mark.parametrize("name", HOLDS)
def test_holds(case: Any, name: str):
    HOLDS[name](case)


@pytest.mark.parametrize("name", FAILS)
def test_fails(case: Any, name: str):
    with pytest.raises(AssertionError):
        FAILS[name](case)


def test_a_difference_is_shown_where_it_is(case: Any):
    with pytest.raises(AssertionError, match=r"1 of 4 elements\n  at \(1, 0\)"):
        case.assertAllClose([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.5, 4.0]])


def test_every_test_starts_with_the_same_seeds(case: Any):
    first = random.random(), np.random.rand(), tf.get_default_graph().seed
    case.setUp()
    assert (random.random(), np.random.rand(), tf.get_default_graph().seed) == first
    assert first[2] == 87654321


def test_the_session_of_a_test_is_one(case: Any):
    with case.test_session() as first, case.test_session() as second:
        assert first is second
    with case.test_session(graph=tf.Graph()) as third:
        assert third is not first


def test_nodes_are_pinned_unless_a_gpu_is_allowed(case: Any):
    with case.test_session():
        assert tf.constant(1).device == "/device:CPU:0"
    with case.test_session(use_gpu=True):
        assert tf.constant(1).device == ""


def test_errors_of_ops_match_by_text_and_predicate(case: Any):
    with case.test_session():
        missing = tf.placeholder(tf.float32, name="missing")
        with case.assertRaisesOpError("must feed a value"):
            missing.eval()
        with case.assertRaisesOpError(lambda error: error.op.name == "missing"):
            missing.eval()
    with pytest.raises(AssertionError, match="not raised"), case.assertRaisesOpError("x"):
        pass
    with pytest.raises(AssertionError, match="ValueError"), case.assertRaisesOpError("x"):
        raise ValueError("y")


def test_a_checked_thread_reports_its_error(case: Any):
    def fail() -> None:
        raise ValueError("in the thread")

    thread = case.checkedThread(fail)
    thread.start()
    with pytest.raises(AssertionError, match="in the thread"):
        thread.join()


def test_folders(case: Any):
    assert os.path.isdir(case.get_temp_dir())
    assert case.get_temp_dir() == case.get_temp_dir()
    assert case.get_temp_dir().startswith(tf.test.get_temp_dir())


def test_devices():
    assert not tf.test.is_gpu_available()
    assert tf.test.gpu_device_name() == ""
    assert not tf.test.is_built_with_cuda()


def test_mock():
    assert tf.test.mock.Mock(return_value=3)() == 3


class TestGradientChecker:
    def test_a_right_gradient(self, case: Any):
        with case.test_session():
            x = tf.constant([[1.0, 2.0, 3.0]], tf.float64)
            symbolic, numeric = tf.test.compute_gradient(x, [1, 3], x * x, [1, 3])
            np.testing.assert_allclose(symbolic, numeric, atol=1e-6)
            assert symbolic.shape == (3, 3)

    def test_the_value_to_start_from(self, case: Any):
        with case.test_session():
            x = tf.placeholder(tf.float64, [2])
            symbolic, _ = tf.test.compute_gradient(x, [2], x * x, [2], np.array([3.0, 4.0]))
            np.testing.assert_allclose(symbolic, np.diag([6.0, 8.0]))

    def test_a_wrong_gradient_is_an_error(self, case: Any):
        with case.test_session():
            x = tf.constant([1.0, 2.0], tf.float64)
            assert tf.test.compute_gradient_error(x, [2], x * tf.stop_gradient(x), [2]) > 0.1

    def test_several_sources(self, case: Any):
        with case.test_session():
            x, y = tf.constant([1.0, 2.0], tf.float64), tf.constant(3.0, tf.float64)
            error = tf.test.compute_gradient_error([x, y], [[2], []], x * y, [2])
            assert error < 1e-6

    def test_complex_numbers_are_pairs(self, case: Any):
        with case.test_session():
            x = tf.constant([1.0 + 2.0j], tf.complex128)
            symbolic, numeric = tf.test.compute_gradient(x, [1], x * x, [1], np.array([1 + 2j]))
            assert symbolic.shape == numeric.shape == (2, 2)
            np.testing.assert_allclose(numeric, [[2, 4], [-4, 2]], atol=1e-6)

    def test_extra_feeds(self, case: Any):
        with case.test_session():
            x, scale = tf.constant([1.0], tf.float64), tf.placeholder(tf.float64, [])
            symbolic, _ = tf.test.compute_gradient(
                x, [1], x * scale, [1], extra_feed_dict={scale: 5.0}
            )
            np.testing.assert_allclose(symbolic, [[5.0]])


def test_a_benchmark_reports(capsys: pytest.CaptureFixture[str]):
    class Measured(tf.test.Benchmark):
        def benchmarkAdd(self) -> None:
            with tf.Graph().as_default(), tf.Session() as session:
                self.run_op_benchmark(session, tf.constant(1) + 1, min_iters=2)

    Measured().benchmarkAdd()
    assert '"name": "Measured.benchmarkAdd", "iters": 2' in capsys.readouterr().out


def test_versions():
    assert isinstance(tf.VERSION, str)
    assert tf.GRAPH_DEF_VERSION_MIN_CONSUMER <= tf.GRAPH_DEF_VERSION
