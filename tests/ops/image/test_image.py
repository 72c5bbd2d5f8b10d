"""Rows of the op table: resizing, turning, cropping by boxes; codecs and colours."""

import io

import numpy as np
import pytest
from PIL import Image

import thalweg as tf
from tests.ops.harness import check
from thalweg.ops.image import crops

R = np.random.default_rng(0)
IMAGES = R.normal(size=(2, 3, 4, 2)).astype(np.float32)

RESIZES = {
    "bilinear": tf.image.resize_bilinear,
    "bicubic": tf.image.resize_bicubic,
    "area": tf.image.resize_area,
    "nearest": tf.image.resize_nearest_neighbor,
}


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(5, 3), (2, 7), (3, 4)])
@pytest.mark.parametrize("method", RESIZES)
def test_resizing_is_linear_and_its_gradient_the_transpose(method, size, align):
    op = RESIZES[method]
    check(lambda x: op(x, size, align_corners=align), IMAGES, gradient=False)
    with tf.Graph().as_default(), tf.Session() as session:
        x, weights = tf.constant(IMAGES), R.normal(size=(2, *size, 2)).astype(np.float32)
        y = op(x, size, align_corners=align)
        (dx,) = tf.gradients(y, x, tf.constant(weights))
        forward, backward = session.run([y, dx])
    np.testing.assert_allclose((forward * weights).sum(), (IMAGES * backward).sum(), rtol=1e-4)


def test_resizing_to_the_same_size_changes_nothing():
    with tf.Session() as session:
        for op in RESIZES.values():
            np.testing.assert_allclose(session.run(op(IMAGES, (3, 4))), IMAGES, rtol=1e-5)


def test_resizing_refuses_empty_images_and_targets():
    with tf.Graph().as_default(), tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be positive"):
            session.run(tf.image.resize_bilinear(IMAGES, tf.placeholder_with_default([0, 3], [2])))
        with pytest.raises(ValueError, match="rank"):
            tf.image.resize_bilinear(IMAGES[0], (2, 2))


@pytest.mark.parametrize("k", [-1, 0, 1, 2, 3, 5])
def test_rot90(k):
    double = IMAGES[0].astype(np.float64)
    check(lambda x: tf.image.rot90(x, k), double, expect=lambda x: np.rot90(x, k, (0, 1)))


def test_crop_and_resize_gradient_is_the_transpose():
    boxes = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.7, 1.3]], np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(IMAGES)
        y = tf.image.crop_and_resize(x, boxes, [0, 1], [3, 5])
        weights = R.normal(size=(2, 3, 5, 2)).astype(np.float32)
        (dx,) = tf.gradients(y, x, tf.constant(weights))
        forward, backward = session.run([y, dx])
    np.testing.assert_allclose((forward * weights).sum(), (IMAGES * backward).sum(), rtol=1e-4)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_round_trip(channels):
    pixels = R.integers(0, 256, (5, 7, channels)).astype(np.uint8)
    with tf.Graph().as_default(), tf.Session() as session:
        decoded = tf.image.decode_png(tf.image.encode_png(pixels), channels=channels)
        np.testing.assert_array_equal(session.run(decoded), pixels)
        assert decoded.shape.as_list() == [None, None, channels]


def test_four_channels_of_any_image_but_a_jpeg():
    pixels = R.integers(0, 256, (5, 7, 4)).astype(np.uint8)
    with tf.Graph().as_default(), tf.Session() as session:
        decoded = tf.image.decode_image(tf.image.encode_png(pixels), channels=4)
        np.testing.assert_array_equal(session.run(decoded), pixels)
        photo = tf.image.encode_jpeg(pixels[..., :3])
        with pytest.raises(tf.errors.InvalidArgumentError, match="JPEG"):
            session.run(tf.image.decode_image(photo, channels=4))


def test_jpeg_round_trip_is_close_and_formats_are_detected():
    ramp = np.linspace(0, 255, 16 * 16).reshape(16, 16, 1).astype(np.uint8).repeat(3, -1)
    with tf.Graph().as_default(), tf.Session() as session:
        data = tf.image.encode_jpeg(ramp)
        assert np.abs(session.run(tf.image.decode_image(data)).astype(int) - ramp).max() < 16
        assert session.run(tf.image.is_jpeg(data))
        assert session.run(tf.image.extract_jpeg_shape(data)).tolist() == [16, 16, 3]
        small = session.run(tf.image.decode_jpeg(data, ratio=2))
        assert small.shape == (8, 8, 3)
        window = tf.image.decode_and_crop_jpeg(data, [2, 3, 4, 5])
        assert session.run(window).shape == (4, 5, 3)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Invalid"):
            session.run(tf.image.decode_jpeg(b"no image"))


def test_colour_spaces_are_inverse():
    rgb = R.uniform(size=(4, 5, 3)).astype(np.float32)
    greys = np.repeat(R.uniform(size=(4, 1)), 3, -1)
    for pixels in (rgb, greys, np.zeros((2, 3)), np.eye(3)):
        check(tf.image.rgb_to_hsv, pixels, gradient=False)
        check(tf.image.hsv_to_rgb, pixels, gradient=False)
    with tf.Graph().as_default(), tf.Session() as session:
        back = tf.image.hsv_to_rgb(tf.image.rgb_to_hsv(rgb))
        np.testing.assert_allclose(session.run(back), rgb, atol=1e-6)


def test_non_max_suppression():
    boxes = [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11]]
    with tf.Graph().as_default(), tf.Session() as session:
        kept = tf.image.non_max_suppression(boxes, [0.9, 0.75, 0.6, 0.95], 3, 0.5)
        assert session.run(kept).tolist() == [3, 0]


def test_sampled_windows_keep_their_promises():
    with tf.Graph().as_default(), tf.Session() as session:
        box = tf.constant([[[0.2, 0.2, 0.8, 0.8]]])
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            [40, 50, 3], box, seed=3, min_object_covered=0.3, area_range=(0.2, 0.9)
        )
        for _ in range(20):
            (top, left, _), (height, width, _) = session.run([begin, size])
            assert 0.2 * 2000 <= height * width <= 0.9 * 2000
            assert top >= 0 and left >= 0 and top + height <= 40 and left + width <= 50


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_deep_png_round_trip(channels):
    pixels = R.integers(0, 65536, (5, 7, channels)).astype(np.uint16)
    with tf.Graph().as_default(), tf.Session() as session:
        decoded = tf.image.decode_png(tf.image.encode_png(pixels), dtype=tf.uint16)
        np.testing.assert_array_equal(session.run(decoded), pixels)


def test_files(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        name = str(tmp_path / "folder" / "file.txt")
        session.run(tf.write_file(name, "text"))
        assert session.run(tf.read_file(name)) == b"text"
        assert session.run(tf.matching_files(str(tmp_path / "*" / "*.txt"))) == [name.encode()]
        with pytest.raises(tf.errors.NotFoundError, match="No such file"):
            session.run(tf.read_file(name + "x"))


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("method", RESIZES)
def test_gradients_of_resizing(method, align):
    op = RESIZES[method]
    check(lambda x: op(x, (5, 2), align_corners=align), IMAGES[:1, :, :3, :1], single=True)


@pytest.mark.parametrize("size", [(5, 2), (1, 7)])
@pytest.mark.parametrize(
    "method, option",
    [
        *[(method, "align_corners") for method in RESIZES],
        *[(method, "half_pixel_centers") for method in RESIZES if method != "area"],
    ],
)
@pytest.mark.parametrize("on", [False, True])
def test_backward_ops_of_resizing(method, option, on, size):
    options = {option: on}

    def build(x):
        return tf.gradients(RESIZES[method](x, size, **options) ** 2, x)

    check(build, IMAGES, gradient=False)


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_gradients_of_crops(method):
    boxes = np.array([[0.1, 0.0, 0.9, 1.2], [0.3, 0.8, 0.7, 0.1]], np.float32)
    check(
        lambda x: tf.image.crop_and_resize(x, boxes, [0, 0], [2, 3], method=method),
        IMAGES[:1, :, :, :1],
        single=True,
    )


@pytest.mark.parametrize("size", [(2, 3), (1, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_crops_and_their_backward_ops(method, size):
    boxes = np.array([[0.1, 0.0, 0.9, 1.2], [0.3, 0.8, 0.7, 0.1]], np.float32)

    def build(x, boxes):
        crops = tf.image.crop_and_resize(x, boxes, [1, 0], size, method, extrapolation_value=3)
        return crops, tf.gradients(crops * crops, [x, boxes])

    check(build, IMAGES, boxes, gradient=False)


#: Boxes whose pixels lie between those of a 5x5 image by more than a step of the differences, and
#: outside of it: there crops are quadratic in the ends of the boxes.
OFF_GRID = np.array([[0.0625, 0.125, 0.375, 0.90625], [0.875, 0.34375, -0.25, 0.71875]], np.float32)


@pytest.mark.parametrize("size", [(1, 1), (2, 2)])
def test_gradients_of_crops_in_their_boxes(size):
    image = np.random.default_rng(2).uniform(size=(1, 5, 5, 1)).astype(np.float32)
    check(
        lambda x, boxes: tf.image.crop_and_resize(x, boxes, [0, 0], size),
        image,
        OFF_GRID,
        single=True,
        step=2.0**-6,
    )


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_gradients_of_slopes_of_crops(axes):
    rng = np.random.default_rng(3)
    image = rng.uniform(size=(1, 5, 5, 1)).astype(np.float32)
    slope, back = crops.CropSlope(slopes=axes), crops.CropSlopeGradImage(slopes=axes)
    options = {"single": True, "step": 2.0**-6}
    check(lambda x, boxes: slope(x, boxes, [0, 0], [2, 2]), image, OFF_GRID, **options)
    grads = rng.uniform(size=(2, 2, 2, 1)).astype(np.float32)
    check(lambda dy, boxes: back(dy, boxes, [0, 0], [1, 5, 5, 1]), grads, OFF_GRID, **options)


def test_boxes_of_crops_of_whole_pixels_have_gradients():
    """Integer images carry nothing back, the boxes on them do; nearest pixels count as mixed."""
    image = np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1)  # 4 a row, 1 a column
    for method in ("bilinear", "nearest"):
        with tf.Graph().as_default(), tf.Session() as session:
            boxes = tf.constant([[0.1, 0.2, 0.8, 0.9]])
            crop = tf.image.crop_and_resize(image, boxes, [0], [1, 1], method)
            (grad,) = session.run(tf.gradients(crop, boxes))
        np.testing.assert_allclose(grad, [[6.0, 1.5, 6.0, 1.5]], rtol=1e-5)


def drawn_borders(shape, boxes):
    """Where the borders of boxes are: their ends in pixels are cut off towards zero."""
    height, width = shape
    marks = np.zeros(shape, bool)
    rows, columns = np.indices(shape)
    for box in boxes:
        top, left, bottom, right = (
            int(end * size) for end, size in zip(box, [height - 1, width - 1] * 2, strict=True)
        )
        if top > bottom or left > right:
            continue
        inside = (top <= rows) & (rows <= bottom) & (left <= columns) & (columns <= right)
        edge = (rows == top) | (rows == bottom) | (columns == left) | (columns == right)
        marks |= inside & edge
    return marks


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 6), (9, 7)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_boxes_are_drawn_along_their_borders(size, channels):
    boxes = R.uniform(-0.3, 1.4, (1, 6, 4)).astype(np.float32)
    boxes[0, :2] = [[0, 0, 1, 1], [0.3, 0.4, 0.95, 0.9]]
    image = np.zeros((1, *size, channels), np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        drawn = session.run(tf.image.draw_bounding_boxes(image, boxes))
        white = session.run(tf.image.draw_bounding_boxes(image, boxes, colors=[[0.5] * 4]))
    np.testing.assert_array_equal((drawn[0] != 0).any(-1), drawn_borders(size, boxes[0]))
    np.testing.assert_array_equal(white[0, ..., 0], 0.5 * drawn_borders(size, boxes[0]))


def test_boxes_are_drawn_on_images_of_colours():
    with pytest.raises(ValueError, match="channels"):
        tf.image.draw_bounding_boxes(np.zeros((1, 4, 4, 2), np.float32), [[[0.0, 0.0, 1.0, 1.0]]])
    unknown = tf.placeholder(tf.float32)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="channels"):
        drawn = tf.image.draw_bounding_boxes(unknown, [[[0.0, 0.0, 1.0, 1.0]]])
        session.run(drawn, {unknown: np.zeros((1, 4, 4, 2), np.float32)})


def keys(distance, a):
    """The cubic kernel of interpolation."""
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


def cubic_row(row, count, align_corners, half_pixel):
    """One row resized to `count` pixels, pixel by pixel; places are rounded to 1024ths."""
    size, result = len(row), []
    scale = (size - 1) / (count - 1) if align_corners and count > 1 else size / count
    for index in range(count):
        place = (index + 0.5) * scale - 0.5 if half_pixel else index * scale
        base = int(np.floor(place))
        fraction = round((place - base) * 1024) / 1024
        taps = [
            (base + k, keys(fraction - k, -0.5 if half_pixel else -0.75)) for k in (-1, 0, 1, 2)
        ]
        if half_pixel:
            taps = [(source, weight) for source, weight in taps if 0 <= source < size]
        total = sum(weight for _, weight in taps)
        mixed = sum(row[min(max(source, 0), size - 1)] * weight for source, weight in taps)
        result.append(mixed / total)
    return result


OPTIONS = [{}, {"align_corners": True}, {"half_pixel_centers": True}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_cubic_weights(size, options):
    row = R.normal(size=size).astype(np.float32)
    flags = options.get("align_corners", False), options.get("half_pixel_centers", False)
    for count in (1, 2, 5, 11):
        expected = np.reshape(cubic_row(row, count, *flags), (1, 1, count, 1))
        check(
            lambda x, count=count: tf.image.resize_bicubic(x, (1, count), **options),
            row.reshape(1, 1, size, 1),
            expect=expected,
            gradient=False,
            atol=1e-5,
        )


@pytest.mark.parametrize("method", RESIZES)
@pytest.mark.parametrize("align", [False, True])
def test_a_single_pixel_is_resized_to_copies_of_it(method, align):
    column = R.normal(size=(1, 3, 1, 1)).astype(np.float32)
    pixel = column[:, :1]
    op = RESIZES[method]
    check(
        lambda x: op(x, (3, 4), align_corners=align),
        pixel,
        expect=np.tile(pixel, (1, 3, 4, 1)),
        gradient=False,
    )
    check(
        lambda x: op(x, (3, 4), align_corners=align),
        column,
        expect=np.tile(column, (1, 1, 4, 1)),
        gradient=False,
    )


#: Pixels without two channels alike, where both maps are smooth.
COLOURS = np.array([[0.9, 0.2, 0.4], [0.3, 0.8, 0.5], [0.1, 0.35, 0.7], [0.6, 0.25, 0.1]])


@pytest.mark.parametrize("op", [tf.image.rgb_to_hsv, tf.image.hsv_to_rgb])
def test_gradients_of_colour_spaces(op):
    check(op, COLOURS)


def test_bitmaps_and_moving_images():
    first, second = R.integers(0, 2, (2, 4, 5, 3)).astype(np.uint8) * 255
    frames = [Image.fromarray(pixels) for pixels in (first, second)]
    bitmap, moving = io.BytesIO(), io.BytesIO()
    frames[0].save(bitmap, "BMP")
    frames[0].save(moving, "GIF", save_all=True, append_images=frames[1:])
    with tf.Graph().as_default(), tf.Session() as session:
        decoded = session.run(tf.image.decode_bmp(bitmap.getvalue()))
        np.testing.assert_array_equal(decoded, first)
        decoded = session.run(tf.image.decode_gif(moving.getvalue()))
        np.testing.assert_array_equal(decoded, [first, second])
