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
    for name, (tensor, wanted) in cases.items():
        value = session.run(tensor, {x: IMAGE})
        np.testing.assert_array_equal(value, wanted, err_msg=name)
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


@pytest.mark.parametrize("shape", [(2, 3, 1), (4, 2, 3, 1)])
def test_images_of_unknown_rank(shape: tuple[int, ...]) -> None:
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32)
        wanted = {
            tf.image.flip_left_right(x): np.flip(image, -2),
            tf.image.flip_up_down(x): np.flip(image, -3),
            tf.image.transpose_image(x): np.swapaxes(image, -2, -3),
            tf.image.rot90(x): np.rot90(image, 1, (-3, -2)),
        }
        for tensor, value in wanted.items():
            assert tensor.shape.rank is None
            np.testing.assert_array_equal(session.run(tensor, {x: image}), value)
        with pytest.raises(ValueError, match="known rank"):
            tf.image.central_crop(x, 0.5)
