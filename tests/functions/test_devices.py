"""Eager code, tapes and traced functions on a GPU: where values are, what crosses to the host.

The GPU is the one that is there, or an emulated one.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.device.cuda.device import reset_devices
from thalweg.device.cuda.discovery import find_driver
from thalweg.device.cuda.memory import Memory
from thalweg.device.cuda.presence import driver_kind
from thalweg.functions.devices import eager_devices, use_devices
from thalweg.runtime.config import SessionOptions, session_options

TASK = "/job:localhost/replica:0/task:0"
CPU, GPU = f"{TASK}/device:CPU:0", f"{TASK}/device:GPU:0"
LARGE = 20_000  # elements of an array that no program takes along when it is launched


def begin_again(options: SessionOptions | None = None) -> None:
    find_driver.cache_clear()
    reset_devices()
    use_devices(options or SessionOptions())


def have_memory(size: float) -> None:
    """Go on with so many bytes of the GPU's memory."""
    fraction = size / eager_devices()[GPU].memory_limit
    options = tf.GPUOptions(per_process_gpu_memory_fraction=fraction, allow_growth=True)
    begin_again(session_options(tf.ConfigProto(gpu_options=options)))


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not driver_kind() or os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # all are hidden
        monkeypatch.setenv("THALWEG_CUDA", "emulated")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    begin_again()
    with tf.eager_mode():
        yield
    monkeypatch.undo()
    begin_again()


class Transfers:
    """How many large arrays were copied to and from the memory of GPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up = self.down = 0
        upload, download = Memory.upload, Memory.download

        def counted_upload(memory: Memory, address: int, value: Any) -> None:
            self.up += value.size >= LARGE
            upload(memory, address, value)

        def counted_download(memory: Memory, address: int, shape: Any, dtype: Any) -> Any:
            self.down += np.prod(shape) >= LARGE
            return download(memory, address, shape, dtype)

        monkeypatch.setattr(Memory, "upload", counted_upload)
        monkeypatch.setattr(Memory, "download", counted_download)

    def of(self, call: Callable[[], Any]) -> tuple[int, int]:
        """The transfers of a call."""
        self.up = self.down = 0
        call()
        return self.up, self.down


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> Transfers:
    return Transfers(monkeypatch)


def large() -> Any:
    return tf.constant(np.arange(LARGE, dtype=np.float32))


# Where things are


def test_numbers_are_on_the_gpu_and_strings_on_the_cpu() -> None:
    x = tf.ones([3])
    assert [x.device, (x + 1).device, tf.reduce_sum(x).device] == [GPU] * 3
    assert [tf.constant(1.0).device, tf.constant("a").device] == [GPU, CPU]
    assert tf.strings.join(["a", "b"]).device == CPU
    assert tf.Variable([1.0]).device == tf.Variable([1.0]).value().device == GPU
    assert tf.Variable("a").device == CPU

    @tf.function
    def both(value: Any) -> Any:
        return value * 2, tf.as_string(value)

    for _ in range(3):  # the last ones by the cache of calls
        assert [each.device for each in both(x)] == [GPU, CPU]


def test_scopes_are_obeyed_by_ops_variables_and_functions() -> None:
    double = tf.function(lambda value: value * 2)
    x = tf.ones([3])
    double(x), double(x)
    with tf.device("/cpu:0"):
        assert [(x + 1).device, double(x).device, tf.Variable([1.0]).device] == [CPU] * 3
        assert [tf.constant(2.0).device, tf.matmul([[1.0]], [[2.0]]).device] == [CPU] * 2
        with tf.device("/gpu:0"):
            assert [(x + 1).device, tf.Variable([1.0]).device] == [GPU] * 2
        with tf.device(None):
            assert (x + 1).device == GPU
        assert (x + 1).device == CPU
    assert [(x + 1).device, double(x).device, tf.Variable([1.0]).device] == [GPU] * 3


def test_work_of_two_scopes_is_one_step_of_two_devices() -> None:
    x = tf.ones([4])
    for _ in range(2):  # the second time it is found
        with tf.device("/cpu:0"):
            y = x * 3
        z = y + 1
        with tf.device("/cpu:0"):
            w = z * y
        np.testing.assert_array_equal(w.numpy(), [12] * 4)
        assert [y.device, z.device, w.device] == [CPU, GPU, CPU]


def test_a_scope_holds_for_its_thread_alone() -> None:
    x, actual = tf.ones([3]), list[str]()

    def work() -> None:
        with tf.eager_mode():
            actual.append((x + 2).device)

    with tf.device("/cpu:0"):
        other = threading.Thread(target=work)
        other.start()
        other.join()
        assert (x + 2).device == CPU
    assert actual == [GPU]


def test_scopes_inside_a_function_are_obeyed() -> None:
    @tf.function
    def both(x: Any) -> Any:
        with tf.device("/cpu:0"):
            y = x + 1
        return y, y * 2

    for _ in range(3):
        assert [each.device for each in both(tf.ones([3]))] == [CPU, GPU]


def test_variables_of_functions_are_where_they_are_asked_for() -> None:
    made: list[Any] = []

    @tf.function
    def count(x: Any) -> Any:
        if not made:
            with tf.device("/cpu:0"):
                made.append(tf.Variable(0.0))
            made.append(tf.Variable(0.0))
        for variable in made:
            variable.assign_add(x)
        return made[0] + made[1]

    assert [float(count(2.0)) for _ in range(3)] == [4, 8, 12]
    assert [variable.device for variable in made] == [CPU, GPU]
    assert [float(variable) for variable in made] == [6, 6]


def test_a_gpu_that_is_not_there_is_an_error_at_its_line() -> None:
    absent = pytest.raises(
        tf.errors.InvalidArgumentError, match=r"No device matches .*GPU:7.*Devices"
    )
    with absent, tf.device("/gpu:7"):
        pass
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"No device matches .*GPU:7"):
        tf.ones([2]).gpu(7)


def test_copies_are_where_they_are_asked_for_and_have_gradients() -> None:
    x = large()
    with tf.GradientTape() as tape:
        tape.watch(x)
        there = (x * 2).cpu()
        back = there.gpu()
        y = tf.reduce_sum(back * back)
    assert [there.device, back.device] == [CPU, GPU]
    assert there.cpu() is there
    assert back.gpu() is back
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), 8 * x.numpy())


def test_without_a_gpu_all_is_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    begin_again()
    if eager_devices().has_accelerators:
        pytest.skip("libcuda read CUDA_VISIBLE_DEVICES when it was loaded")
    x = tf.ones([3])
    with tf.device("/gpu:0"):
        assert (x + 1).device == tf.Variable([1.0]).device == CPU
    assert x.cpu() is x
    with pytest.raises(tf.errors.InvalidArgumentError, match="this process has no GPU"):
        x.gpu()


def test_a_config_may_leave_gpus_out() -> None:
    begin_again(session_options(tf.ConfigProto(device_count={"GPU": 0})))
    assert tf.ones([3]).device == CPU


# What crosses to the host and back


def test_an_array_that_ten_steps_take_is_uploaded_once(transfers: Transfers) -> None:
    x, scale = large(), tf.function(lambda value, by: tf.reduce_sum(value * by))

    def steps() -> None:
        for number in range(5):
            assert float(tf.reduce_sum(x * float(number + 1))) > 0
            assert float(scale(x, float(number + 1))) > 0

    assert transfers.of(steps) == (1, 0)


def test_an_array_of_the_user_is_read_at_each_call() -> None:
    array = np.ones(LARGE, np.float32)
    total = tf.function(tf.reduce_sum)
    for value in (1, 2, 3):
        array[:] = value
        assert float(total(array)) == value * LARGE
        assert float(tf.reduce_sum(array)) == value * LARGE


def test_values_stay_on_the_gpu_between_steps(transfers: Transfers) -> None:
    step = tf.function(lambda value: value + 1)
    v = tf.Variable(np.zeros(LARGE, np.float32))
    y = step(large()) + 0
    tf.reduce_sum(y).numpy()

    def steps() -> None:
        x = y
        for _ in range(5):
            x = step(x) * 1
            v.assign_add(x)
            tf.reduce_sum(x).numpy()

    assert transfers.of(steps) == (0, 0)
    np.testing.assert_array_equal(v.numpy()[:2], [5 * 1 + 15, 5 * 2 + 15])


def test_a_value_that_is_read_is_downloaded_once(transfers: Transfers) -> None:
    x = large() + 1
    assert x.device == GPU

    def look() -> None:
        x.numpy(), np.asarray(x), str(x), float(x[3]), pickle.dumps(x), np.from_dlpack(x)
        for _ in range(3):
            tf.py_func(lambda value: value[:1], [x], tf.float32)
            tf.as_string(x).numpy()

    assert transfers.of(look) == (0, 1)
    assert transfers.of(lambda: sum(map(float, x[:5]))) == (0, 0)
    assert transfers.of(lambda: tf.reduce_sum(x).numpy()) == (0, 0)


def test_a_variable_is_downloaded_when_it_is_read(transfers: Transfers) -> None:
    v = tf.Variable(np.zeros(LARGE, np.float32))
    v.assign(v + 1)
    assert transfers.of(v.numpy) == (0, 1)
    array = v.numpy()
    array[:] = 7  # it is the caller's
    v.assign(v + 1)
    assert transfers.of(lambda: float(tf.reduce_max(v))) == (0, 0)
    assert (v.numpy()[0], array[0]) == (2, 7)


def test_rows_of_a_loop_come_in_one_download(transfers: Transfers) -> None:
    x = tf.reshape(large(), [100, -1]) + 1

    def rows() -> None:
        assert [float(row[0]) for row in x][:2] == [1, 201]

    assert transfers.of(rows) == (1, 1)


def test_arrays_and_device_memory_are_freed_with_their_tensors() -> None:
    pool: Any = eager_devices()[GPU].shared.memory.pool

    def use() -> int:
        x = large()
        y = x * 2
        y.numpy(), tf.reduce_sum(x + y).numpy()
        del x, y
        tf.zeros([1]).numpy()  # finalizers gave blocks back, which are taken over now
        return pool.used

    use()
    assert len({use() for _ in range(4)}) == 1


def test_copies_of_arrays_on_the_gpu_are_freed_when_memory_runs_out() -> None:
    have_memory(2e6)
    held = [tf.constant(np.full(200_000, number, np.float32)) for number in range(6)]
    for _ in range(2):
        assert [float(tf.reduce_max(x)) for x in held] == [0, 1, 2, 3, 4, 5]


def test_tapes_keep_what_steps_computed_on_the_gpu(transfers: Transfers) -> None:
    x = large() / LARGE
    assert x.device == GPU

    def train() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.sin(x)
            tf.reduce_sum(y).numpy()  # the tape goes on in a second step
            z = tf.reduce_sum(y * y)
        actual.append(tape.gradient(z, x))
        assert actual[-1].device == GPU

    actual: list[Any] = []
    train()  # programs take their constants along once
    assert transfers.of(train) == (0, 0)
    angle = x.numpy()
    expected = 2 * np.sin(angle) * np.cos(angle)
    np.testing.assert_allclose(actual[0].numpy(), expected, rtol=1e-5, atol=1e-6)


# The same numbers as on the CPU


def trained(train: Callable[[], Any]) -> tuple[Any, Any]:
    """The results of training on the GPU and on the CPU."""
    found = train()
    with tf.device("/cpu:0"):
        return found, train()


@pytest.mark.parametrize("is_traced", [False, True])
def test_training_gives_the_numbers_of_the_cpu(is_traced: bool) -> None:
    data = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    target = np.sin(data.sum(1, keepdims=True))
    batches = tf.data.Dataset.from_tensor_slices((data, target)).batch(20).repeat(4)

    def train() -> Any:
        tf.set_random_seed(1)
        w = tf.Variable(tf.random_normal([8, 16]))
        b, u = tf.Variable(tf.zeros([16])), tf.Variable(tf.ones([16, 1]) / 16)
        optimizer, step_count = tf.train.AdamOptimizer(0.05), tf.Variable(0)

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.matmul(tf.tanh(tf.matmul(x, w) + b), u) - y) ** 2)
            slopes = tape.gradient(loss, [w, b, u])
            optimizer.apply_gradients(zip(slopes, [w, b, u], strict=True), step_count)
            return loss

        call = tf.function(step) if is_traced else step
        losses = [float(call(x, y)) for x, y in batches]
        slots = [optimizer.get_slot(w, name) for name in optimizer.get_slot_names()]
        assert {each.device for each in [*slots, b, u, step_count]} == {w.device}
        return [*losses, *w.numpy().ravel(), *u.numpy().ravel(), float(step_count)]

    actual, expected = trained(train)
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=1e-5)
    assert expected[-1] == 12


def test_a_variable_of_the_cpu_is_trained_there_by_gradients_of_the_gpu() -> None:
    with tf.device("/cpu:0"):
        v = tf.Variable([1.0, 2.0])
    optimizer = tf.train.MomentumOptimizer(0.5, 0.9)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v * v)
        slope = tape.gradient(loss, v)
        optimizer.apply_gradients([(slope, v)])
        assert loss.device == GPU
    assert v.device == optimizer.get_slot(v, "momentum").device == CPU
    np.testing.assert_allclose(v.numpy(), [-0.9, -1.8], rtol=1e-6)


def test_steps_with_ops_of_the_host_run_on_both() -> None:
    x = tf.constant(np.float32([3, 1, 3, 2]))
    values, places = tf.unique(x * 2)
    total = tf.reduce_sum(tf.gather(values, places))
    text = tf.as_string(tf.cast(total, tf.int32))
    assert (text.numpy(), float(total)) == (b"18", 18)
    doubled = tf.py_func(lambda value: value * 2, [values], tf.float32)
    np.testing.assert_array_equal((doubled + 1).numpy(), [13, 5, 9])

    @tf.function
    def traced(x: Any) -> Any:
        first = tf.unique(x * 2)[0]
        return tf.py_func(lambda value: value + 1, [first], tf.float32), tf.reduce_sum(first)

    for _ in range(2):
        rows, total = traced(x)
        assert ([*rows.numpy()], float(total)) == ([7, 3, 5], 12)


def test_shapes_may_depend_on_values_of_the_gpu() -> None:
    x = large()
    for rows in (10, 20):
        sizes = tf.stack([tf.constant(rows), tf.size(x) // rows])
        assert tf.reshape(x, sizes).shape == [rows, LARGE // rows]
    count = tf.argmax(tf.constant([1.0, 5.0, 2.0]))
    assert tf.zeros([int(count), 2]).shape == [1, 2]
    assert tf.fill(tf.stack([count, count]), 2.0).numpy().tolist() == [[2.0]]
    assert tf.boolean_mask(x, x < 3).numpy().tolist() == [0, 1, 2]


def test_random_numbers_are_those_of_the_cpu() -> None:
    def draw() -> Any:
        tf.set_random_seed(3)
        traced = tf.function(lambda: tf.random_uniform([5], seed=2))
        return [tf.random_normal([300]).numpy()[:5], traced().numpy(), traced().numpy()]

    actual, expected = trained(draw)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_loops_of_functions_update_variables_on_their_devices() -> None:
    v = tf.Variable(np.zeros(LARGE, np.float32))
    with tf.device("/cpu:0"):
        w = tf.Variable(0.0)

    @tf.function
    def run(count: Any) -> Any:
        def body(i: Any, total: Any) -> Any:
            with tf.control_dependencies([v.assign_add(tf.ones([LARGE]))]):
                return i + 1, total + tf.cast(i, tf.float32)

        total = tf.while_loop(lambda i, _: i < count, body, [0, tf.zeros([LARGE])])[1]
        w.assign_add(total[0])
        return total

    for times in (1, 2):
        assert run(tf.constant(4)).numpy()[-1] == 6
        assert (v.numpy()[-1], float(w)) == (4 * times, 6 * times)
    assert [v.device, w.device] == [GPU, CPU]


def test_pipelines_read_variables_and_prefetch_to_the_gpu(transfers: Transfers) -> None:
    v = tf.Variable(2.0)
    source = tf.data.Dataset.from_tensor_slices(np.ones((4, LARGE), np.float32))
    scaled = source.map(lambda row: row * v)
    assert [float(row[0]) for row in scaled] == [2] * 4
    there = source.apply(tf.data.experimental.prefetch_to_device("/gpu:0"))
    rows = list(there)
    assert {row.device for row in rows} == {GPU}
    assert transfers.of(lambda: [tf.reduce_sum(row * 2).numpy() for row in rows]) == (0, 0)


def test_threads_share_values_and_variables() -> None:
    v, x = tf.Variable(np.zeros(LARGE, np.float32)), large() + 1
    errors: list[Exception] = []

    def work() -> None:
        try:
            with tf.eager_mode():
                for _ in range(5):
                    v.assign_add(tf.ones([LARGE]))
                    np.testing.assert_array_equal((x * 2).numpy()[:2], [2, 4])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert set(v.numpy()) == {20.0}


def test_values_become_constants_of_graphs() -> None:
    x = large() + 1
    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(tf.reduce_max(tf.convert_to_tensor(x))) == LARGE


# Errors


def test_an_index_out_of_range_names_the_op_and_the_line() -> None:
    v, x = tf.Variable(np.zeros(LARGE, np.float32)), large()
    for _ in range(2):
        v.assign_add(x)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=rf"is not in \[0, {LARGE}\)"
        ) as error:
            tf.gather(x * 2, [1, LARGE]).numpy()  # this line
        assert "GatherV2" in str(error.value)
        line = str(error.value).split(f"{Path(__file__).name}:")[1].split(",")[0].split()[0]
        number = int("".join(each for each in line if each.isdigit()))
        assert "# this line" in Path(__file__).read_text().splitlines()[number - 1]
    assert v.numpy()[1] == 2


def test_memory_that_runs_out_names_tensors_and_lines_and_later_steps_go_on() -> None:
    have_memory(6e6)
    x = tf.ones([1500, 64])
    with pytest.raises(tf.errors.ResourceExhaustedError, match=r"float32\[1500, 1500\]") as error:
        tf.matmul(x, x, transpose_b=True).numpy()
    assert f"created at {__file__}" in str(error.value)
    assert error.value.op is not None
    assert error.value.__cause__ is not error.value
    assert tf.matmul(x[:8], x[:8], transpose_b=True).numpy()[0, 0] == 64


def test_eager_code_goes_on_without_a_gpu_that_is_lost() -> None:
    x, v = large() + 1, tf.Variable([1.0])
    double = tf.function(lambda value: value * 2)
    double(tf.ones([4])), double(tf.ones([4])), x.device
    context: Any = eager_devices()[GPU].shared.memory.context
    if not hasattr(context, "break_down"):
        pytest.skip("a real GPU does not break down when asked to")
    context.break_down(700)
    with pytest.raises(tf.errors.InternalError, match=r"is closed"):
        (x * 2).numpy()
    with pytest.raises(tf.errors.InternalError, match=r"is closed"):
        v.numpy()
    assert tf.reduce_sum(tf.ones([4]) * 3).numpy() == 12
    assert [double(tf.ones([4])).device, tf.Variable([1.0]).device] == [CPU, CPU]


def test_host_ops_of_equal_structure_use_their_own_variables() -> None:
    """A plan of two devices is shared by the steps of its structure, their variables are not."""
    with tf.device("/gpu:0"):
        variables = [tf.Variable([1.0, 2.0]), tf.Variable([10.0, 20.0])]

    def doubled(variable: Any) -> Any:
        return tf.string_to_number(tf.as_string(variable * 2.0))

    assert [doubled(v).numpy().tolist() for v in variables] == [[2.0, 4.0], [20.0, 40.0]]
    for variable in variables:
        variable.assign_add(doubled(variable))
    assert [v.numpy().tolist() for v in variables] == [[3.0, 6.0], [30.0, 60.0]]


def test_operations_that_functions_return_are_none_in_all_calls() -> None:
    v = tf.Variable(np.ones(4, np.float32))

    @tf.function
    def add(x: Any) -> Any:
        with tf.control_dependencies([v.assign_add(x)]):
            return {"done": tf.no_op(), "other": 3}

    results = [add(tf.ones([4])) for _ in range(3)]
    assert results == [{"done": None, "other": 3}] * 3
    assert v.numpy().tolist() == [4.0] * 4
