"""Layers: values, names of variables, shapes, sharing, signatures."""

import inspect
from typing import Any

import numpy as np
import pytest

import thalweg as tf

R = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def names() -> list[str]:
    return [v.op.name for v in tf.global_variables()]


def normal(*shape: int) -> Any:
    return R.normal(size=shape).astype(np.float32)


def run(*values: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(values, feeds)


# Dense, dropout, flatten, inputs


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (2, 2, 4, 3)])
def test_dense(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    layer = tf.layers.Dense(5, activation=tf.nn.relu, bias_initializer=tf.ones_initializer())
    y = layer(tf.constant(x))
    assert y.shape.as_list() == [*shape[:-1], 5]
    value, kernel, bias = run(y, layer.kernel, layer.bias)
    np.testing.assert_allclose(value, np.maximum(x @ kernel + bias, 0), rtol=1e-4, atol=1e-6)


def test_functions_name_and_share_variables() -> None:
    x = tf.ones([2, 3])
    tf.layers.dense(x, 2)
    tf.layers.dense(x, 2, use_bias=False)
    tf.layers.dense(x, 2, name="mine")
    tf.layers.dense(x, 2, name="mine", reuse=True)
    assert names() == ["dense/kernel", "dense/bias", "dense_1/kernel", "mine/kernel", "mine/bias"]
    with pytest.raises(ValueError, match="already exists"):
        tf.layers.dense(x, 2, name="mine")
    with tf.variable_scope("a", reuse=tf.AUTO_REUSE):
        tf.layers.dense(x, 2, name="b")
        tf.layers.dense(x, 2, name="b")
    assert names()[5:] == ["a/b/kernel", "a/b/bias"]


def test_dense_wants_a_known_depth() -> None:
    with pytest.raises(ValueError, match="last dimension"):
        tf.layers.dense(tf.placeholder(tf.float32, [None, None]), 3)
    with pytest.raises(ValueError, match="min_ndim=2"):
        tf.layers.dense(tf.ones([3]), 3)


def test_regularizers_and_constraints() -> None:
    layer = tf.layers.Dense(
        2,
        kernel_regularizer=lambda w: 0.1 * tf.reduce_sum(w * w),
        bias_regularizer=tf.reduce_sum,
        activity_regularizer=tf.reduce_mean,
        kernel_constraint=tf.nn.relu,
    )
    layer(tf.ones([2, 3]))
    assert len(tf.losses.get_regularization_losses()) == 3
    assert layer.kernel.constraint is tf.nn.relu


@pytest.mark.parametrize("as_tensor", [False, True])
def test_dropout(as_tensor: bool) -> None:
    x = tf.ones([20, 20])
    for training in (True, False):
        flag = tf.placeholder_with_default(training, []) if as_tensor else training
        (value,) = run(tf.layers.dropout(x, 0.25, training=flag, seed=1))
        assert bool(np.mean(value == 0) > 0.1) is training
        np.testing.assert_allclose(value[value != 0], 4 / 3 if training else 1, rtol=1e-5)


def test_flatten() -> None:
    x = tf.placeholder(tf.float32, [None, 2, 3])
    y = tf.layers.flatten(x)
    assert y.shape.as_list() == [None, 6]
    assert tf.layers.flatten(tf.placeholder(tf.float32, [2, None, 3])).shape.as_list() == [2, None]
    assert tf.layers.flatten(tf.ones([4])).shape.as_list() == [4, 1]
    value = normal(2, 2, 3)
    moved = tf.layers.flatten(tf.constant(value), data_format="channels_first")
    np.testing.assert_array_equal(run(moved)[0], value.transpose(0, 2, 1).reshape(2, 6))
    np.testing.assert_array_equal(run(y, feeds={x: value})[0], value.reshape(2, 6))


def test_input() -> None:
    assert tf.layers.Input([3], batch_size=2).shape.as_list() == [2, 3]
    assert isinstance(tf.layers.Input([3], sparse=True), tf.SparseTensor)
    with pytest.raises(ValueError, match="shape"):
        tf.layers.Input()


# Convolutions and poolings


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(
    ("name", "space"), [("Conv1D", (7,)), ("Conv2D", (7, 6)), ("Conv3D", (5, 6, 4))]
)
def test_convolution_shapes(name: str, space: Any, padding: str, data_format: str) -> None:
    shape = (2, *space, 3) if data_format == "channels_last" else (2, 3, *space)
    layer = getattr(tf.layers, name)(4, 3, strides=2, padding=padding, data_format=data_format)
    x = tf.constant(normal(*shape))
    y = layer(x)
    assert y.shape.as_list() == layer.compute_output_shape(x.shape).as_list()
    assert run(y)[0].shape == tuple(y.shape.as_list())
    assert names() == [f"{name.lower()}/kernel", f"{name.lower()}/bias"]
    assert layer.kernel.shape.as_list() == [*(3,) * len(space), 3, 4]


def test_both_formats_convolve_alike() -> None:
    x, kernel = normal(1, 5, 4, 2), tf.constant_initializer(normal(3, 3, 2, 3))
    bias = tf.constant_initializer([1.0, 2.0, 3.0])
    last = tf.layers.conv2d(x, 3, 3, kernel_initializer=kernel, bias_initializer=bias)
    first = tf.layers.conv2d(
        x.transpose(0, 3, 1, 2),
        3,
        3,
        data_format="channels_first",
        kernel_initializer=kernel,
        bias_initializer=bias,
    )
    one, two = run(last, first)
    np.testing.assert_allclose(one, two.transpose(0, 2, 3, 1), rtol=1e-5)


def test_dilation() -> None:
    x = tf.constant(normal(1, 9, 9, 1))
    layer = tf.layers.Conv2D(1, 3, dilation_rate=2)
    y = layer(x)
    assert y.shape.as_list() == [1, 5, 5, 1] == layer.compute_output_shape(x.shape).as_list()


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(
    ("name", "space"), [("Conv2DTranspose", (4, 3)), ("Conv3DTranspose", (3, 2, 3))]
)
def test_transposed(name: str, space: Any, padding: str, data_format: str) -> None:
    shape = (None, *space, 3) if data_format == "channels_last" else (None, 3, *space)
    layer = getattr(tf.layers, name)(4, 3, strides=2, padding=padding, data_format=data_format)
    x = tf.placeholder(tf.float32, shape)
    y = layer(x)
    (value,) = run(y, feeds={x: normal(2, *shape[1:])})
    assert y.shape.as_list() == [None, *value.shape[1:]]
    grown = [2 * size + (1 if padding == "valid" else 0) for size in space]
    assert sorted(value.shape) == sorted([2, *grown, 4])
    assert layer.kernel.shape.as_list() == [*(3,) * len(space), 4, 3]


def test_separable() -> None:
    x = tf.constant(normal(2, 7, 6, 3))
    layer = tf.layers.SeparableConv2D(5, [3, 3], depth_multiplier=2, padding="same")
    assert layer(x).shape.as_list() == [2, 7, 6, 5]
    assert names() == [
        f"separable_conv2d/{n}" for n in ("depthwise_kernel", "pointwise_kernel", "bias")
    ]
    assert layer.pointwise_kernel.shape.as_list() == [1, 1, 6, 5]


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_separable_in_one_dimension(data_format: str) -> None:
    x = normal(2, 7, 3) if data_format == "channels_last" else normal(2, 3, 7)
    layer = tf.layers.SeparableConv1D(5, 3, strides=2, data_format=data_format)
    y = layer(tf.constant(x))
    value, depthwise, pointwise = run(y, layer.depthwise_kernel, layer.pointwise_kernel)
    if data_format == "channels_first":
        x, value = x.transpose(0, 2, 1), value.transpose(0, 2, 1)
    windows = np.stack([x[:, i : i + 3] for i in range(0, 5, 2)], 1)
    expected = np.einsum("bowc,wc->boc", windows, depthwise[:, :, 0]) @ pointwise[0]
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("kind", ["Max", "Average"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_poolings(rank: int, kind: str, data_format: str) -> None:
    space = (6, 4, 4)[:rank]
    x = normal(2, *space, 3)
    given = x if data_format == "channels_last" else np.moveaxis(x, -1, 1)
    layer = getattr(tf.layers, f"{kind}Pooling{rank}D")(2, 2, data_format=data_format)
    y = layer(tf.constant(given))
    assert y.shape.as_list() == layer.compute_output_shape(given.shape).as_list()
    (value,) = run(y)
    split = [part for size in space for part in (size // 2, 2)]
    windows = x.reshape(2, *split, 3)
    axes = tuple(range(2, 2 + 2 * rank, 2))
    expected = windows.max(axes) if kind == "Max" else windows.mean(axes)
    expected = expected if data_format == "channels_last" else np.moveaxis(expected, -1, 1)
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": (1, 2, 3)}, "kernel_size"),
        ({"kernel_size": 3, "strides": None}, "strides"),
        ({"kernel_size": 3, "padding": "full"}, "padding"),
        ({"kernel_size": 3, "data_format": "NHWC"}, "data_format"),
    ],
)
def test_bad_options(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tf.layers.conv2d(tf.ones([1, 5, 5, 1]), 2, **options)


def test_unknown_channels() -> None:
    with pytest.raises(ValueError, match="channel dimension"):
        tf.layers.conv2d(tf.placeholder(tf.float32, [1, 5, 5, None]), 2, 3)


def test_signatures() -> None:
    dense = list(inspect.signature(tf.layers.dense).parameters)
    assert dense[:3] == ["inputs", "units", "activation"]
    assert dense[-3:] == ["trainable", "name", "reuse"]
    pool = list(inspect.signature(tf.layers.max_pooling2d).parameters)
    assert pool == ["inputs", "pool_size", "strides", "padding", "data_format", "name"]


# Batch normalization


def normalized(x: Any, axes: Any, epsilon: float = 1e-3) -> Any:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon)


CASES = [
    ((6, 3), -1, None),
    ((4, 5, 3), 1, None),
    ((2, 3, 4, 5), 3, None),
    ((2, 3, 4, 5), 1, False),
]
CASES += [((2, 3, 4, 5), 1, True), ((2, 3, 4, 5), [1, 3], None)]


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize(("shape", "axis", "fused"), CASES)
def test_batch_normalization(shape: Any, axis: Any, fused: Any, as_tensor: bool) -> None:
    x = 3 + 2 * normal(*shape)
    kept = [a % len(shape) for a in (axis if isinstance(axis, list) else [axis])]
    axes = tuple(a for a in range(len(shape)) if a not in kept)
    layer = tf.layers.BatchNormalization(axis=axis, momentum=0.9, fused=fused)
    inputs = tf.constant(x)
    flags = [tf.placeholder_with_default(f, []) if as_tensor else f for f in (True, False)]
    train, infer = layer(inputs, training=flags[0]), layer(inputs, training=flags[1])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_allclose(session.run(infer), x / np.sqrt(1.001), rtol=1e-4)
        trained = session.run(train)
        np.testing.assert_allclose(trained, normalized(x, axes), rtol=1e-3, atol=1e-4)
        session.run(layer.updates[:2])
        mean, variance = session.run([layer.moving_mean, layer.moving_variance])
    count = x.size // mean.size
    unbiased = count / (count - 1) if layer.fused else 1
    np.testing.assert_allclose(mean, 0.1 * x.mean(axes), rtol=1e-4)
    np.testing.assert_allclose(variance, 0.9 + 0.1 * x.var(axes) * unbiased, rtol=1e-4)
    assert tf.get_collection(tf.GraphKeys.UPDATE_OPS) == layer.updates


def test_batch_normalization_names_and_no_updates_without_training() -> None:
    tf.layers.batch_normalization(tf.ones([2, 3]))
    assert names() == [
        f"batch_normalization/{n}" for n in ("gamma", "beta", "moving_mean", "moving_variance")
    ]
    assert [v.op.name for v in tf.trainable_variables()] == names()[:2]
    assert tf.get_collection(tf.GraphKeys.UPDATE_OPS) == []
    tf.layers.batch_normalization(tf.ones([2, 3]), center=False, scale=False, training=True)
    assert len(names()) == 6
    assert len(tf.get_collection(tf.GraphKeys.UPDATE_OPS)) == 2


def test_fused_without_scale_and_centre_in_float64() -> None:
    x = R.normal(size=(3, 2, 2, 2))
    y = tf.layers.batch_normalization(tf.constant(x), center=False, scale=False, training=True)
    np.testing.assert_allclose(run(y)[0], normalized(x, (0, 1, 2)), rtol=1e-6)


def test_averages_stand_still_when_not_in_training() -> None:
    training = tf.placeholder(tf.bool, [])
    tf.layers.batch_normalization(tf.constant(normal(4, 3)), training=training)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    mean, variance = run(*updates, feeds={training: False})
    np.testing.assert_array_equal(mean, np.zeros(3))
    np.testing.assert_array_equal(variance, np.ones(3))


def test_gradients_go_through_the_batch_statistics() -> None:
    x = tf.constant(normal(5, 3))
    y = tf.layers.batch_normalization(x, training=True)
    (gradient,) = run(tf.gradients(tf.reduce_sum(y * y * y), x)[0])
    np.testing.assert_allclose(gradient.sum(0), 0, atol=1e-4)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_renormalization_bounds_the_correction(as_tensor: bool) -> None:
    x = 3 + 5 * normal(6, 3)
    training = tf.placeholder_with_default(True, []) if as_tensor else True
    layer = tf.layers.BatchNormalization(
        renorm=True, renorm_clipping={"rmax": 2.0, "rmin": 0.5, "dmax": 1.0}, renorm_momentum=0.5
    )
    y = layer(tf.constant(x), training=training)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        value = session.run(y)
        session.run(layer.updates)
        mean, stddev = session.run([layer.renorm_mean, layer.renorm_stddev])
    deviation = np.sqrt(x.var(0) + 1e-3)
    r, d = np.clip(deviation, 0.5, 2), np.clip(x.mean(0), -1, 1)
    np.testing.assert_allclose(value, normalized(x, 0) * r + d, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(mean, x.mean(0) / 2, rtol=1e-4)
    np.testing.assert_allclose(stddev, (1 + deviation) / 2, rtol=1e-4)
    with pytest.raises(ValueError, match="not in rmax"):
        tf.layers.BatchNormalization(renorm=True, renorm_clipping={"x": 1})


def test_virtual_batches() -> None:
    x = normal(6, 3)
    y = tf.layers.batch_normalization(tf.constant(x), training=True, virtual_batch_size=2)
    expected = np.concatenate([normalized(x[i : i + 2], 0) for i in (0, 2, 4)])
    np.testing.assert_allclose(run(y)[0], expected, rtol=1e-3, atol=1e-4)


def test_adjustment() -> None:
    x = normal(6, 3)
    y = tf.layers.batch_normalization(
        tf.constant(x),
        training=True,
        adjustment=lambda shape: (tf.fill(shape, 2.0), tf.ones(shape)),
    )
    np.testing.assert_allclose(run(y)[0], 2 * normalized(x, 0) + 1, rtol=1e-3, atol=1e-4)


def test_what_the_fused_op_cannot_do_is_composed() -> None:
    x = normal(2, 3, 4)
    y = tf.layers.batch_normalization(tf.constant(x), training=True, fused=True)
    np.testing.assert_allclose(run(y)[0], normalized(x, (0, 1)), rtol=1e-3, atol=1e-4)


def test_statistics_are_not_cut_into_parts() -> None:
    with tf.variable_scope("cut", partitioner=tf.fixed_size_partitioner(2)):
        tf.layers.batch_normalization(tf.zeros([2, 4]))
        cut = tf.get_variable("cut", [4])
    names = [variable.op.name for variable in tf.global_variables()]
    assert "cut/batch_normalization/moving_mean" in names
    assert len(list(cut)) == 2


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ([2, 3, 4, 5], {"fused": True, "axis": 2}, "fused batch norm takes"),
        ([2, 3], {"axis": 2}, "Invalid axis"),
        ([2, None], {}, "undefined `axis`"),
        (None, {}, "undefined rank"),
        ([2, 3, 4, 5], {"renorm": True, "virtual_batch_size": 2}, "virtual_batch_size"),
    ],
)
def test_bad_normalizations(shape: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tf.layers.batch_normalization(tf.placeholder(tf.float32, shape), **options)
