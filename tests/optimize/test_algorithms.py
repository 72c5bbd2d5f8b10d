"""Passes that are algorithms, on whole steps: their rewrites, and that values do not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest

import thalweg as tf
from tests.optimize.steps import after, changes, step, text
from tests.optimize.test_pipeline import optimized
from thalweg.ir.target import Target
from thalweg.optimize.passes.cancel_transposes import cancel_transposes
from thalweg.optimize.passes.fold_parts import fold_parts
from thalweg.optimize.passes.merge_products import merge_products
from thalweg.optimize.passes.order_products import order_products
from thalweg.optimize.passes.place_partitions import place_partitions
from thalweg.optimize.passes.resolve_branches import resolve_branches
from thalweg.optimize.passes.simplify_controls import simplify_controls
from thalweg.runtime import engine


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def placeholder(*shape: int | None, name: str = "x") -> tf.Tensor:
    return tf.placeholder(tf.float32, shape, name=name)


def both(fetches: Sequence[tf.Tensor], feeds: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    """The results of a session, and of the reference kernels on the unoptimised graph."""
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = session.run(list(fetches), feeds)
    with mock.patch.object(engine, "COMPILES", False), tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return found, session.run(list(fetches), feeds)


def assert_same(fetches: Sequence[tf.Tensor], feeds: dict[Any, Any]) -> None:
    for found, expected in zip(*both(fetches, feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def fired(fetches: Sequence[tf.Tensor], feeds: Sequence[tf.Tensor] = ()) -> dict[str, int]:
    """How often rules fired in a step."""
    reports = optimized(fetches, feeds).passes
    return {name: count for report in reports for name, count in report.fired.items()}


def values(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


# Products


def test_a_chain_ends_with_its_vector() -> None:
    a, v = placeholder(8, 8, name="a"), placeholder(8, 1, name="v")
    y = tf.matmul(tf.matmul(tf.matmul(a, a), a), v, name="y")
    done = after(order_products, step([y], feeds=[a, v]))
    assert done.count("MatMul(a, v)") == 1
    assert_same([y], {a: values(8, 8), v: values(8, 1)})


def test_a_very_long_chain_is_no_trouble() -> None:
    a = placeholder(3, 3, name="a")
    y = a
    for _ in range(2000):
        y = tf.matmul(y, a)
    before = step([y], feeds=[a])
    assert not changes(order_products, before)


def test_a_product_that_is_used_stays() -> None:
    a, v = placeholder(8, 8, name="a"), placeholder(8, 1, name="v")
    inner = tf.matmul(a, a)
    before = step([inner, tf.matmul(inner, v)], feeds=[a, v])
    assert not changes(order_products, before)


def test_narrow_products_of_one_input_are_one() -> None:
    x = placeholder(40, 8)
    w, u = tf.constant(values(8, 3)), tf.constant(values(8, 4))
    ys = [tf.matmul(x, w), tf.tanh(tf.matmul(x, u))]
    assert after(merge_products, step(ys, feeds=[x])).count("= MatMul(") == 1
    assert_same(ys, {x: values(40, 8)})


def test_narrow_products_with_variables_are_one() -> None:
    x = placeholder(None, 8)
    ys = [tf.matmul(x, tf.Variable(values(8, size))) for size in (3, 4, 5)]
    loss = tf.add_n([tf.reduce_sum(y * y) for y in ys])
    train = tf.gradients(
        loss, [x, *tf.trainable_variables()]
    )  # that of x reads the variables again
    done = after(merge_products, step([*ys, *train], feeds=[x]))
    assert done.count("= ConcatV2(") == 1
    assert_same([*ys, *train], {x: values(40, 8)})


def test_narrow_convolutions_of_one_input_are_one() -> None:
    x = placeholder(2, 6, 6, 4)
    ys = [tf.nn.conv2d(x, tf.Variable(values(3, 3, 4, 8) + n), 1, "SAME") for n in range(2)]
    assert after(merge_products, step(ys, feeds=[x])).count("= Conv2D(") == 1
    assert_same(ys, {x: values(2, 6, 6, 4)})


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(40, (16, 16)), (40, (1, 1)), (40, (15, 15)), (8, (3, 4)), (40, (3, 64))],
    ids=["full vectors", "vectors", "none saved", "few rows", "a wide one"],
)
def test_products_that_would_gain_nothing_stay(rows: int, columns: tuple[int, int]) -> None:
    x = placeholder(rows, 8)
    ys = [tf.matmul(x, tf.Variable(values(8, size))) for size in columns]
    assert not changes(merge_products, step(ys, feeds=[x]))


@pytest.mark.parametrize(("vector_bytes", "merges"), [(16, False), (32, True), (64, True)])
def test_narrow_is_what_the_vectors_of_the_processor_make_it(
    vector_bytes: int, merges: bool
) -> None:
    x = placeholder(40, 8)
    ys = [tf.matmul(x, tf.constant(values(8, size))) for size in (4, 4)]
    given = step(ys, feeds=[x])
    given.processors = {"": Target(name="given", vector_bytes=vector_bytes)}
    assert changes(merge_products, given) is merges


def test_weights_that_are_not_there_yet_are_not_merged() -> None:
    x = placeholder(40, 8)
    w, u = tf.Variable(values(8, 3)), tf.Variable(values(8, 4))
    y = tf.matmul(x, w)
    late = tf.matmul(x, w * tf.reduce_sum(y))  # made of the first product
    assert not changes(merge_products, step([y, late], feeds=[x]))
    with tf.control_dependencies([tf.assign_add(u, tf.ones([8, 4]) * tf.reduce_sum(y))]):
        changed = tf.matmul(x, u.read_value())
    assert not changes(merge_products, step([y, changed], feeds=[x]))
    assert_same([y, late, changed], {x: values(40, 8)})


def test_batch_norm_of_constants_becomes_weights() -> None:
    x = placeholder(1, 6, 6, 3)
    w, b = tf.constant(values(3, 3, 3, 4)), tf.constant(values(4))
    c = tf.nn.bias_add(tf.nn.conv2d(x, w, [1, 1, 1, 1], "SAME"), b)
    y = tf.nn.fused_batch_norm(c, b + 3, b, b, b * b, is_training=False)[0]
    kinds = [node.type for node in optimized([y], [x]).nodes]
    assert sorted(kinds) == ["Add", "Const", "Const", "Conv2D"]
    assert_same([y], {x: values(1, 6, 6, 3)})


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_batch_norm_that_nothing_else_changes_becomes_weights(layout: str) -> None:
    shape = (1, 6, 6, 3) if layout == "NHWC" else (1, 3, 6, 6)
    x, w = placeholder(*shape), tf.constant(values(3, 3, 3, 4))
    b, scale, offset, mean = (tf.constant(values(4)) for _ in range(4))
    variance = tf.constant(values(4) ** 2)
    pads = (
        [[0, 0], [2, 1], [1, 2], [0, 0]] if layout == "NHWC" else [[0, 0], [0, 0], [2, 1], [1, 2]]
    )
    c = tf.nn.conv2d(x, w, [1, 1, 1, 1], pads, data_format=layout)
    c = tf.nn.bias_add(c, b, data_format=layout)
    y = tf.nn.fused_batch_norm(
        c, scale, offset, mean, variance, is_training=False, data_format=layout
    )[0]
    kinds = {node.type for node in optimized([y], [x]).nodes}
    assert kinds.isdisjoint({"Mul", "BiasAdd", "FusedBatchNormV2"})
    assert_same([y], {x: values(*shape)})


def test_transposes_around_elementwise_code_cancel() -> None:
    x = placeholder(1, 4, 4, 3)
    y = tf.transpose(tf.nn.relu(tf.transpose(x, [0, 3, 1, 2]) * 2), [0, 2, 3, 1])
    assert "Transpose" not in after(cancel_transposes, step([y], feeds=[x]))
    assert_same([y], {x: values(1, 4, 4, 3)})


# Sums and joins


def test_constant_terms_of_a_sum_are_one() -> None:
    x = placeholder(2)
    y = tf.add_n([tf.constant([1.0, 2.0]), x, tf.constant([3.0, 4.0])], name="y")
    assert after(fold_parts, step([y], feeds=[x])) == text("""
        y/Const = Const() [4.0, 6.0]
        y/AddN = AddN(x, y/Const)
        return y/AddN:0
        """)


def test_constant_parts_of_a_join_are_one() -> None:
    x = placeholder(2)
    y = tf.concat([x, [1.0], [2.0], x], 0, name="y")
    lines = after(fold_parts, step([y], feeds=[x])).splitlines()
    assert "y/Const = Const() [1.0, 2.0]" in lines
    assert_same([y], {x: values(2)})


def test_parts_of_joins_and_stacks_are_found() -> None:
    x = placeholder(2)
    y = tf.concat([x, tf.concat([x * 2, x * 3], 0)], 0)
    z = tf.stack([x * 4, x * 5])[1]
    assert after(fold_parts, step([y, z], feeds=[x])).count("= ConcatV2(") == 1
    assert "Pack" not in after(fold_parts, step([y, z], feeds=[x]))
    assert_same([y, z, tf.stack([x])], {x: values(2)})


def test_a_function_of_all_parts_is_computed_of_the_join() -> None:
    x, z = placeholder(2, 3), placeholder(4, 3)
    y = tf.concat([tf.exp(x), tf.exp(z)], 0)
    assert after(fold_parts, step([y], feeds=[x, z])).count("Exp(") == 1
    others = [tf.concat([tf.exp(x), tf.sin(z)], 0), tf.concat([tf.exp(x), tf.exp(x)], 1)]
    assert not changes(fold_parts, step(others, feeds=[x, z]))
    assert_same([y, *others], {x: values(2, 3), z: values(4, 3)})


@pytest.mark.parametrize("count", [0, 1, 9])
@pytest.mark.parametrize("is_sized", [True, False], ids=["sized", "unsized"])
def test_what_a_partition_of_all_places_puts_back_is_compiled(count: int, is_sized: bool) -> None:
    size = count if is_sized else None
    x, chosen = placeholder(size, 3), tf.placeholder(tf.int32, [size])
    places = tf.dynamic_partition(tf.range(tf.size(chosen)), chosen, 3)
    y = tf.dynamic_stitch(places, tf.dynamic_partition(x, chosen, 3))
    scaled = tf.parallel_dynamic_stitch(places, [2 * x for x in tf.dynamic_partition(x, chosen, 3)])
    feeds = {x: values(count, 3), chosen: np.random.default_rng(0).integers(0, 3, count)}
    assert fired([y, scaled], [x, chosen])["stitch of a partition"] == 2
    assert_same([y, scaled], feeds)
    with tf.Session() as session:
        session.run(y, feeds)
        assert (" _stitch_parts " in str(session.plan(y, feeds))) == (count > 0)


def test_of_a_partition_only_the_cuts_are_left_to_the_host() -> None:
    x, chosen = placeholder(None, 3), tf.placeholder(tf.int32, [None])
    parts = tf.dynamic_partition(tf.sin(x), chosen % 5, 5)
    feeds = {x: values(7, 3), chosen: np.arange(7) ** 2}
    assert_same(parts, feeds)
    with tf.Session() as session:
        plan = str(session.plan(parts, feeds))
    assert plan.count("\nhost ") == plan.count("(_Parts)") == 1
    assert "sin+_put_rows" in plan


def test_parts_of_other_sizes_are_not_stitched() -> None:
    chosen, rows = tf.placeholder(tf.int32, [4]), tf.placeholder(tf.float32, [None, 2])
    places = tf.dynamic_partition(tf.range(4), chosen, 2)
    y = tf.dynamic_stitch(places, [rows, rows], name="put_back")
    with tf.Session() as session:
        one = session.run(y, {chosen: [0, 1, 1, 0], rows: values(2, 2)})
        assert one.shape == (4, 2)
        message = r"data\[0\].shape = \(2, 2\) does not start with indices\[0\].shape = \(3,\)"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message) as raised:
            session.run(y, {chosen: [0, 1, 0, 0], rows: values(2, 2)})
    assert raised.value.op.name == "put_back"


def test_a_partition_of_constants_is_put_back() -> None:
    """So many that their places are folded, but not the parts, whose sizes are not static."""
    rng = np.random.default_rng(0)
    order, chosen = rng.permutation(5000).astype(np.int32), tf.constant([0, 1] * 2500)
    x = tf.placeholder(tf.float32, [5000])
    parts = tf.dynamic_partition(x, chosen, 2)
    y = tf.dynamic_stitch(tf.dynamic_partition(tf.constant(order), chosen, 2), parts)
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(y, {x: order}), np.arange(5000))


def test_partitions_that_kernels_have_no_elements_of_stay() -> None:
    x, chosen = placeholder(4, 3), tf.placeholder(tf.int32, [4])
    unknown = tf.placeholder(tf.int32)
    stays = tf.dynamic_partition(tf.as_string(x), chosen, 2)
    stays += tf.dynamic_partition(x, unknown, 2)
    stays += tf.dynamic_partition(x, chosen, 65)
    assert not changes(place_partitions, step(stays, feeds=[x, chosen, unknown]))


def test_the_shape_of_random_numbers_is_known_as_long_as_they_are_drawn() -> None:
    x = tf.random_uniform([3, 4])
    size = tf.shape(x)
    assert "constant Shape" not in fired([size])
    assert fired([size, tf.exp(x)])["constant Shape"] == 1
    twice = fired([size, tf.size(x)])
    assert twice.get("constant Shape", 0) + twice.get("constant Size", 0) == 1


def test_other_stitches_stay() -> None:
    x, chosen = placeholder(4, 3), tf.placeholder(tf.int32, [4])
    parts = tf.dynamic_partition(x, chosen, 2)
    swapped = tf.dynamic_partition(tf.range(4), chosen, 2)[::-1]
    from_one = tf.dynamic_partition(tf.range(1, 5), chosen, 2)
    even = tf.dynamic_partition(tf.range(0, 8, 2), chosen, 2)
    whole = tf.dynamic_partition(tf.range(4), chosen, 2)
    names = tf.dynamic_partition(tf.as_string(x[:, 0]), chosen, 2)
    stays = [tf.dynamic_stitch(each, parts) for each in (from_one, even)]
    stays.append(tf.dynamic_stitch(swapped, parts[::-1]))
    stays.append(tf.dynamic_stitch(whole, names))
    assert "_StitchParts" not in after(place_partitions, step(stays, feeds=[x, chosen]))
    fed = tf.dynamic_stitch(whole, parts)
    graph = step([fed], feeds=[x, chosen, whole[0]])
    assert "_StitchParts" not in after(place_partitions, graph)


def test_a_tensor_added_again_and_again_is_a_multiple() -> None:
    x = placeholder(3)
    y = x + x + x + x
    assert sorted(node.type for node in optimized([y], [x]).nodes) == ["Const", "Mul"]
    assert_same([y], {x: values(3)})


# Control flow


def test_a_decided_conditional_is_its_branch() -> None:
    x = placeholder(2)
    y = tf.cond(tf.constant(True), lambda: tf.sin(x), lambda: tf.cos(x))
    assert "If" not in after(resolve_branches, step([y], feeds=[x]))
    assert_same([y, *tf.gradients(y, x)], {x: values(2)})


def test_a_conditional_with_effects_stays() -> None:
    v = tf.Variable(1.0)
    y = tf.cond(tf.constant(True), lambda: v.assign_add(1.0), lambda: v.read_value())
    assert "If" in after(resolve_branches, step([y]))


def test_a_loop_without_iterations_is_gone() -> None:
    x = placeholder(2)
    y = tf.while_loop(lambda i, a: i < 0, lambda i, a: (i + 1, a * 2), [0, x])[1]
    assert "While" not in after(resolve_branches, step([y], feeds=[x]))
    assert_same([y], {x: values(2)})


def test_what_stays_the_same_is_computed_before_the_loop() -> None:
    w, x = placeholder(4, 4, name="w"), placeholder(4, 1)
    y = tf.while_loop(
        lambda i, a: i < 3, lambda i, a: (i + 1, tf.tanh(a + tf.matmul(w, x))), [0, x]
    )[1]
    assert fired([y], [w, x])["invariant MatMul"] == 1
    assert_same([y], {w: values(4, 4), x: values(4, 1)})


def test_functions_are_hoisted_and_what_is_cheap_is_not() -> None:
    x, s = placeholder(4, 4), placeholder(1, name="s")
    y = tf.while_loop(
        lambda i, a: i < 3,
        lambda i, a: (i + 1, a + tf.exp(x + 1) + (x * x) + tf.broadcast_to(tf.log(s), [4, 4])),
        [0, x],
    )[1]
    actual = {name for name in fired([y], [x, s]) if name.startswith("invariant")}
    assert actual == {"invariant Exp", "invariant Log"}
    assert_same([y], {x: values(4, 4), s: values(1) ** 2})


@pytest.mark.parametrize(
    ("function", "is_hoisted"),
    [
        (tf.nn.softplus, True),
        (tf.nn.elu, True),
        (tf.sqrt, True),
        (lambda x: tf.abs(tf.exp(tf.complex(x, x))), True),
        (tf.nn.relu, False),
        (lambda x: tf.nn.relu6(x) / 2.0, False),
        (lambda x: tf.abs(tf.complex(x, x) + 1.0), False),
    ],
)
def test_what_is_hoisted_goes_by_the_cost_of_the_function(
    function: Callable[[Any], Any], is_hoisted: bool
) -> None:
    x = placeholder(4, 4)

    def body(i: Any, a: Any) -> Any:
        return i + 1, a + tf.cast(function(x), tf.float32)

    y = tf.while_loop(lambda i, a: i < 3, body, [0, x])[1]
    actual = [name for name in fired([y], [x]) if name.startswith("invariant")]
    assert bool(actual) == is_hoisted, actual
    assert_same([y], {x: abs(values(4, 4))})


@pytest.mark.parametrize("build", ["cond", "while"])
def test_bodies_are_optimised_with_their_gradients(build: str) -> None:
    x, n = placeholder(3), tf.placeholder(tf.int32, [], name="n")
    c = tf.constant(2.0)

    def body(a: Any) -> Any:
        return tf.sin(a) * 1.0 + c * 3.0 + tf.sin(a) * tf.cos(a)

    makers: dict[str, Callable[[], Any]] = {
        "cond": lambda: tf.cond(n > 2, lambda: body(x), lambda: x + 0.0),
        "while": lambda: tf.while_loop(lambda i, a: i < n, lambda i, a: (i + 1, body(a)), [0, x])[
            1
        ],
    }
    y = makers[build]()
    (slope,) = tf.gradients(y, x)
    assert fired([y, slope], [x, n])["multiply by one"] > 0
    assert_same([y, slope], {x: values(3), n: 3})


def test_control_edges_that_order_nothing_are_gone() -> None:
    v, x = tf.Variable(1.0, name="v"), placeholder()
    first = v.assign_add(1.0, name="first")
    with tf.control_dependencies([first]):
        group = tf.no_op(name="group")
    with tf.control_dependencies([group, tf.constant(1.0)]):
        y = tf.identity(x, name="y")
    lines = after(simplify_controls, step([y], feeds=[x])).splitlines()
    assert "y = Identity(x, ^first)" in lines


def test_a_conditional_waits_for_what_its_unused_outputs_would_take() -> None:
    v, go, x = tf.Variable(0.0), tf.placeholder(tf.bool, []), tf.constant(3.0)
    written = tf.cond(go, lambda: v.assign_add(1.0) + 0, lambda: v + 0)
    with tf.control_dependencies([written.op]):
        first, _ = tf.cond(go, lambda: (x * 2, written * 2), lambda: (x, written))
    with tf.Session() as session:
        session.run(v.initializer)
        assert session.run(first, {go: True}) == 6
        assert session.run(v) == 1


def test_an_assertion_is_waited_for() -> None:
    x = placeholder()
    with tf.control_dependencies([tf.check_numerics(x, "bad")]):
        y = tf.identity(x)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        session.run(y, {x: np.nan})
