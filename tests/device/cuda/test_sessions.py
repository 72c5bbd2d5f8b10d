"""Sessions with a GPU: placement, device memory, transfers, and errors."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import units
from thalweg.codegen.cuda.contraction import kernel, plan
from thalweg.device.cuda import loading
from thalweg.device.cuda.device import CudaDevice
from thalweg.device.cuda.emulated import EmulatedContext
from thalweg.device.cuda.memory import DeviceBuffer
from thalweg.device.cuda.program import CudaProgram
from thalweg.runtime.compiled import Executable

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as made:
        yield made


def gpu_of(session: tf.Session) -> CudaDevice:
    return next(d for d in session._engine.devices if isinstance(d, CudaDevice))


def context_of(session: tf.Session) -> EmulatedContext:
    result = gpu_of(session).context
    assert isinstance(result, EmulatedContext)
    return result


# Devices and placement


def test_the_gpu_is_a_device_of_the_session() -> None:
    assert tf.Session().list_devices() == [CPU, GPU]
    assert tf.test.is_gpu_available() and tf.test.gpu_device_name() == "/device:GPU:0"
    assert tf.test.is_gpu_available(min_cuda_compute_capability=(9, 0))
    assert not tf.test.is_gpu_available(min_cuda_compute_capability=(12, 0))
    listed = tf.python.client.device_lib.list_local_devices()
    assert [device.device_type for device in listed] == ["CPU", "GPU"]
    assert "compute capability: 9.0" in listed[1].physical_device_desc
    none = tf.ConfigProto(device_count={"GPU": 0})
    assert tf.Session(config=none).list_devices() == [CPU]


def test_numeric_ops_are_on_the_gpu_and_strings_on_the_cpu() -> None:
    x = tf.placeholder(tf.float32, [3])
    y = tf.Variable([1.0, 2.0, 3.0]) * x
    text = tf.as_string(y)
    session = tf.Session()
    placed = session._engine.placer.place(tf.get_default_graph().nodes)
    assert placed[y.op] == GPU and placed[text.op] == CPU
    assert {placed[n] for n in placed if n.type in ("VariableV2", "Assign")} == {GPU}


def test_placement_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    config = tf.ConfigProto(log_device_placement=True)
    tf.Session(config=config).run(tf.ones([2]) + tf.placeholder_with_default([1.0, 2.0], [2]))
    assert f"add: (Add): {GPU}" in capfd.readouterr().err.replace("AddV2", "Add")


def test_a_host_op_requested_on_the_gpu_is_an_error_without_soft_placement() -> None:
    with tf.device("/gpu:0"):
        text = tf.as_string(tf.placeholder_with_default(1, []))
    with pytest.raises(tf.errors.InvalidArgumentError, match="AsString has no kernel for '/dev"):
        tf.Session().run(text)
    soft = tf.ConfigProto(allow_soft_placement=True)
    assert tf.Session(config=soft).run(text) == b"1"


def test_requesting_a_missing_gpu_is_an_error() -> None:
    with tf.device("/gpu:3"):
        y = tf.placeholder_with_default(1.0, []) * 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="no device matches"):
        tf.Session().run(y)
    with pytest.raises(tf.errors.InvalidArgumentError, match="names GPU 7, but this process sees"):
        tf.Session(config=tf.ConfigProto(gpu_options=tf.GPUOptions(visible_device_list="7")))


# Values


def trained(config: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    x, y = tf.placeholder(tf.float32, [None, 6]), tf.placeholder(tf.int32, [None])
    w = tf.Variable(rng.normal(size=(6, 4)).astype(np.float32))
    b = tf.Variable(tf.zeros([4]))
    loss = tf.losses.sparse_softmax_cross_entropy(y, tf.matmul(x, w) + b)
    step = tf.train.get_or_create_global_step()
    train = tf.train.AdamOptimizer(0.1).minimize(loss, step)
    found: list[Any] = []
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        for size in (8, 8, 5, 8, 3):
            feeds = {x: rng.normal(size=(size, 6)), y: rng.integers(0, 4, size)}
            found += session.run([loss, train, step], feeds)[::2]
        return [*found, *session.run([w, b])]


def test_training_on_the_gpu_agrees_with_the_cpu() -> None:
    found = trained(None)
    with tf.Graph().as_default():
        wanted = trained(tf.ConfigProto(device_count={"GPU": 0}))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_values_between_regions_stay_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tf.placeholder(tf.float32, [40, 40])
    queue = tf.FIFOQueue(1, [tf.float32], [[]])
    made = tf.tanh(x)
    with tf.control_dependencies([queue.enqueue(tf.reduce_sum(made))]):
        after = queue.dequeue()  # a host op between two regions
    total = tf.reduce_sum(made * after)
    downloaded: list[int] = []
    with tf.Session() as session:
        context = context_of(session)
        real = context.download

        def download(target: int, source: int, size: int, stream: int) -> None:
            downloaded.append(size)
            real(target, source, size, stream)

        monkeypatch.setattr(context, "download", download)
        value = np.full((40, 40), 0.5, np.float32)
        actual = session.run(total, {x: value})
    np.testing.assert_allclose(actual, np.tanh(value).sum() ** 2, rtol=1e-5)
    assert max(downloaded, default=0) < 1600 * 4


def test_large_feeds_and_fetches() -> None:
    x = tf.placeholder(tf.float32, [None])
    y = x + 1
    value = np.arange(3_000_000, dtype=np.float32)
    with tf.Session() as session:
        for _ in range(3):
            np.testing.assert_array_equal(session.run(y, {x: value}), value + 1)
        np.testing.assert_array_equal(session.run(y, {x: value[::2]}), value[::2] + 1)


def test_variables_are_buffers_of_the_gpu() -> None:
    v = tf.Variable(np.zeros((3, 300), np.float32), name="v")
    add = tf.assign_add(v, tf.ones([3, 300]))
    with tf.Session() as session:
        session.run(v.initializer)
        before = session.run(v)
        session.run(add)
        v.load(np.full((3, 300), 5.0), session)
        assert session.run(v).max() == 5 and session.run(add).max() == 6
        resources = session.resources.on(GPU)
        cell = resources.get("v", "", lambda: None)
        assert isinstance(cell.buffer, DeviceBuffer) and cell.buffer.device == GPU
    assert before.max() == 0  # a value once read never changes


def test_random_numbers_equal_those_of_the_cpu() -> None:
    drawn = tf.random_normal([100], seed=3), tf.random_uniform([7], seed=5)
    with tf.Session() as session:
        found = [session.run(drawn) for _ in range(3)]
    with tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
        wanted = [session.run(drawn) for _ in range(3)]
    for one, other in zip(found, wanted, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(found[0][0], found[1][0])


def test_checkpoints_are_restored_on_other_devices(tmp_path: Path) -> None:
    v = tf.Variable(np.arange(600.0), name="v")
    w = tf.Variable(3, name="w")
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(tf.assign_add(v, tf.ones([600], tf.float64)))
        path = saver.save(session, str(tmp_path / "model"))
    for count in (0, 1):
        with tf.Session(config=tf.ConfigProto(device_count={"GPU": count})) as session:
            saver.restore(session, path)
            np.testing.assert_array_equal(session.run(v), np.arange(600.0) + 1)
            assert session.run(w) == 3


def test_partial_runs_and_loops_use_values_on_the_gpu() -> None:
    x, y = tf.placeholder(tf.float32, [500]), tf.placeholder(tf.float32, [500])
    first = tf.sin(x)
    second = first * y
    looped = tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a + second), [0, first])[1]
    one = np.ones(500, np.float32)
    with tf.Session() as session:
        handle = session.partial_run_setup([first, second], [x, y])
        np.testing.assert_allclose(session.partial_run(handle, first, {x: one}), np.sin(one))
        actual = session.partial_run(handle, second, {y: 2 * one})
        np.testing.assert_allclose(actual, 2 * np.sin(one))
        actual = session.run(looped, {x: one, y: one})
        np.testing.assert_allclose(actual, 4 * np.sin(one), rtol=1e-6)
        assert session.run(tf.cond(looped[0] > 2, lambda: second, lambda: first), {x: one, y: one})[
            0
        ] == np.sin(np.float32(1))


def test_gradients_of_loops_keep_large_values_on_the_gpu() -> None:
    x = tf.placeholder(tf.float32, [3, 20, 30])
    w = tf.Variable(np.full((30, 30), 0.02, np.float32))
    rows = tf.TensorArray(tf.float32, 3).unstack(x)
    _, last = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w) + rows.read(i))),
        [0, tf.zeros([20, 30])],
    )
    gradients = tf.gradients(tf.reduce_sum(last), [w, x])
    feed = {x: np.random.default_rng(0).standard_normal((3, 20, 30)).astype(np.float32)}
    found: list[Any] = []
    for count in (0, 1):
        with tf.Session(config=tf.ConfigProto(device_count={"GPU": count})) as session:
            session.run(w.initializer)
            found.append(session.run(gradients, feed))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def test_programs_of_an_earlier_process_are_restored() -> None:
    actual: list[Any] = []
    for _ in range(2):
        with tf.Graph().as_default():
            x = tf.placeholder(tf.float32, [4, 5])
            y = tf.reduce_sum(tf.tanh(x) * 1.25, 1)
            with tf.Session() as session:
                actual.append(session.run(y, {x: np.ones((4, 5))}))
                plan = str(session.plan(y, {x: np.ones((4, 5))}))
    np.testing.assert_array_equal(*actual)
    assert f"on {GPU} as 1 CUDA graph" in plan


def test_a_plan_lists_kernels_and_a_profile_times_them() -> None:
    x = tf.placeholder(tf.float32, [30, 40])
    y = tf.matmul(tf.nn.softmax(x), x, transpose_b=True)
    with tf.Session() as session:
        plan = session.plan(y, {x: np.ones((30, 40))})
        assert plan.kernels and all(kernel.users >= 32 for kernel in plan.kernels)
        assert all("define" in kernel.llvm and kernel.asm for kernel in plan.kernels)
        assert all(set(kernel.code_sizes) == {"ptx", "sass"} for kernel in plan.kernels)
        assert re.search(r"threads +barriers +ptx +sass\n", str(plan))
        profile = plan.profile(2)
        assert len(profile.rows) == len(plan.kernels)
        assert all(row.best > 0 for row in profile.rows)


def test_a_layer_norm_is_one_kernel() -> None:
    x = tf.placeholder(tf.float32, [40, 96])
    scale = tf.placeholder(tf.bfloat16, [96])
    mean, variance = tf.nn.moments(x, [1], keep_dims=True)
    y = (x - mean) * tf.rsqrt(variance + 1e-5) * tf.cast(scale, tf.float32)
    given = np.random.RandomState(1).randn(40, 96).astype(np.float32)
    feeds = {x: given, scale: np.arange(96) / 64}
    with tf.Session() as session:
        actual = session.run(y, feeds)
        assert len(session.plan(y, feeds).kernels) == 1
        assert len(session.plan([y, mean], feeds).kernels) == 1
        again, means = session.run([y, mean], feeds)
    wide = given.astype(np.float64)
    means_wanted = wide.mean(1, keepdims=True)
    expected = (wide - means_wanted) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    expected *= np.asarray(np.arange(96) / 64, scale.dtype.as_numpy_dtype).astype(np.float64)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(actual, again)
    np.testing.assert_allclose(means, means_wanted, rtol=1e-4, atol=1e-6)


def test_tuning_measures_contractions_and_stores_the_best() -> None:
    x = tf.placeholder(tf.bfloat16, [24, 136])
    y = tf.matmul(x, x, transpose_b=True)
    given = {x: np.ones((24, 136))}
    with tf.Session() as session:
        report = tf.tune(session, y, given, budget_seconds=20.0)
        (actual,) = report.kernels
        assert actual.tried > 1 and 0 < actual.best <= actual.likely
        assert "stages" in str(report)
        np.testing.assert_array_equal(session.run(y, given), np.full((24, 24), 136.0))


# Errors


def test_a_fault_does_not_change_variables() -> None:
    v = tf.Variable(np.zeros((4, 3), np.float32))
    count = tf.Variable(0)
    where = tf.placeholder(tf.int32, [2])
    both = tf.group(tf.scatter_add(v, where, tf.ones([2, 3])), tf.assign_add(count, 1))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(both, {where: [0, 3]})
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"9 is not in \[0, 4\)"):
                session.run(both, {where: [1, 9]})
        session.run(both, {where: [0, 1]})
        np.testing.assert_array_equal(session.run(v)[:, 0], [2, 1, 0, 1])


def test_out_of_memory_names_the_largest_tensors() -> None:
    fraction = tf.GPUOptions(per_process_gpu_memory_fraction=0.001, allow_growth=True)
    x = tf.placeholder(tf.float32, [None, 64])
    y = tf.matmul(x, x, transpose_b=True, name="product")
    with tf.Session(config=tf.ConfigProto(gpu_options=fraction)) as session:
        with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
            session.run(y, {x: np.ones((1500, 64))})
        assert "product:0' float32[1500, 1500], 9 MB, made at" in str(caught.value)
        assert Path(__file__).name in str(caught.value)
        assert session.run(y, {x: np.ones((8, 64))}).shape == (8, 8)


def test_cached_memory_of_programs_is_freed_for_others() -> None:
    fraction = tf.GPUOptions(per_process_gpu_memory_fraction=0.003, allow_growth=True)
    x = tf.placeholder(tf.float32, [None])
    y = tf.reduce_sum(tf.cumsum(x) * 2)
    with tf.Session(config=tf.ConfigProto(gpu_options=fraction)) as session:
        for size in (900_000, 800_000, 700_000, 900_000):
            value = np.ones(size, np.float32)
            assert session.run(y, {x: value}) > 0


def test_a_sticky_error_closes_only_the_device() -> None:
    v = tf.Variable(tf.ones([300]))
    with tf.Session() as session:
        session.run(v.initializer)
        context_of(session).fail_with(700)
        for _ in range(2):
            with pytest.raises(tf.errors.InternalError, match=r"ILLEGAL_ADDRESS.*is closed"):
                session.run(v + 1)
    with tf.Session() as session:  # without the device
        assert session.list_devices() == [CPU]
        session.run(v.initializer)
        assert session.run(v + 1)[0] == 2


def test_steps_of_several_threads_run_concurrently() -> None:
    x = tf.placeholder(tf.float32, [200, 10])
    v, count = tf.Variable(tf.zeros([10])), tf.Variable(0, use_resource=True)
    train = tf.group(
        tf.assign_add(v, tf.reduce_sum(x, 0), use_locking=True), tf.assign_add(count, 1)
    )
    y = tf.tanh(x) * 2
    failures: list[BaseException] = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())

        def work(number: int) -> None:
            value = np.full((200, 10), number, np.float32)
            try:
                for _ in range(10):
                    session.run(train, {x: np.ones((200, 10))})
                    actual = session.run(y, {x: value})
                    np.testing.assert_allclose(actual, 2 * np.tanh(value), rtol=1e-5)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert session.run(count) == 40
        np.testing.assert_array_equal(session.run(v), np.full(10, 8000.0))


def cut_into_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SLICE", 1e-12)


def long_step() -> tuple[Any, Any, Any]:
    x = tf.placeholder(tf.float32, [64])
    v = tf.Variable(tf.zeros([64]))
    y = x
    for _ in range(4):
        y = tf.cumsum(tf.sin(y))
    return x, v, tf.assign_add(v, y)


def test_a_long_step_is_cancelled_between_two_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into_graphs(monkeypatch)
    x, v, update = long_step()
    feeds = {x: np.ones(64)}
    with tf.Session() as session:
        session.run(v.initializer)
        session.run(update, feeds)
        (call,) = [
            i.call
            for plan in session._plans.values()
            for i in plan.instructions
            if isinstance(i.call, Executable) and x in i.call.region.inputs
        ]
        (program,) = call.programs.values()
        assert isinstance(program, CudaProgram) and len(program.template.graphs) > 2
        before = session.run(v)
        context = context_of(session)
        real, waits = context.wait, [0]

        def wait(stream: int) -> None:
            waits[0] += 1
            if waits[0] == 2:
                os.kill(os.getpid(), signal.SIGINT)
            real(stream)

        monkeypatch.setattr(context, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            session.run(update, feeds)
        monkeypatch.setattr(context, "wait", real)
        np.testing.assert_array_equal(session.run(v), before)
        session.run(update, feeds)
        np.testing.assert_allclose(session.run(v), 2 * before, rtol=1e-6)


def test_using_the_gpu_of_a_parent_process_is_an_error() -> None:
    session = tf.Session()
    x = tf.placeholder(tf.float32, [2])
    session.run(x + 1, {x: [1, 2]})
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            gpu_of(session).context
        except tf.errors.FailedPreconditionError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert b"start processes that use GPUs with the 'spawn' method" in os.read(reader, 10_000)


def test_regions_without_a_gpu_are_unchanged() -> None:
    assert units(tf.tanh(tf.placeholder(tf.float32, [3]))) == [["Tanh"]]


def test_a_pipeline_prefetches_to_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.arange(6 * 2000, dtype=np.float32).reshape(6, 2000)
    dataset = tf.data.Dataset.from_tensor_slices((images, np.arange(6))).batch(2)
    dataset = dataset.apply(tf.data.experimental.prefetch_to_device("/gpu:0", 2))
    iterator = dataset.make_initializable_iterator()
    image, label = iterator.get_next()
    total, shown = tf.reduce_sum(image, 1), tf.as_string(tf.reduce_sum(image))
    with tf.Session() as session:
        session.run(iterator.initializer)
        staged: list[int] = []
        real = CudaProgram._bind_inputs

        def bind(self: Any, invocation: Any, values: Any) -> None:
            staged.extend(np.asarray(v).nbytes for v in values if not isinstance(v, DeviceBuffer))
            real(self, invocation, values)

        monkeypatch.setattr(CudaProgram, "_bind_inputs", bind)
        actual = [session.run([total, label]) for _ in range(2)]
        np.testing.assert_allclose(actual[1][0], images[2:4].sum(1))
        np.testing.assert_array_equal(actual[1][1], [2, 3])
        assert max(staged, default=0) < 16_000  # the images are already on the GPU
        assert float(session.run(shown)) == images[4:].sum()
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(total)
        session.run(iterator.initializer)
        np.testing.assert_array_equal(session.run(image), images[:2])


def test_tensor_maps_are_updated_for_new_addresses_and_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def by_groups(problem: Any, target: Any) -> Any:
        every = plan._priced(problem, target)
        return min((p for p in every if p[0].unit == "wgmma"), key=lambda pair: pair[1])[0]

    monkeypatch.setattr(kernel, "schedule_of", by_groups)
    x, y = tf.placeholder(tf.bfloat16, [None, 192]), tf.placeholder(tf.bfloat16, [192, 320])
    product = tf.matmul(x, y)
    again = tf.matmul(tf.stop_gradient(product), y, transpose_b=True)
    kind, rng = tf.bfloat16.as_numpy_dtype, np.random.default_rng(0)
    used: list[int] = []
    with tf.Session() as session:
        for rows in (128, 64, 192, 128):
            a, b = (0.1 * rng.normal(size=s) for s in ((rows, 192), (192, 320)))
            feeds = {x: a.astype(kind), y: b.astype(kind)}
            actual = [value.astype(np.float32) for value in session.run([product, again], feeds)]
            np.testing.assert_allclose(actual[0], a @ b, rtol=5e-2, atol=2e-2)
            np.testing.assert_allclose(actual[1], a @ b @ b.T, rtol=5e-2, atol=5e-2)
            listed = session.plan([product, again], feeds).kernels
            used += [len(each.call.kernel.tensor_maps) for each in listed]
    assert any(used)


def test_memory_of_the_first_run_of_a_step_is_freed() -> None:
    size = 1 << 20
    given = tf.placeholder(tf.float32, [size])
    weights = tf.Variable(tf.cast(given, tf.float16))
    doubled = tf.assign(weights, weights + weights)
    with tf.Session() as session:
        pool = gpu_of(session).shared.memory.pool
        session.run(weights.initializer, {given: np.ones(size, np.float32)})
        assert pool.used < 3 * size  # the variable, without the feeds
        small = session.make_callable(tf.reduce_sum(tf.constant(np.ones(40, np.float32))))
        small()
        kept = pool.used
        small()
        assert pool.used == kept  # a small step keeps its memory after the first call
        for _ in range(2):
            session.run(doubled.op)
        np.testing.assert_array_equal(session.run(weights), np.full(size, 4, np.float16))
