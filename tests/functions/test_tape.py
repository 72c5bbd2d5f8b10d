"""Gradients in eager code and in graphs: tapes, derivatives of functions, training loops."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.functions import steps
from thalweg.functions.eager import EAGER


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    with tf.eager_mode():
        yield


def numeric(f: Callable[[np.ndarray[Any, Any]], float], x: Any) -> np.ndarray[Any, Any]:
    """Central differences."""
    x = np.asarray(x, np.float64)
    result = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-6
        result[place] = (f(x + step) - f(x - step)) / 2e-6
    return result


class TestGradientTape:
    @pytest.mark.parametrize("look", [False, True])
    def test_matches_differences(self, look: bool):
        start = np.random.RandomState(0).rand(3, 4)
        weights = np.random.RandomState(1).rand(4, 2)

        def f(x: Any) -> Any:
            hidden = tf.tanh(tf.matmul(x, weights))
            if look:
                hidden.numpy()
            total = tf.reduce_sum(tf.square(hidden) * tf.sin(tf.reduce_sum(x)))
            if look:
                float(total)
            return total + tf.reduce_sum(x[1])

        for _ in range(3):
            x = tf.constant(start)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
            if look:
                float(y)
            actual = tape.gradient(y, x)
            expected = numeric(lambda v: float(f(tf.constant(v))), start)
            np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5, atol=1e-7)

    def test_variables_are_watched_when_they_are_trainable(self):
        v, fixed = tf.Variable(3.0), tf.Variable(2.0, trainable=False)
        with tf.GradientTape() as tape:
            y = v * v * fixed
        assert tape.watched_variables() == (v,)
        first, second = tape.gradient(y, [v, fixed])
        assert float(first) == 12.0 and second is None
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(fixed)
            y = v * fixed
        assert [g if g is None else float(g) for g in tape.gradient(y, [v, fixed])] == [None, 3.0]

    def test_what_nobody_watches_has_no_gradient(self):
        x, y = tf.constant(2.0), tf.constant(3.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            z = x * y
        assert tape.gradient(z, [x, y], unconnected_gradients="zero")[1].numpy() == 0.0
        with tf.GradientTape() as tape:
            tape.watch(x)
            z = x * y
        assert tape.gradient(z, {"x": x, "y": y})["y"] is None

    def test_what_came_before_is_a_constant(self):
        x = tf.constant(3.0)
        before = x * 2
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = before * x
        assert float(tape.gradient(y, x)) == 6.0

    def test_the_gradient_of_a_target_that_is_a_source_is_its_seed(self):
        for scale in (1.0, 5.0):  # the second call is recorded as the first one
            x = tf.constant(np.full(20, scale))
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x * 2
            seed = tf.constant(np.full(20, 3 * scale))
            dy, dx = tape.gradient(y, [y, x], output_gradients=seed)
            np.testing.assert_array_equal(dy.numpy(), np.full(20, 3 * scale))
            np.testing.assert_array_equal(dx.numpy(), np.full(20, 6 * scale))

    def test_intermediates_are_sources_too(self):
        x = tf.constant(3.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            z = y * y
        dx, dy = tape.gradient(z, [x, y])
        assert float(dx) == 108.0 and float(dy) == 18.0

    def test_several_targets_are_summed_and_weighted(self):
        x = tf.constant([1.0, 2.0])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y, z = x * x, x * 3
        assert tape.gradient([y, z], x).numpy().tolist() == [5.0, 7.0]
        weighted = tape.gradient([y, z], x, output_gradients=[[1.0, 0.0], [10.0, 10.0]])
        assert weighted.numpy().tolist() == [32.0, 30.0]

    def test_is_used_once_unless_it_is_persistent(self):
        x = tf.constant(2.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        tape.gradient(y, x)
        with pytest.raises(RuntimeError, match="persistent"):
            tape.gradient(y, x)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
            z = y * y
        assert float(tape.gradient(y, x)) == 4.0
        assert float(tape.gradient(z, x)) == 32.0
        assert float(tape.gradient(z, y)) == 8.0

    @pytest.mark.parametrize("look", [False, True])
    def test_nests(self, look: bool):
        x = tf.constant(3.0)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = x * x
                if look:
                    float(y)
                y = y * x
            first = inner.gradient(y, x)
            if look:
                float(first)
        second = outer.gradient(first, x)
        assert float(first) == 27.0 and float(second) == 18.0

    def test_stops_and_resets(self):
        x = tf.constant(3.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            with tape.stop_recording():
                fixed = x * x * x
            y = y + fixed * x
        assert float(tape.gradient(y, x)) == 33.0
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            tape.reset()
            tape.watch(x)
            z = y * x
        assert float(tape.gradient(z, x)) == 9.0

    def test_slices_stay_slices(self):
        v = tf.Variable([[1.0], [2.0], [3.0]])
        for rows in ([0, 2], [1, 1]):
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(tf.gather(v, rows) * 2)
            actual = tape.gradient(y, v)
            assert isinstance(actual, tf.IndexedSlices)
            assert actual.indices.numpy().tolist() == rows
            assert tf.convert_to_tensor(actual).numpy().sum() == 4.0

    def test_a_variable_that_changes_after_it_was_read(self):
        v = tf.Variable(3.0)
        with tf.GradientTape() as tape:
            y = v * v
            float(y)
            v.assign(100.0)
            z = y * 2
        assert float(tape.gradient(z, v)) == 12.0 and v.numpy() == 100.0

    def test_gradients_of_a_users_own(self):
        @tf.custom_gradient
        def scaled(x: Any) -> Any:
            return x * x, lambda dy: dy * scale * x

        for scale in (10.0, 20.0, 30.0):
            x = tf.constant(2.0)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = scaled(x) * 3
            assert float(tape.gradient(y, x)) == 6 * scale

    def test_second_gradient_of_an_earlier_step(self):
        x = tf.constant([1.0, 2.0, 3.0])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            a = tf.reduce_sum(x * x)
            a.numpy()
            b = a * 2.0
            b.numpy()
            _ = x * 1.0  # is still pending when the gradient of b takes a
        assert tape.gradient(b, x).numpy().tolist() == [4.0, 8.0, 12.0]
        assert tape.gradient(a, x).numpy().tolist() == [2.0, 4.0, 6.0]

    def test_jacobians(self):
        x = tf.constant([1.0, 2.0])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = tf.stack([x[0] * x[1], x[0] ** 2, x[1]])
        assert tape.jacobian(y, x).numpy().tolist() == [[2.0, 1.0], [2.0, 0.0], [0.0, 1.0]]
        batch = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(batch)
            y = batch * batch
        actual = tape.batch_jacobian(y, batch)
        assert actual.numpy().tolist() == [[[2, 0], [0, 4]], [[6, 0], [0, 8]]]

    def test_keeps_nothing_afterwards(self):
        x = tf.ones([1000])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * 2
            y.numpy()
            z = tf.reduce_sum(y * y)
        array = weakref.ref(y._array)
        tape.gradient(z, x).numpy()
        del y, z
        EAGER.start_lazy_trace()
        gc.collect()
        assert array() is None

    def test_a_step_like_the_last_one_is_cached(self):
        v = tf.Variable(tf.ones([3]))

        def step(data: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(v - data))
            v.assign_sub(0.1 * tape.gradient(loss, v))
            v.numpy()

        step(tf.zeros([3]) + 1.0)
        step(tf.zeros([3]) + 2.0)
        nodes, plans = len(EAGER.trace.nodes), len(steps._steps)
        for i in range(5):
            step(tf.constant(np.full(3, float(i), np.float32)))
        assert len(steps._steps) - plans <= 4
        assert len(EAGER.trace.nodes) - nodes < 150


def _gradients_across_the_border(read: Callable[[str, Any], Any]) -> list[Any]:
    """Gradients of a tape of which an input was computed before it, and a target after it."""
    x = tf.constant(3.0)
    before = read("before", x * 2)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, before])
        y = read("inside", before * x)
        z = read("end", y * before)
        with tape.stop_recording():
            gap = read("gap", y * 5)
        w = z + gap
    after = read("after", z * 2)
    both = [x, before]
    found = [tape.gradient(before, both), tape.gradient(y, both), tape.gradient(z, both)]
    found += [tape.gradient(z, [x]), tape.gradient(z, [x, before, y])]
    found += [tape.gradient(after, both), tape.gradient(w, both), tape.gradient([z, gap], both)]
    return [gradient for row in found for gradient in row]


class TestBorders:
    """Only what was computed while the tape recorded is differentiated."""

    expected = (None, 1.0, 6.0, 3.0, 36.0, 36.0, 36.0, 36.0, 36.0, 6.0, None, None, *[36.0] * 4)

    @pytest.mark.parametrize("place", ["nowhere", "before", "inside", "end", "gap", "after"])
    def test_in_eager_code_wherever_a_value_is_read(self, place: str) -> None:
        def read(at: str, value: Any) -> Any:
            if at == place:
                value.numpy()
            return value

        for _ in range(2):
            found = _gradients_across_the_border(read)
            assert tuple(g if g is None else float(g) for g in found) == self.expected

    def test_in_a_function(self) -> None:
        found = tf.function(lambda: _gradients_across_the_border(lambda _, value: value))()
        assert tuple(g if g is None else float(g) for g in found) == self.expected

    def test_in_a_graph(self) -> None:
        with tf.Graph().as_default(), tf.Session() as session:
            found = _gradients_across_the_border(lambda _, value: value)
            values = [g if g is None else session.run(g) for g in found]
            assert tuple(values) == self.expected


class _Model:
    """A tape of numbers: it records an op if an operand is watched, or computed from a watched one,
    by then."""

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.ops: list[tuple[int, dict[int, float]]] = []  # (result, operand → partial derivative)

    def record(self, result: int, partials: dict[int, float]) -> None:
        if not self.known.isdisjoint(partials):
            self.known.add(result)
            self.ops.append((result, partials))

    def gradient(self, target: int, source: int) -> float | None:
        found = {target: 1.0}
        for result, partials in reversed(self.ops):
            for operand, partial in partials.items() if result in found else ():
                found[operand] = found.get(operand, 0.0) + found[result] * partial
        return found.get(source) if source in self.known else None


def _random_tape(seed: int, read: Callable[[Any], Any]) -> tuple[list[Any], list[float | None]]:
    """The gradients of a random program by a tape, and by the model."""
    random, model = np.random.RandomState(seed), _Model()
    variable = tf.Variable(0.7)
    tensors: list[Any] = [variable, tf.constant(0.3), tf.constant(1.1)]
    numbers = [0.7, 0.3, 1.1]
    tape, is_open = tf.GradientTape(persistent=True), False
    for _ in range(24):
        kind, a, b = random.randint(8), random.randint(len(numbers)), random.randint(len(numbers))
        x, y, i, j = tensors[a], tensors[b], numbers[a], numbers[b]
        if kind == 0:
            (tape.__exit__ if is_open else tape.__enter__)(*[None] * (3 * is_open))
            is_open = not is_open
        elif kind == 1 and a:
            tape.watch(x)
            model.known.add(a)
        elif kind == 2 and a:
            read(x)
        elif kind > 2:
            partials = {a: np.cos(i)} if a == b else {a: j, b: i} if kind < 6 else {a: 1.0, b: -1.0}
            tensors.append(tf.sin(x) if a == b else x * y if kind < 6 else x - y)
            numbers.append(np.sin(i) if a == b else i * j if kind < 6 else i - j)
            if is_open:
                model.known |= {0} & partials.keys()
                model.record(len(numbers) - 1, partials)
    if is_open:
        tape.__exit__(None, None, None)
    found: list[Any] = []
    expected: list[float | None] = []
    for _ in range(6):
        target, *sources = (random.randint(1, len(numbers)) for _ in range(3))
        found += tape.gradient(tensors[target], [variable, *[tensors[n] for n in sources]])
        expected += [model.gradient(target, n) for n in (0, *sources)]
    return found, expected


class TestRandomTapes:
    """What a tape records, wherever it is opened, watches and is read."""

    @staticmethod
    def check(found: list[Any], expected: list[float | None]) -> None:
        assert [value is None for value in found] == [value is None for value in expected]
        pairs = [(f, e) for f, e in zip(found, expected, strict=True) if e is not None]
        np.testing.assert_allclose(*np.array(pairs or [(0, 0)]).T, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("seed", range(60))
    def test_in_eager_code(self, seed: int) -> None:
        for reads in (True, False, True):
            found, expected = _random_tape(seed, lambda x, reads=reads: x.numpy() if reads else x)
            self.check([g if g is None else float(g) for g in found], expected)

    @pytest.mark.parametrize("seed", range(30))
    def test_in_a_function(self, seed: int) -> None:
        expected: list[float | None] = []

        def program(start: Any) -> Any:
            found, expected[:] = _random_tape(seed, lambda x: x)
            return tf.cond(start > 0, lambda: 1.0, lambda: 0.0), found

        found = tf.function(program)(tf.constant(1.0))[1]
        self.check([g if g is None else float(g) for g in found], expected)

    @pytest.mark.parametrize("seed", range(30))
    @pytest.mark.parametrize("in_branch", [False, True])
    def test_in_a_graph(self, seed: int, in_branch: bool) -> None:
        with tf.Graph().as_default(), tf.Session() as session:
            expected: list[float | None] = []

            def program() -> list[Any]:
                found, expected[:] = _random_tape(seed, lambda x: x)
                return [tf.constant(np.nan) if g is None else g for g in found]

            yes = tf.placeholder(tf.bool, [])
            found = (
                tf.cond(yes, program, lambda: [tf.constant(0.0)] * 18) if in_branch else program()
            )
            session.run(tf.global_variables_initializer())
            values = session.run(found, {yes: True})
            self.check([None if np.isnan(value) else float(value) for value in values], expected)


@pytest.mark.parametrize("in_branch", [False, True])
def test_in_a_function_captured_tensors_and_variables_are_sources(in_branch: bool) -> None:
    variable, captured = tf.Variable(3.0), tf.constant(2.0) * 1.0

    def program() -> list[Any]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(captured)
            y = captured * variable
            z = y * y
        assert tape.watched_variables() == (variable,)
        sources = [y, captured, variable]
        return [*tape.gradient(z, sources), *tf.gradients(z, sources)]

    def either(x: Any) -> Any:
        return tf.cond(x > 0, program, lambda: [x] * 6) if in_branch else program()

    values = [float(value) for value in tf.function(either)(tf.constant(1.0))]
    assert values == [12.0, 36.0, 24.0] * 2


class TestInGraphs:
    def test_a_tape_records_the_nodes_inside(self):
        with tf.Graph().as_default(), tf.Session() as session:
            x, w = tf.constant(2.0), tf.Variable(3.0)
            session.run(w.initializer)
            before = x * 5
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                y = x * x * w + before
            assert tape.watched_variables() == (w,)
            assert session.run(tape.gradient(y, [x, w])) == [12.0, 4.0]
            assert tape.gradient(y, before) is None

    def test_derivatives_of_functions(self):
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.constant(2.0)
            assert session.run(tf.grad(tf.grad(lambda v: v * v * v))(x)) == 12.0
            value, change = tf.jvp(lambda v: v * v, [x], [tf.constant(1.0)])
            assert session.run([value, change]) == [4.0, 4.0]


class TestFunctions:
    def test_grad_of_any_order(self):
        f = orders = lambda x: tf.sin(x) * x
        expected = [np.sin, np.cos]
        x = 0.7
        values = [x * np.sin(x), np.sin(x) + x * np.cos(x), 2 * np.cos(x) - x * np.sin(x)]
        for value in values:
            assert abs(float(f(tf.constant(x))) - value) < 1e-5
            f = tf.grad(f)
        assert orders is not f and len(expected) == 2

    def test_grad_chooses_arguments_and_passes_the_rest(self):
        def f(x: Any, y: Any, scale: float) -> Any:
            return tf.reduce_sum(x * y * scale), {"x": x}

        (value, rest), (dx, dy) = tf.value_and_grad(f, argnums=(0, 1), has_aux=True)(
            [1.0, 2.0], [3.0, 4.0], 2.0
        )
        assert float(value) == 22.0 and rest["x"].numpy().tolist() == [1.0, 2.0]
        assert dx.numpy().tolist() == [6.0, 8.0] and dy.numpy().tolist() == [2.0, 4.0]
        with pytest.raises(ValueError, match="scalar"):
            tf.grad(lambda x: x)([1.0, 2.0])

    def test_vjp_and_jvp_agree_with_the_jacobian(self):
        matrix = np.random.RandomState(0).rand(3, 2).astype("f")
        x = tf.constant([0.3, 0.7])

        def f(v: Any) -> Any:
            return tf.tanh(tf.linalg.matvec(matrix, v))

        outputs, pull_back = tf.vjp(f, x)
        rows = [pull_back(tf.constant(row))[0].numpy() for row in np.eye(3, dtype="f")]
        columns = [tf.jvp(f, [x], [tf.constant(c)])[1].numpy() for c in np.eye(2, dtype="f")]
        expected = (1 - np.tanh(matrix @ x.numpy()) ** 2)[:, None] * matrix
        np.testing.assert_allclose(np.stack(rows), expected, rtol=1e-5)
        np.testing.assert_allclose(np.stack(columns, 1), expected, rtol=1e-5)
        np.testing.assert_allclose(outputs.numpy(), np.tanh(matrix @ x.numpy()), rtol=1e-6)

    def test_names_of_contrib(self):
        tfe = tf.contrib.eager
        assert [float(g) for g in tfe.gradients_function(lambda x, y: x * y)(2.0, 3.0)] == [3, 2]
        (only,) = tfe.gradients_function(lambda x, y: x * y, params=["y"])(2.0, 3.0)
        assert float(only) == 2.0
        v = tfe.Variable(3.0)
        value, ((gradient, variable),) = tfe.implicit_value_and_gradients(lambda: v * v)()
        assert float(value) == 9.0 and float(gradient) == 6.0 and variable is v


def _model(x: Any, y: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    hidden = tf.nn.relu(tf.matmul(x, w1) + b1)
    logits = tf.matmul(hidden, w2) + b2
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


_OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adam": lambda: tf.train.AdamOptimizer(0.01),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "adadelta": lambda: tf.train.AdadeltaOptimizer(1.0),
    "rmsprop": lambda: tf.train.RMSPropOptimizer(0.01, centered=True),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.1),
    "proximal": lambda: tf.train.ProximalAdagradOptimizer(0.1),
    "dual": lambda: tf.train.AdagradDAOptimizer(0.1, tf.train.get_or_create_global_step()),
}


def _data() -> tuple[Any, Any, list[Any]]:
    random = np.random.RandomState(0)
    x, y = random.rand(16, 12).astype("f"), random.randint(0, 4, 16).astype("i")
    shapes = [(12, 9), (9,), (9, 4), (4,)]
    return x, y, [random.randn(*shape).astype("f") * 0.3 for shape in shapes]


class TestTraining:
    @pytest.mark.parametrize("name", _OPTIMIZERS)
    def test_a_loop_gives_the_weights_of_a_session(self, name: str):
        x, y, initial = _data()
        with tf.Graph().as_default(), tf.Session() as session:
            variables = [tf.Variable(value) for value in initial]
            loss = _model(tf.constant(x), tf.constant(y), *variables)
            step = tf.train.get_or_create_global_step()
            train = _OPTIMIZERS[name]().minimize(loss, global_step=step)
            session.run(tf.global_variables_initializer())
            for _ in range(4):
                session.run(train)
            expected, count = session.run([variables, step])
        variables = [tf.Variable(value) for value in initial]
        tf.train.get_or_create_global_step().assign(0)
        optimizer = _OPTIMIZERS[name]()
        step = tf.train.get_or_create_global_step()
        for _ in range(4):
            with tf.GradientTape() as tape:
                loss = _model(x, y, *variables)
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True), global_step=step)
        for variable, value in zip(variables, expected, strict=True):
            assert variable.numpy().tobytes() == value.tobytes()
        assert int(step) == count == 4

    def test_minimize_takes_a_function(self):
        v, other = tf.Variable([3.0, -2.0]), tf.Variable(1.0)
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        for _ in range(60):
            optimizer.minimize(lambda: tf.reduce_sum(tf.square(v)))
        assert np.abs(v.numpy()).max() < 1e-4 and other.numpy() == 1.0
        with pytest.raises(RuntimeError, match="function"):
            optimizer.minimize(tf.reduce_sum(v))

    def test_settings_are_read_at_each_step(self):
        v, rate = tf.Variable(0.0), tf.Variable(1.0)
        optimizer = tf.train.GradientDescentOptimizer(rate)
        for value in (1.0, 2.0, 4.0):
            rate.assign(value)
            optimizer.apply_gradients([(tf.constant(1.0), v)])
        assert v.numpy() == -7.0
        rates = iter((1.0, 2.0, 4.0, 8.0, 16.0))
        optimizer = tf.train.GradientDescentOptimizer(lambda: next(rates))
        for _ in range(5):
            optimizer.apply_gradients([(tf.constant(1.0), v)])
        assert v.numpy() == -38.0

    def test_slots_and_constraints(self):
        v = tf.Variable(1.0, constraint=lambda value: tf.maximum(value, 0.5))
        optimizer = tf.train.MomentumOptimizer(1.0, 0.5)
        optimizer.apply_gradients([(tf.constant(2.0), v)])
        assert v.numpy() == 0.5
        assert optimizer.get_slot(v, "momentum").numpy() == 2.0
        (slot,) = optimizer.variables()
        assert slot.name.startswith("Variable/Momentum")

    def test_sparse_gradients(self):
        table = tf.Variable(np.ones((4, 2), np.float32))
        optimizer = tf.train.AdagradOptimizer(0.5, initial_accumulator_value=1.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [1, 1, 3]))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        changed = table.numpy()
        assert changed[0].tolist() == [1.0, 1.0] and changed[1][0] < changed[3][0] < 1.0

    def test_memory_of_a_loop_is_flat(self):
        x, y, initial = _data()
        variables = [tf.Variable(value) for value in initial]
        optimizer = tf.train.AdamOptimizer(0.01)

        def train(count: int) -> None:
            for _ in range(count):
                with tf.GradientTape() as tape:
                    loss = _model(x, y, *variables)
                gradients = tape.gradient(loss, variables)
                optimizer.apply_gradients(zip(gradients, variables, strict=True))

        train(20)
        train(20)  # begins with what the first one left
        gc.collect()
        objects, nodes = len(gc.get_objects()), len(EAGER.trace.nodes)
        train(200)
        gc.collect()
        assert len(gc.get_objects()) - objects < 500 and len(EAGER.trace.nodes) == nodes


def test_zeros_for_an_unused_variable_do_not_read_it():
    """A read would make outer tapes watch it."""
    with tf.eager_mode():
        x, used, unused = tf.constant(2.0), tf.Variable(3.0), tf.Variable([4.0, 5.0])
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                y = x * used
            dx, zero = inner.gradient(y, [used, unused], unconnected_gradients="zero")
        assert (float(dx), zero.numpy().tolist()) == (2.0, [0.0, 0.0])
        assert [*outer.watched_variables()] == [used]


def test_a_gradient_in_a_trace_without_values_may_ask_for_an_index_from_before_the_tape():
    variable = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    axes = tf.range(tf.constant(100))[:2] - 0
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tf.reverse(variable, axes) * [[1.0, 2.0], [3.0, 4.0]])
    assert float(y) == 1 * 4 + 2 * 3 + 3 * 2 + 4 * 1
    np.testing.assert_array_equal(tape.gradient(y, variable).numpy(), [[4, 3], [2, 1]])
