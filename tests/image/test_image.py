"""`tf.image` composites: geometry, colours, dtypes, demands on shapes."""

import numpy as np
import pytest

import thalweg as tf

R = np.random.default_rng(1)
IMAGE = R.uniform(size=(4, 6, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as opened:
        yield opened


@pytest.mark.parametrize("known", [True, False])
def test_geometry(session, known):
    x = tf.placeholder(tf.float32, IMAGE.shape if known else [None, None, 3])
    cases = {
        "flip_left_right": (tf.image.flip_left_right(x), IMAGE[:, ::-1]),
        "flip_up_down": (tf.image.flip_up_down(x), IMAGE[::-1]),
        "transpose": (tf.image.transpose_image(x), IMAGE.transpose(1, 0, 2)),
        "central": (tf.image.central_crop(x, 0.5), IMAGE[1:3, 1:5]),
        "crop": (tf.image.crop_to_bounding_box(x, 1, 2, 2, 3), IMAGE[1:3, 2:5]),
        "pad": (
            tf.image.pad_to_bounding_box(x, 1, 0, 6, 8),
            np.pad(IMAGE, [(1, 1), (0, 2), (0, 0)]),
        ),
        "crop or pad": (
            tf.image.resize_image_with_crop_or_pad(x, 6, 4),
            np.pad(IMAGE[:, 1:5], [(1, 1), (0, 0), (0, 0)]),
        ),
    }
    for name, (tensor, expected) in cases.items():
        value = session.run(tensor, {x: IMAGE})
        np.testing.assert_array_equal(value, expected, err_msg=name)
        assert tensor.shape.is_compatible_with(value.shape), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, 2, 2), "offset_height must be >= 0"),
        ((0, 0, 0, 2), "target_height must be > 0"),
        ((3, 0, 3, 2), "height must be >= target"),
        ((0, 5, 2, 2), "width must be >= target"),
    ],
)
def test_bad_crops_fail_early_or_in_the_step(session, arguments, message):
    with pytest.raises(ValueError, match=message):
        tf.image.crop_to_bounding_box(tf.constant(IMAGE), *arguments)
    unknown = [tf.placeholder_with_default(a, []) for a in arguments]
    cropped = tf.image.crop_to_bounding_box(tf.constant(IMAGE), *unknown)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(cropped)


def test_dtype_conversion(session):
    bytes_ = np.array([[[0, 128, 255]]], np.uint8)
    floats = session.run(tf.image.convert_image_dtype(bytes_, tf.float32))
    np.testing.assert_allclose(floats, bytes_ / 255.0, rtol=1e-6)
    back = session.run(tf.image.convert_image_dtype(floats, tf.uint8))
    np.testing.assert_array_equal(back, bytes_)
    wide = session.run(tf.image.convert_image_dtype(bytes_, tf.int16))
    np.testing.assert_array_equal(wide, bytes_.astype(np.int16) * 128)


def test_colours(session):
    brighter = session.run(tf.image.adjust_brightness(IMAGE, 0.1))
    np.testing.assert_allclose(brighter, IMAGE + 0.1, rtol=1e-5)
    mean = IMAGE.mean((0, 1), keepdims=True)
    contrast = session.run(tf.image.adjust_contrast(IMAGE, 2.0))
    np.testing.assert_allclose(contrast, (IMAGE - mean) * 2 + mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(session.run(tf.image.adjust_hue(IMAGE, 1.0)), IMAGE, atol=1e-5)
    gray = session.run(tf.image.adjust_saturation(IMAGE, 0.0))
    np.testing.assert_allclose(gray, IMAGE.max(-1, keepdims=True).repeat(3, -1), atol=1e-6)
    standard = session.run(tf.image.per_image_standardization(IMAGE))
    np.testing.assert_allclose([standard.mean(), standard.std()], [0, 1], atol=1e-5)
    one = session.run(tf.image.rgb_to_grayscale(IMAGE))
    np.testing.assert_allclose(one[..., 0], IMAGE @ [0.2989, 0.587, 0.114], rtol=1e-5)
    np.testing.assert_array_equal(session.run(tf.image.grayscale_to_rgb(one)), one.repeat(3, -1))


def test_random_changes_are_seeded_and_bounded(session):
    flipped = tf.image.random_flip_left_right(IMAGE, seed=5)
    seen = {session.run(flipped)[0, 0, 0] for _ in range(20)}
    assert seen == {IMAGE[0, 0, 0], IMAGE[0, -1, 0]}
    for tensor in (
        tf.image.random_brightness(IMAGE, 0.2, seed=1),
        tf.image.random_contrast(IMAGE, 0.5, 1.5, seed=1),
        tf.image.random_hue(IMAGE, 0.1, seed=1),
        tf.image.random_saturation(IMAGE, 0.5, 1.5, seed=1),
    ):
        assert session.run(tensor).shape == IMAGE.shape
    with pytest.raises(ValueError, match="max_delta"):
        tf.image.random_hue(IMAGE, 0.7)


def test_resize_images(session):
    assert session.run(tf.image.resize_images(IMAGE, [8, 3])).shape == (8, 3, 3)
    kept = tf.image.resize_images(IMAGE, [8, 8], preserve_aspect_ratio=True)
    assert session.run(kept).shape == (5, 8, 3)
    padded = session.run(tf.image.resize_image_with_pad(IMAGE, 8, 8))
    assert padded.shape == (8, 8, 3)
    with pytest.raises(ValueError, match="3 or 4 dimensions"):
        tf.image.resize_images(IMAGE[0], [2, 2])


def test_quality(session):
    x = np.arange(12.0, dtype=np.float32).reshape(2, 2, 3)
    assert session.run(tf.image.total_variation(x)) == 6 * 6 + 3 * 6
    np.testing.assert_allclose(session.run(tf.image.psnr(IMAGE, IMAGE + 0.1, 1.0)), 20.0, rtol=1e-4)


@pytest.mark.parametrize("shape", [(4, 6, 3), (2, 4, 6, 3)])
def test_geometry_of_images_or_batches_known_in_the_step_only(session, shape):
    value = R.uniform(size=shape).astype(np.float32)
    x = tf.placeholder(tf.float32, None)
    cases = {
        "flip_left_right": (tf.image.flip_left_right(x), np.flip(value, -2)),
        "flip_up_down": (tf.image.flip_up_down(x), np.flip(value, -3)),
        "transpose": (tf.image.transpose_image(x), np.swapaxes(value, -3, -2)),
        "rot90": (tf.image.rot90(x), np.rot90(value, 1, (-3, -2))),
        "central": (tf.image.central_crop(x, 0.5), value[..., 1:3, 1:5, :]),
    }
    for name, (tensor, expected) in cases.items():
        (grad,) = tf.gradients(tensor, x)
        actual, slope = session.run([tensor, grad], {x: value})
        np.testing.assert_array_equal(actual, expected, err_msg=name)
        assert slope.sum() == expected.size
    flipped = tf.image.random_flip_left_right(x, seed=3)
    drawn = [session.run(flipped, {x: value}) for _ in range(20)]
    single = shape if len(shape) == 4 else (1, *shape)
    for image in np.reshape(drawn, (-1, *single)):
        for one, original in zip(image, value.reshape(single), strict=True):
            assert (one == original).all() or (one == np.flip(original, -2)).all()
    assert len({one.tobytes() for one in drawn}) == 2 ** single[0]


@pytest.mark.parametrize("known", ["all", "rank", "nothing"])
@pytest.mark.parametrize(
    "size, target", [((3, 7), (6, 9)), ((13, 7), (6, 11)), ((5, 5), (5, 5)), ((10, 9), (4, 7))]
)
def test_padding_rounds_the_resized_image_down(session, size, target, known):
    """The image fills the target along one axis; along the other its size is cut off."""
    ratio = max(size[0] / target[0], size[1] / target[1])
    inner = [int(n / ratio) for n in size]
    first = [int((limit - n / ratio) / 2) for limit, n in zip(target, size, strict=True)]
    image = R.uniform(0.1, 1, size=(*size, 2)).astype(np.float32)
    shape = {"all": image.shape, "rank": [None] * 3, "nothing": None}[known]
    x = tf.placeholder(tf.float32, shape)
    padded = tf.image.resize_image_with_pad(x, *target)
    actual, resized = session.run(
        [padded, tf.image.resize_bilinear(image[None], inner)[0]], {x: image}
    )
    expected = np.zeros((*target, 2), np.float32)
    rows, columns = (slice(f, f + n) for f, n in zip(first, inner, strict=True))
    expected[rows, columns] = resized
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert padded.shape.as_list()[:2] == list(target)


def test_padding_checks_its_target(session):
    with pytest.raises(ValueError, match="target_height must be > 0"):
        tf.image.resize_image_with_pad(IMAGE, 0, 3)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_gamma_is_of_values_in_the_unit_range(session, dtype):
    top = 1 if dtype is np.float32 else np.iinfo(dtype).max
    image = (IMAGE * top).astype(dtype)
    actual = session.run(tf.image.adjust_gamma(image, 0.5, 0.9))
    wanted = 0.9 * (image / top) ** 0.5
    scaled = wanted if dtype is np.float32 else np.floor(wanted * (top + 0.5))
    np.testing.assert_allclose(actual, scaled, rtol=1e-6, atol=0 if top == 255 else 1e-6 * top)
    assert actual.dtype == dtype


@pytest.mark.parametrize("offset", [0.0, -2.0])
def test_turning_the_hue_by_a_third_swaps_channels_whatever_their_range(session, offset):
    image = (IMAGE + offset).astype(np.float32)
    actual = session.run(tf.image.adjust_hue(image, 1 / 3))
    np.testing.assert_allclose(actual, image[..., [2, 0, 1]], atol=1e-5)


@pytest.mark.parametrize(
    "adjust",
    [lambda x: tf.image.adjust_hue(x, 0.13), lambda x: tf.image.adjust_saturation(x, 0.6)],
    ids=["hue", "saturation"],
)
def test_adjusted_colours_are_differentiable(session, adjust):
    """Along a direction, the gradient gives the difference of two steps."""
    pixels = np.array([[[0.9, 0.2, 0.4], [0.3, 0.8, 0.5]], [[0.1, 0.35, 0.7], [0.6, 0.25, 0.1]]])
    weights, way = R.normal(size=pixels.shape), R.normal(size=pixels.shape)
    x = tf.placeholder(tf.float32, None)
    total = tf.reduce_sum(adjust(x) * weights.astype(np.float32))
    (grad,) = tf.gradients(total, x)
    step = 2.0**-9
    high, low = (session.run(total, {x: pixels + sign * step * way}) for sign in (1, -1))
    slope = (session.run(grad, {x: pixels}) * way).sum()
    np.testing.assert_allclose(slope, (high - low) / (2 * step), rtol=2e-3)


def test_grey_images_have_one_channel(session):
    with pytest.raises(ValueError, match="should be size 1"):
        tf.image.grayscale_to_rgb(IMAGE)
    x = tf.placeholder(tf.float32, [None, None, None])
    coloured = tf.image.grayscale_to_rgb(x)
    assert coloured.shape.as_list() == [None, None, 3]
    with pytest.raises(tf.errors.InvalidArgumentError, match="should be size 1"):
        session.run(coloured, {x: IMAGE})
    actual = session.run(coloured, {x: IMAGE[..., :1]})
    np.testing.assert_array_equal(actual, np.repeat(IMAGE[..., :1], 3, -1))


def test_saturating_takes_infinity_to_the_largest(session):
    half = tf.constant([np.inf, -np.inf, 1.0], tf.float16)
    assert session.run(tf.saturate_cast(half, tf.uint16)).tolist() == [65504, 0, 1]


def test_variation_of_unsigned_images_is_refused(session):
    with pytest.raises(TypeError, match="cast"):
        tf.image.total_variation(np.zeros((3, 3, 1), np.uint8))
