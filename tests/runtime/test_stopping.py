"""Steps that are stopped on their way: by Ctrl-C, a deadline or the end of their session.

How far a step came is told by variables that count its kernels and iterations.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.runtime.pausing import Pauses, impatient
from thalweg import errors
from thalweg.device.cpu.program import Program
from thalweg.runtime.dataflow.run import Run

COUNTERS = 12
SHAPE = (40, 30)
FOREVER = 10**15


@pytest.fixture
def session() -> Iterator[tf.Session]:
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pauses]:
    with impatient():
        yield Pauses(monkeypatch)


class Chain:
    """A step of many kernels, one after the other: products, and counters between them."""

    def __init__(self, session: tf.Session) -> None:
        self.x = tf.placeholder(tf.float32, [16, 16])
        self.counters = [tf.Variable(tf.zeros(SHAPE)) for _ in range(COUNTERS)]
        self.y = self.x
        for counter in self.counters:
            self.y = tf.matmul(self.y, self.x)
            with tf.control_dependencies([self.y]):
                counted = counter.assign_add(tf.ones(SHAPE))
            with tf.control_dependencies([counted]):
                self.y = tf.identity(self.y)
        self.feed = {self.x: np.eye(16, dtype=np.float32)}
        self._session = session
        session.run(tf.global_variables_initializer())

    def run(self, **options: Any) -> None:
        found = self._session.run(self.y, self.feed, **options)
        np.testing.assert_array_equal(found, np.eye(16))

    def counts(self) -> list[int]:
        """How often each counter was counted on, all of its elements."""
        values = self._session.run(self.counters)
        assert all(np.all(value == value[0, 0]) for value in values), "an update is half done"
        return [int(value[0, 0]) for value in values]


def counting_loop(count: tf.Variable, most: int = FOREVER) -> tf.Tensor:
    """A native loop that counts its iterations in a variable."""

    def body(i: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([count.assign_add(1)]):
            return i + 1

    return tf.while_loop(lambda i: i < most, body, [tf.constant(0, tf.int64)])


def when(condition: Callable[[], bool], then: Callable[[], object]) -> threading.Thread:
    """Do something from another thread as soon as a condition holds."""

    def wait() -> None:
        while not condition():
            pass
        then()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def press() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


class TestStraightLine:
    def test_pauses_change_nothing(self, session: tf.Session, pauses: Pauses) -> None:
        chain = Chain(session)
        for _ in range(3):
            chain.run()
        assert chain.counts() == [3] * COUNTERS
        assert pauses.count > COUNTERS

    @pytest.mark.parametrize("place", [1, 5, 9])
    def test_ctrl_c_leaves_between_kernels(
        self, session: tf.Session, pauses: Pauses, place: int
    ) -> None:
        chain = Chain(session)
        chain.run()
        chain.run()
        pauses.interrupt_at(place)
        with pytest.raises(KeyboardInterrupt):
            chain.run()
        counts = chain.counts()
        assert counts == sorted(counts, reverse=True)
        assert counts[-1] == 2, "the step was not left before its end"
        chain.run()
        assert chain.counts() == [count + 1 for count in counts]

    def test_interrupted_again_and_again(self, session: tf.Session, pauses: Pauses) -> None:
        chain = Chain(session)
        chain.run()
        for index in range(1, 40):
            before = chain.counts()
            pauses.interrupt_at(1 + index % 11)
            with pytest.raises(KeyboardInterrupt):
                chain.run()
            assert {now - then for now, then in zip(chain.counts(), before, strict=True)} <= {0, 1}
        before = chain.counts()
        chain.run()
        assert chain.counts() == [count + 1 for count in before]

    def test_a_handler_that_does_not_raise_lets_the_step_go_on(
        self, session: tf.Session, pauses: Pauses
    ) -> None:
        chain, heard = Chain(session), list[int]()
        chain.run()
        before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
        try:
            pauses.interrupt_at(4)
            chain.run()
        finally:
            signal.signal(signal.SIGINT, before)
        assert heard == [signal.SIGINT]
        assert chain.counts() == [2] * COUNTERS

    def test_a_handler_may_run_the_same_step(self, session: tf.Session, pauses: Pauses) -> None:
        chain = Chain(session)
        chain.run()
        before = signal.signal(signal.SIGINT, lambda *_: chain.run())
        try:
            pauses.interrupt_at(1)
            chain.run()
        finally:
            signal.signal(signal.SIGINT, before)
        session.run(chain.y, chain.feed)

    def test_by_a_deadline(self, session: tf.Session, pauses: Pauses) -> None:
        chain = Chain(session)
        options = tf.RunOptions(timeout_in_ms=100_000)
        chain.run(options=options)
        late = errors.DeadlineExceededError(None, None, "late")
        pauses.at(4, lambda cancellation: cancellation.cancel(late))
        with pytest.raises(tf.errors.DeadlineExceededError, match="late"):
            chain.run(options=options)
        assert chain.counts()[-1] == 1
        chain.run(options=options)

    def test_traced_steps_too(self, session: tf.Session, pauses: Pauses) -> None:
        chain = Chain(session)
        traced = {"options": tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)}
        chain.run(run_metadata=tf.RunMetadata(), **traced)
        pauses.interrupt_at(4)
        with pytest.raises(KeyboardInterrupt):
            chain.run(run_metadata=tf.RunMetadata(), **traced)
        assert chain.counts()[-1] == 1
        metadata = tf.RunMetadata()
        chain.run(run_metadata=metadata, **traced)
        assert metadata.step_stats.dev_stats

    def test_by_the_end_of_the_session(self, session: tf.Session, pauses: Pauses) -> None:
        chain = Chain(session)
        chain.run()
        call = session.make_callable(chain.y, [chain.x])
        call(np.eye(16))
        pauses.at(3, lambda _: session.close())
        with pytest.raises(tf.errors.CancelledError, match="closed"):
            call(np.eye(16))

    def test_a_callable(self, session: tf.Session, pauses: Pauses) -> None:
        chain = Chain(session)
        call = session.make_callable(chain.y, [chain.x])
        call(np.eye(16))
        pauses.interrupt_at(3)
        with pytest.raises(KeyboardInterrupt):
            call(np.eye(16))
        assert chain.counts()[-1] == 1

    def test_frames_of_stopped_steps_are_not_used_again(
        self, session: tf.Session, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps, made = list[Program](), Program.__init__

        def noted(step: Program, *arguments: Any) -> None:
            made(step, *arguments)
            steps.append(step)

        monkeypatch.setattr(Program, "__init__", noted)
        chain = Chain(session)
        chain.run()
        for _ in range(5):
            pauses.interrupt_at(3)
            with pytest.raises(KeyboardInterrupt):
                chain.run()
            chain.run()
        assert max(len(step._idle) for step in steps) == 1


class TestFirstValues:
    def test_a_stopped_initializer_sets_nothing(self, session: tf.Session, pauses: Pauses) -> None:
        variables = [tf.Variable(tf.random_normal([64, 64])) for _ in range(COUNTERS)]
        init = tf.global_variables_initializer()
        session.run(init)
        config = tf.ConfigProto(intra_op_parallelism_threads=1)  # a thread alone stops anywhere
        fresh = tf.Session(graph=session.graph, config=config)
        fresh.run(variables[0].initializer)
        pauses.interrupt_at(3)
        with pytest.raises(KeyboardInterrupt):
            fresh.run(init)
        missing = fresh.run(tf.report_uninitialized_variables())
        assert len(missing) == COUNTERS - 1
        fresh.run(init)
        assert all(np.isfinite(value).all() for value in fresh.run(variables))

    def test_a_failed_change_of_shape_leaves_the_value(self, session: tf.Session) -> None:
        variable = tf.Variable(tf.ones([3]), validate_shape=False)
        index = tf.placeholder(tf.int32, [4])
        other = tf.assign(variable, tf.gather(tf.zeros([5]), index), validate_shape=False)
        session.run(variable.initializer)
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(other, {index: [0, 1, 2, 7]})
        np.testing.assert_array_equal(session.run(variable), np.ones(3))


class TestLoops:
    def test_many_light_iterations(self, session: tf.Session) -> None:
        count = tf.Variable(np.int64(0))
        loop = counting_loop(count)
        session.run(count.initializer)
        thread = when(lambda: session.run(count) > 0, press)
        with pytest.raises(KeyboardInterrupt):
            session.run(loop)
        thread.join()
        reached = session.run(count)
        assert 0 < reached < FOREVER
        assert session.run(count.assign_add(1)) == reached + 1

    def test_heavy_iterations(self, session: tf.Session, pauses: Pauses) -> None:
        count, x = tf.Variable(np.int64(0)), tf.placeholder(tf.float32, [64, 64])

        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            y = tf.tanh(tf.matmul(y, x))
            with tf.control_dependencies([count.assign_add(1)]):
                return i + 1, y

        loop = tf.while_loop(lambda i, _: i < 100, body, [0, x])
        session.run(count.initializer)
        array = np.eye(64, dtype=np.float32)
        whole = session.run(loop, {x: array})
        assert session.run(count) == 100
        pauses.interrupt_at(50)
        with pytest.raises(KeyboardInterrupt):
            session.run(loop, {x: array})
        assert 100 < session.run(count) < 200
        again = session.run(loop, {x: array})
        np.testing.assert_array_equal(whole[1], again[1])

    def test_off_the_main_thread_by_a_deadline(self, session: tf.Session) -> None:
        count, failures = tf.Variable(np.int64(0)), list[Exception]()
        loop = counting_loop(count)
        session.run(count.initializer)

        def run() -> None:
            try:
                session.run(loop, options=tf.RunOptions(timeout_in_ms=20))
            except tf.errors.DeadlineExceededError as error:
                failures.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(failures) == 3

    def test_off_the_main_thread_by_the_end_of_the_session(self) -> None:
        with tf.Graph().as_default():
            session, failures = tf.Session(), list[Exception]()
            count = tf.Variable(np.int64(0))
            loop = counting_loop(count)
            session.run(count.initializer)

            def run() -> None:
                try:
                    session.run(loop)
                except tf.errors.CancelledError as error:
                    failures.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            while not session.run(count):
                pass
            session.close()
            thread.join()
            assert len(failures) == 1


class TestEager:
    def test_an_interrupted_step_is_not_begun_again(self, pauses: Pauses) -> None:
        with tf.eager_mode():
            x, before = tf.constant(np.eye(16, dtype=np.float32)), tf.Variable(0)
            y = _product(x, 12)
            np.testing.assert_array_equal(y.numpy(), np.eye(16))
            before.assign_add(1)
            y = _product(x, 12)
            pauses.interrupt_at(3)
            with pytest.raises(KeyboardInterrupt):
                y.numpy()
            assert pauses.count == 3, "it was run again"
            with pytest.raises(tf.errors.CancelledError, match="interrupted"):
                y.numpy()
            assert (before + 1).numpy() == 2

    def test_a_function(self, pauses: Pauses) -> None:
        with tf.eager_mode():
            count = tf.Variable(np.int64(0))

            @tf.function
            def counting(most: tf.Tensor) -> Any:
                def body(i: tf.Tensor) -> tf.Tensor:
                    with tf.control_dependencies([count.assign_add(1)]):
                        return i + 1

                return tf.while_loop(lambda i: i < most, body, [tf.constant(0, tf.int64)])

            counting(tf.constant(100, tf.int64))
            assert count.numpy() == 100
            pauses.interrupt_at(20)
            with pytest.raises(KeyboardInterrupt):
                counting(tf.constant(FOREVER, tf.int64))
                count.numpy()
            assert 100 < count.numpy() < FOREVER


def _product(x: tf.Tensor, times: int) -> tf.Tensor:
    y = x
    for _ in range(times):
        y = tf.matmul(y, x)
    return y


class TestData:
    def test_functions_of_a_pipeline(self, session: tf.Session, pauses: Pauses) -> None:
        def mapped(i: tf.Tensor) -> tf.Tensor:
            most = tf.where(tf.equal(i, 1), tf.constant(FOREVER, tf.int64), i)
            return tf.while_loop(lambda j: j < most, lambda j: j + 1, [tf.constant(0, tf.int64)])

        data = tf.data.Dataset.range(3).map(mapped)
        element = data.make_one_shot_iterator().get_next()
        assert session.run(element) == 0
        pauses.interrupt_at(20)
        with pytest.raises(KeyboardInterrupt):
            session.run(element)
        assert session.run(element) == 2


def test_an_interrupted_step_ends_although_another_thread_continues_it(
    session: tf.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slow calls leave the caller's thread; the last of their threads runs what follows."""
    calls, result, end = [0], Run.result, Run.end
    ended: list[Run] = []

    def counted(self: Run, *given: Any) -> Any:
        calls[0] += 1
        if calls[0] == 100:
            _thread.interrupt_main()
        return result(self, *given)

    def noted(self: Run, error: BaseException | None) -> None:
        ended.append(self)
        end(self, error)

    both = threading.Barrier(2)

    def meet(x: Any) -> Any:
        both.wait(60)
        return x

    x = tf.placeholder(tf.string, [])
    v = tf.Variable("before", dtype=tf.string)
    session.run(v.initializer)
    one, other = (tf.py_func(meet, [tf.string_join([x, end])], tf.string) for end in "ab")

    def body(i: Any, text: Any) -> Any:
        return i + 1, tf.as_string(tf.string_to_number(text) + 1.0)

    start = [0, tf.as_string(tf.size(tf.string_split([one, other])))]
    last = tf.while_loop(lambda i, _: i >= 0, body, start)[1]
    monkeypatch.setattr(Run, "result", counted)
    monkeypatch.setattr(Run, "end", noted)
    with pytest.raises(KeyboardInterrupt):
        session.run(v.assign(last), {x: "x"})
    assert len(ended) == 2  # the runs of the loop and of the step
    assert session.run(v) == b"before"
