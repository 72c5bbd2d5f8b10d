"""Products and convolutions in sessions on a GPU, by tensor cores, compared with the CPU's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.codegen.contraction.contractions import matmul
from tests.codegen.cuda.contraction.products import narrow_product
from tests.codegen.cuda.contraction.test_assembly import BFLOAT16, COPIED, WINDOWS
from thalweg.codegen.contraction import tune as kept
from thalweg.codegen.contraction.tune import Winners
from thalweg.codegen.cuda.contraction import kernel as contraction
from thalweg.codegen.cuda.contraction.kernel import emit_contraction
from thalweg.codegen.cuda.contraction.plan import schedules
from thalweg.codegen.cuda.contraction.problem import problem_of
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.target import emulated
from thalweg.codegen.kernels import keep_schedule
from thalweg.device.cuda import kernels
from thalweg.device.cuda.kernels import Image
from thalweg.ir.dynamic import dynamic
from thalweg.platform.disk_cache import Disk


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as made:
        yield made


def both(make: Any, feeds: list[np.ndarray]) -> list[np.ndarray]:
    """The values of a graph on the CPU and on the GPU."""
    found = []
    for device in ("/cpu:0", "/gpu:0"):
        with tf.Graph().as_default(), tf.device(device), tf.Session() as session:
            inputs = [tf.placeholder(tf.float32, [None, *f.shape[1:]]) for f in feeds]
            result = make(*inputs)
            found.append(session.run(result, dict(zip(inputs, feeds, strict=True))))
    return found


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_dense_layer(dtype: str) -> None:
    def layer(x: Any, w: Any) -> Any:
        x, w = (tf.cast(t, dtype) for t in (x, w))
        return tf.cast(tf.nn.relu(tf.matmul(x, w) + 1), tf.float32)

    cpu, gpu = both(layer, [random(70, 64), random(64, 72)])
    np.testing.assert_allclose(gpu, cpu, rtol=2e-2, atol=0.1)


@pytest.mark.parametrize("transposed", ["", "b"])
def test_a_convolution_in_tf32(
    transposed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Operands are transposed in shared memory, or before into scratch memory of the step."""
    monkeypatch.setitem(kept._process, "winners", Winners(Disk(tmp_path)))
    found: list[Schedule] = []

    def chosen(kernel: Any, target: Any) -> Schedule | None:
        worth = [s for s in schedules(problem_of(kernel), target, 100) if s.unit == "wgmma"]
        found.append(next((s for s in worth if s.transposed == transposed), worth[0]))
        return found[-1]

    keep_schedule(matmul(2, 2, 2), emulated(), Schedule("cores", 1, 1, 1, 1, 1))  # a state
    for module in (contraction, kernels):
        monkeypatch.setattr(module, "tuned_schedule", chosen)
    tf.config.experimental.enable_tensor_float_32_execution(True)
    try:
        check_convolution("float32")
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(False)
    assert any(s.transposed or s.rewritten for s in found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_convolution_and_its_gradients(dtype: str) -> None:
    check_convolution(dtype)


def check_convolution(dtype: str) -> None:
    def gradients(x: Any, f: Any) -> Any:
        x, f = (tf.cast(t, dtype) for t in (x, f))
        f = tf.reshape(f, [3, 3, 64, 64])
        y = tf.nn.conv2d(x, f, [1, 1, 1, 1], "SAME")
        found = [y, *tf.gradients(tf.square(y), [x, f])]
        return tf.concat([tf.reshape(tf.cast(t, tf.float32), [-1]) for t in found], 0)

    cpu, gpu = both(gradients, [random(2, 7, 6, 64), random(9, 64 * 64) * np.float32(0.1)])
    np.testing.assert_allclose(gpu, cpu, rtol=5e-2, atol=0.03 * np.abs(cpu).max())


def test_batches_of_other_sizes_use_the_same_kernels() -> None:
    with tf.device("/gpu:0"), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 40])
        w = tf.constant(random(40, 48))
        y = tf.cast(tf.matmul(tf.cast(x, tf.bfloat16), tf.cast(w, tf.bfloat16)), tf.float32)
        for rows in (3, 70, 200, 129):
            given = random(rows, 40)
            expected = given @ random(40, 48)
            np.testing.assert_allclose(session.run(y, {x: given}), expected, rtol=0.1, atol=0.3)


def test_tensor_maps_in_the_disk_cache() -> None:
    varying = narrow_product(dynamic(70, 5), 64, 64, BFLOAT16)
    for kernel in (*WINDOWS, varying):
        made = emit_contraction(kernel, emulated(), aligned=True, schedule=COPIED)
        image = Image(b"code", made.entries, made.scratch, made.tensor_maps)
        assert made.tensor_maps and Image.from_bytes(image.to_bytes()) == image
    (rows, _) = made.tensor_maps
    assert rows.resolved([0, 256, 512, 768, 0, 33]).extents == (64, 33)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16])
@pytest.mark.parametrize("m", [17, 32, 128])
@pytest.mark.parametrize("given", [(True, False), (False, True), (False, False)])
def test_factors_that_are_constant_along_an_axis(dtype: Any, m: int, given: Any) -> None:
    k, n = (64, 64) if m == 128 else (40, 48)
    shape = [size if is_given else 1 for size, is_given in zip((m, k), given, strict=True)]
    with tf.device("/gpu:0"), tf.Session() as session:
        x, w = tf.placeholder(tf.float32, shape), tf.placeholder(tf.float32, [k, n])
        whole, right = tf.broadcast_to(tf.cast(x, dtype), [m, k]), tf.cast(w, dtype)
        products = [
            tf.matmul(whole, right),
            tf.matmul(whole, tf.transpose(right), transpose_b=True),
            tf.matmul(right, whole, transpose_a=True, transpose_b=True),
            tf.matmul(tf.transpose(whole), right, transpose_a=True),
        ]
        feeds = {x: random(*shape), w: random(k, n)}
        found = session.run([tf.cast(product, tf.float64) for product in products], feeds)
    expected = np.broadcast_to(feeds[x], (m, k)) @ feeds[w]
    room = 0.1 if dtype is tf.bfloat16 else 1e-5
    for number, value in enumerate(found):
        wanted = expected.T if number == 2 else expected
        np.testing.assert_allclose(value, wanted, rtol=room, atol=room * np.abs(wanted).max())
