"""The dataflow executor: frames, iterations that overlap, blocking calls, ways to stop it."""

import signal
import threading
import weakref

import numpy as np
import pytest

import thalweg as tf
from thalweg.runtime.dataflow.tokens import VertexKind

pytestmark = pytest.mark.usefixtures("on_executor")


def called(function, inputs, dtype=tf.int32):
    """A blocking call of a pure Python function that returns a scalar."""
    result = tf.py_func(function, inputs, dtype, stateful=False)
    result.set_shape([])
    return result


def token_graph(sess, fetch):
    """The token graph of the only control node of a step."""
    calls = [step.call for step in sess.plan(fetch).plan.instructions]
    (dataflow,) = [call.dataflow for call in calls if hasattr(call, "dataflow")]
    return dataflow.graph


class TestOverlap:
    def test_iterations_run_at_once(self, sess):
        """No iteration's call returns before three iterations have called."""
        together = threading.Barrier(3)

        def meet(value):
            together.wait(60)
            return value

        def body(i, total):
            return i + 1, total + called(meet, [i])

        _, total = tf.while_loop(lambda i, _: i < 3, body, [0, 0], parallel_iterations=3)
        assert sess.run(total) == 3

    @pytest.mark.parametrize("limit", [1, 2, 4])
    def test_no_more_than_asked_for(self, sess, limit):
        """An iteration begins when all are over that are `limit` or more before it."""
        over, too_early = set(), []

        def work(i):
            too_early.extend(set(range(i - limit + 1)) - over)
            over.add(int(i))
            return i

        def body(i, total):
            return i + 1, total + called(work, [i])

        _, total = tf.while_loop(lambda i, _: i < 20, body, [0, 0], parallel_iterations=limit)
        assert sess.run(total) == 190
        assert not too_early

    def test_a_later_iteration_may_be_done_first(self, sess):
        released, order = threading.Event(), []

        def work(i):
            if i == 0:
                assert released.wait(60)
            order.append(int(i))
            if i == 3:
                released.set()
            return i

        def body(i, total):
            return i + 1, total + called(work, [i])

        _, total = tf.while_loop(lambda i, _: i < 4, body, [0, 0])
        assert sess.run(total) == 6
        assert order.index(3) < order.index(0)

    def test_branches_wait_for_each_other(self, sess):
        ready = threading.Event()

        def wait(value):
            assert ready.wait(60)
            return value

        def release(value):
            ready.set()
            return value

        a = tf.cond(tf.constant(True), lambda: called(wait, [1]), lambda: 0)
        b = tf.cond(tf.constant(True), lambda: called(release, [2]), lambda: 0)
        assert sess.run([a, b]) == [1, 2]

    def test_a_queue_feeds_a_loop(self, sess):
        queue = tf.FIFOQueue(10, tf.int32, shapes=[[]])
        put = queue.enqueue_many([[1, 2, 3, 4]])

        def body(i, total):
            return i + 1, total + queue.dequeue()

        _, total = tf.while_loop(lambda i, _: i < 4, body, [0, 0])
        assert sess.run([total, put])[0] == 10


class TestOrder:
    @pytest.mark.parametrize("is_explicit", [False, True])
    def test_a_conditional_waits_for_a_loop_that_it_may_not_use(self, sess, is_explicit):
        """The branch that writes starts after the reads of a loop whose result it does not take."""
        v, chooses = tf.Variable(1.0), tf.placeholder(tf.bool, [])

        def reads(i, _):
            return i + 1, v.read_value() * 0.5

        def inside():
            read = tf.while_loop(lambda i, _: i < 2, reads, [0, 0.0])[1]
            with tf.control_dependencies([read] if is_explicit else []):
                write = tf.cond(chooses, lambda: read * 1.0, lambda: v.assign(7.0) * 1.0)
            return read, write

        results = tf.cond(chooses, lambda: (0.0, 0.0), inside)
        sess.run(v.initializer)
        assert sess.run(results, {chooses: False}) == (0.5, 7.0)

    def test_side_effects_come_in_order(self, sess):
        seen = []
        variable = tf.Variable(0)

        def body(i):
            with tf.control_dependencies([tf.assign(variable, i * i)]):
                read = variable.read_value()
            with tf.control_dependencies([tf.py_func(lambda v: seen.append(int(v)), [read], [])]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 5, body, [0])
        sess.run(variable.initializer)
        sess.run(loop)
        assert seen == [0, 1, 4, 9, 16]
        assert sess.run(variable) == 16

    def test_what_follows_a_loop_waits_for_its_effects(self, sess):
        variable = tf.Variable(0)

        def body(i):
            with tf.control_dependencies([tf.assign_add(variable, i)]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 5, body, [0])
        with tf.control_dependencies([loop]):
            after = variable.read_value()
        sess.run(variable.initializer)
        assert sess.run(after) == 10

    def test_what_comes_before_a_loop(self, sess):
        variable = tf.Variable(1)
        with tf.control_dependencies([tf.assign(variable, 5)]):
            result = tf.while_loop(lambda i: i < variable.read_value(), lambda i: i + 1, [0])
        sess.run(variable.initializer)
        assert sess.run(result) == 5

    def test_a_constant_in_a_body_waits_for_what_is_outside(self, sess):
        variable = tf.Variable(0)
        assign = tf.assign(variable, 3)

        def branch():
            with tf.control_dependencies([assign]):
                return tf.constant(1)

        result = tf.cond(tf.constant(True), branch, lambda: tf.constant(2))
        sess.run(variable.initializer)
        assert sess.run(result) == 1
        assert sess.run(variable) == 3


class TestStopping:
    def infinite(self):
        return tf.while_loop(
            lambda i: i >= 0, lambda i: i * 1, [tf.placeholder_with_default(1, [])]
        )

    def test_by_the_timeout_of_a_run(self, sess):
        loop = self.infinite()
        with pytest.raises(tf.errors.DeadlineExceededError):
            sess.run(loop, options=tf.RunOptions(timeout_in_ms=20))
        assert sess.run(tf.constant(4)) == 4

    def test_by_the_timeout_of_the_session(self):
        with tf.Graph().as_default():
            loop = self.infinite()
            config = tf.ConfigProto(operation_timeout_in_ms=20)
            with tf.Session(config=config) as sess:
                with pytest.raises(tf.errors.DeadlineExceededError):
                    sess.run(loop)
                assert sess.run(tf.constant(4)) == 4

    def test_by_closing_the_session(self):
        with tf.Graph().as_default():
            started = threading.Event()

            def body(i):
                return called(lambda v: (started.set(), v)[1], [i])

            loop = tf.while_loop(lambda i: i >= 0, body, [tf.placeholder_with_default(1, [])])
            sess, failures = tf.Session(), []

            def run():
                try:
                    sess.run(loop)
                except tf.errors.CancelledError as error:
                    failures.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            assert started.wait(60)
            sess.close()
            thread.join(60)
            assert len(failures) == 1

    def test_by_the_keyboard(self, sess):
        def interrupt(value):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            return value

        def body(i):
            return tf.cond(tf.equal(i, 50), lambda: called(interrupt, [i]), lambda: i) + 1

        loop = tf.while_loop(lambda i: i >= 0, body, [tf.placeholder_with_default(1, [])])
        with pytest.raises(KeyboardInterrupt):
            sess.run(loop)
        assert sess.run(tf.constant(4)) == 4

    def test_blocked_calls_are_woken_by_the_keyboard(self, sess):
        queue = tf.FIFOQueue(10, tf.int32, shapes=[[]])
        other = tf.FIFOQueue(10, tf.int32, shapes=[[]])
        ready = threading.Event()

        def body(i):
            with tf.control_dependencies([tf.py_func(lambda: ready.set(), [], [])]):
                return i + queue.dequeue() + other.dequeue()

        loop = tf.while_loop(lambda i: i < 5, body, [0])

        def interrupt():
            assert ready.wait(60)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            sess.run(loop)
        thread.join(60)
        sess.run(queue.enqueue([3]))
        assert sess.run(queue.size()) == 1  # nobody waits for it any more


class TestErrors:
    def test_the_first_error_is_attributed_to_its_node(self, sess):
        def body(i):
            with tf.control_dependencies([tf.Assert(i < 3, ["too far", i], name="guard")]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 10, body, [0])
        with pytest.raises(tf.errors.InvalidArgumentError, match="too far") as caught:
            sess.run(loop)
        assert "guard" in caught.value.op.name
        assert "test_executor.py" in str(caught.value)
        assert sess.run(tf.constant(4)) == 4

    def test_an_error_wakes_calls_that_wait(self, sess):
        queue = tf.FIFOQueue(10, tf.int32, shapes=[[]])

        def fail(value):
            raise ValueError("no")

        def body(i, a, b):
            return i + 1, a + queue.dequeue(), b + called(fail, [i])

        loop = tf.while_loop(lambda i, *_: i < 3, body, [0, 0, 0])
        with pytest.raises(tf.errors.InvalidArgumentError, match="no"):
            sess.run(loop)
        assert sess.run(tf.constant(4)) == 4

    def test_only_the_branch_that_is_taken_fails(self, sess):
        x = tf.placeholder(tf.int32, [])
        guarded = tf.cond(x > 0, lambda: 12 // x, lambda: tf.constant(-1))
        assert sess.run(guarded, {x: 0}) == -1
        assert sess.run(guarded, {x: 5}) == 2


@pytest.mark.parametrize("is_own", [False, True])
def test_a_write_waits_for_the_copies_of_a_read_in_all_regions(sess, is_own):
    """Two regions read the variable; the write needs the value of one, or `is_own` in that one."""
    v = tf.Variable(np.ones(4, np.float32))
    first, second = (tf.FIFOQueue(1, [tf.float32], [[4]]) for _ in range(2))
    fill_first, fill_second = (queue.enqueue(tf.zeros(4)) for queue in (first, second))

    def body(i, total):
        read = v.read_value()
        late, early = first.dequeue(), second.dequeue()
        between = tf.py_func(lambda x: x, [early * 2.0], tf.float32)
        between.set_shape([4])
        value = between + late + read if is_own else between + read + late
        with tf.control_dependencies([tf.assign(v, value + 100.0)]):
            following = i + 1
        return following, total + (read + late)

    _, total = tf.while_loop(lambda i, _: i < 1, body, [0, tf.zeros(4)])
    sess.run([v.initializer, fill_second])
    threading.Timer(0.1, sess.run, [fill_first]).start()
    assert sess.run(total).tolist() == [1.0] * 4
    assert sess.run(v).tolist() == [101.0] * 4


class TestTokenGraphs:
    def test_a_conditional_is_switches_and_a_merge(self, sess):
        x = tf.placeholder_with_default(2.0, [])
        result = tf.cond(x > 1.0, lambda: x * 2.0, lambda: x)
        sess.run(result)
        kinds = [vertex.kind for vertex in token_graph(sess, result).vertices]
        assert kinds.count(VertexKind.MERGE) == 1
        assert VertexKind.SWITCH in kinds
        assert VertexKind.ENTER not in kinds

    def test_a_loop_is_a_frame(self, sess):
        x = tf.placeholder_with_default(2.0, [])
        result = tf.while_loop(lambda y: y < 100.0, lambda y: y * x, [x])
        sess.run(result)
        graph = token_graph(sess, result)
        kinds = [vertex.kind for vertex in graph.vertices]
        for kind in (
            VertexKind.MERGE,
            VertexKind.EXIT,
            VertexKind.NEXT_ITERATION,
            VertexKind.LOOP_COND,
        ):
            assert kinds.count(kind) == 1
        enters = [vertex for vertex in graph.vertices if vertex.kind is VertexKind.ENTER]
        assert [enter.is_constant for enter in enters] == [False, True]
        assert enters[0].loop.parallel_iterations == 10

    def test_a_loop_that_writes_is_sequential(self, sess):
        variable = tf.Variable(0)

        def body(i):
            with tf.control_dependencies([tf.assign_add(variable, 1)]):
                return i + 1

        result = tf.while_loop(lambda i: i < 3, body, [0])
        sess.run(variable.initializer)
        sess.run(result)
        (loop,) = {v.loop for v in token_graph(sess, result).vertices if v.loop is not None}
        assert loop.parallel_iterations == 1


def test_many_threads_run_one_loop(sess):
    x = tf.placeholder(tf.int32, [])
    loop = tf.while_loop(lambda i, _: i < x, lambda i, t: (i + 1, t + i), [0, 0])[1]
    results = {}

    def run(limit):
        results[limit] = int(sess.run(loop, {x: limit}))

    threads = [threading.Thread(target=run, args=(limit,)) for limit in range(10, 50, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {limit: sum(range(limit)) for limit in range(10, 50, 10)}


def test_values_are_freed(sess):
    """A value of one iteration does not outlive the next."""
    alive, counts = weakref.WeakValueDictionary(), []

    def make(i, x):
        counts.append(len(alive))
        value = np.full(1000, i, np.float32)
        alive[int(i)] = value
        return value

    def body(i, x):
        made = tf.py_func(make, [i, x], tf.float32, stateful=False)
        made.set_shape([1000])
        return i + 1, made

    loop = tf.while_loop(lambda i, _: i < 50, body, [0, tf.zeros([1000])], parallel_iterations=1)
    assert sess.run(loop[1])[0] == 49.0
    assert 1 <= max(counts) <= 2


def test_partial_runs_have_loops(sess):
    x, y = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    loop = tf.while_loop(lambda v: v < 100.0, lambda v: v * x, [x])
    total = loop + y
    handle = sess.partial_run_setup([loop, total], [x, y])
    assert sess.partial_run(handle, loop, {x: 2.0}) == 128.0
    assert sess.partial_run(handle, total, {y: 1.0}) == 129.0


def test_plans_say_what_a_loop_saves(sess):
    x = tf.placeholder(tf.float32, [3], name="x")
    _, y = tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v * x), [0, x])
    (gradient,) = tf.gradients(y, x)
    forward, both = str(sess.plan(y, {x: np.ones(3)})), str(sess.plan(gradient, {x: np.ones(3)}))
    assert "saves nothing" in forward
    assert "(per iteration)" in both
    assert "body:" in both
