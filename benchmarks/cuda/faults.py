"""What goes wrong on a real GPU: each case in a process of its own, which must end well.

    python benchmarks/cuda/faults.py [case ...]     # with a GPU

Out of memory, a kernel with an illegal address, Ctrl-C in a long step and in an endless loop, two
processes at once, a GPU that is hidden. The emulation has these in `tests/device/cuda`; this is for
what only hardware shows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import thalweg as tf
from thalweg.codegen.cuda.launch import LaunchShape
from thalweg.device.cuda.device import CudaDevice
from thalweg.device.cuda.driver import KernelNode

_SECONDS = 40  # that a case may take
_WILD = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry wild ()
{
    .reg .b64 %address;
    mov.u64 %address, 4096;
    st.global.u64 [%address], %address;
    ret;
}
\0"""


def gpu_of(session: tf.Session) -> CudaDevice:
    """The GPU of a session."""
    return next(d for d in session._engine.devices if isinstance(d, CudaDevice))


def out_of_memory() -> str:
    """A step that is too large names its tensors and their lines; a smaller one runs after it."""
    x = tf.placeholder(tf.float32, [None, 16])
    y = tf.matmul(x, x, transpose_b=True, name="product")
    z = tf.reduce_sum(tf.cumsum(tf.sin(y)), name="total")
    with tf.Session() as session:
        rows = int((gpu_of(session).memory_limit / 4) ** 0.5)
        try:
            session.run(z, {x: np.ones((rows, 16), np.float32)})
        except tf.errors.ResourceExhaustedError as error:
            text = str(error)
            assert "Cumsum:0" in text and Path(__file__).name in text, text
        else:
            raise AssertionError("it ran")
        assert session.run(z, {x: np.ones((8, 16), np.float32)}) != 0
        return text.splitlines()[0][:400]


def illegal_address() -> str:
    """A kernel that writes anywhere closes the device: an error says so, a new session goes on."""
    v = tf.Variable(tf.ones([300]))
    with tf.Session() as session:
        session.run(v.initializer)
        context = gpu_of(session).context
        (function,) = context.load(_WILD, ["wild"])
        graph, stream = context.graph(), context.stream()
        graph.add_kernel(KernelNode(function, LaunchShape((1, 1, 1), (1, 1, 1)), 0, 0), ())
        graph.finish()
        graph.launch(stream)
        messages: list[str] = []
        for _ in range(2):
            try:
                context.wait(stream) if not messages else session.run(v + 1)
            except tf.errors.InternalError as error:
                messages.append(str(error).splitlines()[0])
        assert len(messages) == 2 and "is closed" in messages[1], messages
    with tf.Session() as session:
        assert len(session.list_devices()) == 1
        session.run(v.initializer)
        assert session.run(v + 1)[0] == 2
    return messages[1][:300]


def _interrupted(run: Callable[[], Any], seconds: float) -> float:
    """How long a step takes to stop after Ctrl-C."""
    sent = [0.0]

    def interrupt() -> None:
        time.sleep(seconds)
        sent[0] = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        run()
    except KeyboardInterrupt:
        return time.perf_counter() - sent[0]
    raise AssertionError("it was not interrupted")


def long_step() -> str:
    """Ctrl-C in a step of seconds leaves the variables as they were."""
    x = tf.placeholder(tf.float32, [8192, 8192])
    v = tf.Variable(tf.zeros([8192]))
    y = x
    for _ in range(120):
        y = tf.tanh(tf.matmul(y, x))
    update = tf.assign_add(v, tf.reduce_sum(y, 0) * 0 + 1)
    value = np.full((8192, 8192), 1e-4, np.float32)
    with tf.Session() as session:
        session.run(v.initializer)
        start = time.perf_counter()
        session.run(update.op, {x: value})
        start = time.perf_counter()
        session.run(update.op, {x: value})
        whole = time.perf_counter() - start
        took = _interrupted(lambda: session.run(update.op, {x: value}), whole / 4)
        assert session.run(v)[0] == 2
        session.run(update.op, {x: value})
        assert session.run(v)[0] == 3
    return f"a step of {whole:.2f} s stopped in {took * 1e3:.0f} ms"


def endless_loop() -> str:
    """Ctrl-C in a loop that never ends; the session goes on."""
    x = tf.placeholder(tf.float32, [1000])
    y = tf.while_loop(lambda a: tf.reduce_sum(a) > -1.0, lambda a: tf.abs(tf.sin(a)), [x])
    z = x * 2
    with tf.Session() as session:
        ones = np.ones(1000, np.float32)
        took = _interrupted(lambda: session.run(y, {x: ones}), 2.0)
        assert session.run(z, {x: ones})[0] == 2
    return f"stopped in {took * 1e3:.0f} ms"


def _train() -> str:
    """Some steps of a small network; for processes that share a GPU."""
    x, labels = tf.placeholder(tf.float32, [64, 784]), tf.placeholder(tf.int32, [64])
    hidden = tf.layers.dense(x, 100, tf.nn.relu)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, tf.layers.dense(hidden, 10))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    feeds = {x: np.ones((64, 784), np.float32), labels: np.arange(64) % 10}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = [session.run([loss, train], feeds)[0] for _ in range(30)]
        used = gpu_of(session).shared.memory.pool.reserved
    assert losses[-1] < losses[0]
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {used >> 20} MiB of the GPU"


def two_processes() -> str:
    """Two processes train on one GPU at once."""
    command = [sys.executable, __file__, "--in-process", "_train"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    texts = [each.communicate(timeout=_SECONDS)[0].strip() for each in running]
    assert all(each.returncode == 0 for each in running), texts
    return "; ".join(texts)


def hidden_gpu() -> str:
    """A GPU that CUDA_VISIBLE_DEVICES hides is not there: what asks for it runs on the CPU, and a
    warning says so."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tf.device("/gpu:0"):
        y = tf.placeholder_with_default([1.0], [1]) + 1
    assert not tf.test.is_gpu_available()
    session = tf.Session()
    assert len(session.list_devices()) == 1
    assert session.run(y)[0] == 2
    return "ran on the CPU"


CASES = [out_of_memory, illegal_address, long_step, endless_loop, two_processes, hidden_gpu]


def main(names: list[str]) -> int:
    """Run cases, each in a process; how many failed."""
    failed = 0
    for case in [one for one in CASES if not names or one.__name__ in names]:
        command = [sys.executable, __file__, "--in-process", case.__name__]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
            text = done.stdout if done.returncode == 0 else done.stdout + done.stderr[-1500:]
            ok = done.returncode == 0
        except subprocess.TimeoutExpired:
            text, ok = f"no end after {_SECONDS} s", False
        failed += not ok
        print(f"{'ok' if ok else 'FAILED':7} {case.__name__:16} {text.strip()}", flush=True)
    return failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-process"]:
        print(globals()[sys.argv[2]]())
    else:
        sys.exit(main(sys.argv[1:]))
