"""Which values are kept for the backward pass, rematerialized or hoisted.

The rules look at megabytes; here they look at kilobytes, so that small steps show them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import kernels, lowered, use_target
from thalweg.codegen.machine import host
from thalweg.lower.lowered import Lowered
from thalweg.lower.memory.arena import arrange
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.runtime import engine

ROWS, WIDTH = 64, 96
VALUE = ROWS * WIDTH * 4  # bytes of an activation

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def kilobytes(monkeypatch: pytest.MonkeyPatch) -> Any:
    small = 1 << 10
    use_target(
        monkeypatch, far_bytes=VALUE, min_rematerialized_bytes=small, min_hoisted_bytes=small
    )
    with tf.Graph().as_default():
        yield


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Disable rematerializing and hoisting from now on."""

    def start() -> None:
        use_target(monkeypatch, far_bytes=1 << 60, min_hoisted_bytes=1 << 60)

    return start


def weight(name: str, *shape: int) -> Any:
    values = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
    return tf.get_variable(name, initializer=values / np.float32(shape[0]) ** 0.5)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + tf.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def layer_norm(x: Any, name: str) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
    scale, offset = weight(f"{name}_scale", WIDTH), weight(f"{name}_offset", WIDTH)
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-5)


def attention(x: Any, name: str) -> Any:
    query, key, value = (tf.matmul(x, weight(name + part, WIDTH, WIDTH)) for part in "qkv")
    mask = np.triu(np.full((ROWS, ROWS), -1e9, np.float32), 1)
    scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) * 0.1 + mask)
    return tf.matmul(scores, value)


def gelu_layers(x: Any) -> Any:
    for number in range(4):
        x = gelu(tf.matmul(x, weight(f"gelu{number}", WIDTH, WIDTH)))
    return x


def normed_layers(x: Any) -> Any:
    for number in range(4):
        x = x + tf.matmul(layer_norm(x, f"norm{number}"), weight(f"dense{number}", WIDTH, WIDTH))
    return x


def attending_layers(x: Any) -> Any:
    for number in range(3):
        x = x + attention(x, f"attention{number}")
    return x


MODELS = {"gelu": gelu_layers, "norm": normed_layers, "attention": attending_layers}


def training(model: Callable[[Any], Any], optimizer: Any) -> tuple[Any, Any, Any]:
    x = tf.placeholder(tf.float32, [ROWS, WIDTH])
    loss = tf.reduce_mean(tf.square(model(x)))
    return x, loss, optimizer.minimize(loss)


def sgd() -> Any:
    return tf.train.GradientDescentOptimizer(0.1)


def adam() -> Any:
    return tf.train.AdamOptimizer(0.01, epsilon=0.01)  # larger than what rounding leaves of nothing


def live_bytes(made: Lowered) -> int:
    """The most bytes of temporaries that are in use at a time."""
    return arrange(made.launches, [0] * len(made.launches), made.pieces, host()).size


def lives(made: Lowered) -> dict[Buffer, tuple[int, int]]:
    result: dict[Buffer, tuple[int, int]] = {}
    for position, launch in enumerate(made.launches):
        for buffer in launch.buffers:
            if buffer.kind is BufferKind.TEMPORARY and buffer.bytes == VALUE:
                result[buffer] = result.get(buffer, (position, 0))[0], position
    return result


def kept(made: Lowered) -> list[str]:
    """The op types of the values that are kept from the first half of a step to the second."""
    gradient = next(i for i, launch in enumerate(made.launches) if _is_gradient(launch.nodes[0]))
    passing = [b.source.op for b, (first, last) in lives(made).items() if first < gradient < last]
    return sorted(node.type for node in passing if not _is_gradient(node))


def _is_gradient(node: Any) -> bool:
    return node.name.startswith("gradients")


# The last layer's gradient is part of the nest that makes its value: there is nothing to keep.


def test_of_gelu_only_its_argument_is_kept() -> None:
    _, loss, train = training(gelu_layers, sgd())
    assert kept(lowered(loss, train)) == ["MatMul"] * 3


def test_gelu_keeps_several_values_where_none_is_computed_again(keeping: Any) -> None:
    keeping()
    _, loss, train = training(gelu_layers, sgd())
    assert len(kept(lowered(loss, train))) >= 3 * 3


def test_a_late_factor_is_stored_again_by_a_nest_just_before_its_product() -> None:
    _, loss, train = training(gelu_layers, sgd())
    made = lowered(loss, train)
    for position, launch in enumerate(made.launches[:-1]):
        if _updates(launch):
            assert any(b in made.launches[position - 1].written for b in launch.buffers)


def _updates(launch: Any) -> bool:
    return any(buffer.kind is BufferKind.VARIABLE for buffer in launch.written)


def test_a_norm_keeps_what_came_in() -> None:
    _, loss, train = training(normed_layers, adam())
    # The first layer has no gradient of its input, and so no nest that would store its factor.
    assert kept(lowered(loss, train)) == ["Add"] * (1 + 3)


def test_softmax_is_kept_and_what_it_was_made_of_is_not() -> None:
    _, loss, train = training(attending_layers, sgd())
    made = lowered(loss, train)
    gradient = next(i for i, launch in enumerate(made.launches) if _is_gradient(launch.nodes[0]))
    square = ROWS * ROWS * 4
    sources: list[str] = []
    for buffer in {b for launch in made.launches[:gradient] for b in launch.buffers}:
        later = any(buffer in launch.buffers for launch in made.launches[gradient:])
        if buffer.kind is BufferKind.TEMPORARY and buffer.bytes == square and later:
            sources.append(buffer.source.op.type)
    assert sources == ["Softmax"] * 3


@pytest.mark.parametrize(("model", "most"), [("gelu", 0.5), ("norm", 0.6), ("attention", 1.0)])
def test_a_step_takes_less_memory(model: str, most: float, keeping: Any) -> None:
    _, loss, train = training(MODELS[model], adam())
    less = live_bytes(lowered(loss, train))
    keeping()
    assert less <= most * live_bytes(lowered(loss, train))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_results_are_those_of_the_reference(
    model: str, optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, loss, train = training(MODELS[model], optimizer())
    values = np.random.default_rng(3).standard_normal((ROWS, WIDTH)).astype(np.float32)

    def losses() -> list[Any]:
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            found = [session.run([loss, train], {x: values})[0] for _ in range(4)]
            return [*found, *session.run(tf.trainable_variables())]

    native = losses()
    for one, again in zip(native, losses(), strict=True):
        np.testing.assert_array_equal(one, again)
    monkeypatch.setattr(engine, "COMPILES", False)
    for one, other in zip(native, losses(), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_kernels_list_the_ops_of_a_value_that_all_readers_compute_again() -> None:
    x = tf.placeholder(tf.float32, [ROWS, ROWS])
    affine = x * 2.0 + 1.0
    early = tf.reduce_sum(tf.exp(affine), 1)
    product = tf.matmul(tf.matmul(x, x), x)
    late = tf.reduce_sum(affine * product, 1)
    expected = ["contraction matmul", "contraction matmul", "loops mul×2+add+exp+sum×2"]
    assert kernels(early, late) == expected


def test_a_weights_update_runs_as_soon_as_it_can() -> None:
    _, loss, train = training(gelu_layers, adam())
    made = lowered(loss, train)
    updated = [i for i, launch in enumerate(made.launches) if _updates(launch)]
    products = [i for i, launch in enumerate(made.launches) if _is_gradient(launch.nodes[0])]
    assert updated[0] < products[len(products) // 2]


def test_a_variable_that_changes_in_between_is_not_read_again() -> None:
    x = tf.placeholder(tf.float32, [ROWS, WIDTH])
    scale = weight("scale", WIDTH)
    kernel = weight("kernel", WIDTH, WIDTH)
    product = tf.matmul(x, kernel)
    scaled = product * scale
    first = tf.matmul(scaled, kernel)
    with tf.control_dependencies([first]):
        change = scale.assign(tf.zeros([WIDTH]))
    y = first
    for _ in range(3):
        y = tf.matmul(y, kernel)
    with tf.control_dependencies([change]):
        late = y + tf.identity(scaled) + product
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        a, s, k = np.ones((ROWS, WIDTH), np.float32), *session.run([scale, kernel])
        actual = session.run(late, {x: a})
    expected = a @ k * s
    np.testing.assert_allclose(
        actual, expected @ k @ k @ k @ k + expected + a @ k, rtol=1e-3, atol=1e-4
    )


def test_nothing_is_updated_before_an_index_was_checked() -> None:
    ids = tf.placeholder(tf.int32, [ROWS])
    table = weight("table", 10, WIDTH)
    kernel = weight("kernel", WIDTH, WIDTH)
    x = tf.nn.embedding_lookup(table, ids)
    loss = tf.reduce_sum(gelu(tf.matmul(gelu(tf.matmul(x, kernel)), kernel)))
    train = sgd().minimize(loss, var_list=[kernel])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(kernel)
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(train, {ids: np.full(ROWS, 10)})
        np.testing.assert_array_equal(session.run(kernel), before)
        session.run(train, {ids: np.full(ROWS, 9)})
        assert (session.run(kernel) != before).any()
