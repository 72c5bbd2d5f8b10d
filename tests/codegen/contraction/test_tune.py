"""Tuned schedules: what is tuned, who uses it, and what is left alone."""

import os
import subprocess
import sys
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

import thalweg as tf
from tests.codegen.contraction.contractions import matmul
from thalweg.codegen import kernels
from thalweg.codegen.contraction import tune as tuned
from thalweg.codegen.contraction.plan import schedule, schedules
from thalweg.codegen.contraction.schedule import Schedule
from thalweg.codegen.contraction.tune import Winners, parsed_like
from thalweg.codegen.emit import emit
from thalweg.codegen.kernels import keep_schedule, key_of, request, tuned_schedule
from thalweg.codegen.machine import host, named
from thalweg.device import tuning
from thalweg.device.cpu import tuner
from thalweg.platform.disk_cache import Disk

HERE = host()
SAMPLE = Schedule(1, 0, 1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Winners of this test alone."""
    monkeypatch.setitem(tuned._process, "winners", Winners(Disk(tmp_path)))
    return tmp_path


def another(kernel):
    """A schedule that is not the likely one."""
    likely = schedule(kernel, HERE)
    return next(made for made in schedules(kernel, HERE) if made != likely)


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_winners_are_found_again(tmp_path):
    made = replace(another(matmul(20, 70, 30)), prefetch_steps=4)
    Winners(Disk(tmp_path)).keep("key", HERE, made)
    later = Winners(Disk(tmp_path))
    assert later.find("key", HERE, SAMPLE) == made
    assert later.find("other", HERE, SAMPLE) is None
    assert later.find("key", named("aarch64"), SAMPLE) is None


@pytest.mark.parametrize("damage", [b"", b"{}", b"thalweg object 2 and nothing sound"])
def test_a_damaged_file_counts_as_none(tmp_path, damage):
    Winners(Disk(tmp_path)).keep("key", HERE, another(matmul(20, 70, 30)))
    for path in files(tmp_path):
        path.write_bytes(damage)
    assert Winners(Disk(tmp_path)).find("key", HERE, SAMPLE) is None


@pytest.mark.parametrize(
    "content",
    [
        b"no json",
        b"[1]",
        b"{}",
        b'{"vectors": 2, "tile_at": 0, "tile": "3"}',
        b'{"vectors": 2, "tile_at": 0, "tile": 3, "colour": 1}',
        b"\xff",
    ],
)
def test_only_schedules_are_read(content):
    assert parsed_like(content, SAMPLE) is None


def test_without_a_disk_winners_live_in_memory():
    winners, made = Winners(None), another(matmul(20, 70, 30))
    assert winners.find("key", HERE, SAMPLE) is None
    winners.keep("key", HERE, made)
    assert winners.find("key", HERE, SAMPLE) == made


def test_requests_use_what_is_tuned_schedule(folder):
    kernel = matmul(20, 70, 30)
    before, made = request(kernel, HERE), another(kernel)
    keep_schedule(kernel, HERE, made)
    after = request(kernel, HERE)
    assert tuned_schedule(matmul(20, 70, 30), HERE) == made
    assert tuned_schedule(matmul(20, 71, 30), HERE) is None
    assert after.key != before.key
    assert after.make().text == emit(kernel, HERE, made).text != before.make().text


def step(session):
    """A step with two products and a variable that it changes."""
    x = tf.placeholder(tf.float32, [20, 70])
    w = tf.Variable(np.linspace(-1, 1, 70 * 40, dtype=np.float32).reshape(70, 40))
    loss = tf.reduce_sum(tf.square(tf.matmul(x, w)))
    train = tf.train.GradientDescentOptimizer(1e-4).minimize(loss)
    session.run(tf.global_variables_initializer())
    return w, [train, loss], {x: np.linspace(0, 1, 1400, dtype=np.float32).reshape(20, 70)}


def test_tune(folder):
    with tf.Graph().as_default(), tf.Session() as session:
        w, fetches, feeds = step(session)
        before = session.run(w)
        report = tf.tune(session, fetches, feeds, budget_seconds=60)
        np.testing.assert_array_equal(session.run(w), before)
        plan = session.plan(fetches, feeds)
        products = [k for k in plan.kernels if k.kind == "contraction"]
        assert products and len(report.kernels) == len(products)
        for kernel in products:
            made = tuned_schedule(kernel.kernel, HERE)
            assert made is not None
            assert kernel.emitted.text == emit(kernel.kernel, HERE, made).text
        assert session.run(fetches, feeds)[1] == pytest.approx(
            np.square(next(iter(feeds.values())) @ before).sum(), rel=1e-4
        )
        text = str(report)
        assert "matmul" in text and report.kernels[0].schedule.summary in text


def test_the_tuned_step_is_compiled_anew(folder):
    with tf.Graph().as_default(), tf.Session() as session:
        _, fetches, feeds = step(session)
        session.run(fetches, feeds)
        tf.tune(session, fetches, feeds, budget_seconds=0.1)
        first = session.run(fetches, feeds)[1]
        assert session.run(fetches, feeds)[1] < first


@pytest.mark.parametrize("kind", ["plain", "devices", "loop"])
def test_all_programs_of_a_tuned_step_are_made_anew(folder, kind):
    x = tf.placeholder(tf.float32, [20, 20])
    y = tf.matmul(x, x)
    if kind == "devices":
        with tf.device("/cpu:1"):
            y = tf.matmul(x, y)
    elif kind == "loop":
        y = tf.while_loop(lambda y: tf.reduce_sum(y) < 99, lambda y: tf.matmul(y, x), [y])
    feeds = {x: np.full([20, 20], 0.1, np.float32)}
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        expected = session.run(y, feeds)
        products = [k.kernel for k in session.plan(y, feeds).kernels if k.kind == "contraction"]
        for kernel in products:
            keep_schedule(kernel, HERE, another(kernel))
        tf.tune(session, y, feeds, budget_seconds=0)
        with mock.patch.object(kernels, "tuned_schedule", wraps=tuned_schedule) as asked:
            np.testing.assert_allclose(session.run(y, feeds), expected, rtol=1e-6)
    again = {key_of(call.args[0]) for call in asked.call_args_list}
    assert again >= {key_of(kernel) for kernel in products} != set()


def test_no_time_measures_nothing(folder):
    with tf.Graph().as_default(), tf.Session() as session:
        _, fetches, feeds = step(session)
        assert not tf.tune(session, fetches, feeds, budget_seconds=0).kernels
    assert not files(folder)


def test_steps_tune_themselves_when_asked_to(folder, monkeypatch):
    monkeypatch.setattr(tuning, "TUNES", True)
    monkeypatch.setattr(tuner, "BUDGET", 0.2)
    with tf.Graph().as_default(), tf.Session() as session:
        _, fetches, feeds = step(session)
        session.run(fetches, feeds)
        kernels = [k.kernel for k in session.plan(fetches, feeds).kernels]
        assert any(tuned_schedule(k, HERE) for k in kernels)


_LATER = """
from tests.codegen.contraction.test_tune import HERE, another, emit, keep_schedule, matmul
from tests.codegen.contraction.test_tune import tuned_schedule, request
kernel = matmul(20, 70, 30)
made = tuned_schedule(kernel, HERE)
print(made == another(kernel) and request(kernel, HERE).make() == emit(kernel, HERE, made))
if made is None:
    keep_schedule(kernel, HERE, another(kernel))
"""


def test_later_processes_use_the_winner(tmp_path):
    environment = {**os.environ, "THALWEG_CACHE": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", _LATER],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert said == ["False", "True"]
