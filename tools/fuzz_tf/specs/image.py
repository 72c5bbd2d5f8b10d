"""tf.image."""

from __future__ import annotations

from typing import Any

from tools.fuzz_tf.draw import Code, Draw, spec


def _picture(draw: Draw, dtype: str = "float32", fill: str = "0..1", channels: int = 3) -> Code:
    shape = (draw.integer(1, 7), draw.integer(1, 7), channels)
    return draw.tensor(dtype, (draw.integer(1, 2), *shape) if draw.chance(0.5) else shape, fill)


@spec("image.flip_left_right image.flip_up_down image.rot90 image.transpose_image image.transpose")
def _flip(draw: Draw) -> None:
    x = _picture(draw, draw.choice("float32", "uint8", "float64"), "0..200", draw.integer(1, 3))
    draw.call(x, **({"k": draw.integer(-2, 5)} if draw.function.endswith("90") else {}))


@spec("image.adjust_brightness", ulps=64)
def _brightness(draw: Draw) -> None:
    dtype = draw.choice("float32", "uint8", "float64", "float16")
    draw.call(_picture(draw, dtype, "0..1" if "f" in dtype else "0..256"), draw.number(-0.5, 0.5))


@spec("image.adjust_contrast", ulps=256)
def _contrast(draw: Draw) -> None:
    dtype = draw.choice("float32", "uint8", "float64", "float16")
    draw.call(_picture(draw, dtype, "0..1" if "f" in dtype else "0..256"), draw.number(0.1, 2))


@spec("image.adjust_gamma", ulps=256)
def _gamma(draw: Draw) -> None:
    draw.call(_picture(draw), draw.number(0.2, 3), draw.number(0.5, 2))


@spec("image.adjust_hue", ulps=512)
def _hue(draw: Draw) -> None:
    draw.call(_picture(draw), draw.number(-1, 1))


@spec("image.adjust_saturation", ulps=512)
def _saturation(draw: Draw) -> None:
    draw.call(_picture(draw), draw.number(0, 2))


@spec("image.rgb_to_hsv image.hsv_to_rgb", ulps=256)
def _hsv(draw: Draw) -> None:
    draw.call(_picture(draw, draw.choice("float32", "float64")))


@spec(
    "image.rgb_to_grayscale image.rgb_to_yiq image.rgb_to_yuv image.yuv_to_rgb image.yiq_to_rgb",
    ulps=256,
)
def _grey(draw: Draw) -> None:
    draw.call(
        _picture(
            draw,
            "float32"
            if "y" in draw.function[-4:] and "gray" not in draw.function
            else draw.choice("float32", "uint8"),
            "0..1",
        )
    )


@spec("image.grayscale_to_rgb")
def _to_rgb(draw: Draw) -> None:
    draw.call(_picture(draw, channels=1))


@spec("image.convert_image_dtype", ulps=64)
def _convert(draw: Draw) -> None:
    source = draw.choice(
        "float32", "uint8", "float16", "int16", "int32", "uint16", "float64", "int8"
    )
    target = draw.choice(
        "float32", "uint8", "float16", "int16", "int32", "uint16", "float64", "int8"
    )
    x = _picture(draw, source, "0..1" if source.startswith("f") else "0..100")
    draw.call(x, Code(f"tf.{target}"), saturate=draw.chance(0.4))


@spec("image.per_image_standardization", ulps=1024)
def _standardization(draw: Draw) -> None:
    draw.call(_picture(draw, draw.choice("float32", "uint8"), "0..200"))


@spec("image.total_variation", ulps=512)
def _variation(draw: Draw) -> None:
    draw.call(_picture(draw))


@spec("image.psnr", ulps=512)
def _psnr(draw: Draw) -> None:
    shape = (2, draw.integer(1, 7), draw.integer(1, 7), 3)
    draw.call(draw.tensor("float32", shape, "0..1"), draw.tensor("float32", shape, "0..1"), 1.0)


@spec("image.central_crop")
def _central_crop(draw: Draw) -> None:
    draw.call(
        _picture(draw, draw.choice("float32", "uint8"), "0..9"), draw.choice(0.3, 0.5, 0.75, 1.0)
    )


@spec("image.crop_to_bounding_box")
def _crop(draw: Draw) -> None:
    x = draw.tensor(draw.choice("float32", "uint8"), (2, 6, 7, 3), "0..9")
    draw.call(x, draw.integer(0, 2), draw.integer(0, 3), draw.integer(1, 4), draw.integer(1, 4))


@spec("image.pad_to_bounding_box")
def _pad(draw: Draw) -> None:
    x = draw.tensor(draw.choice("float32", "uint8"), (2, 4, 5, 3), "0..9")
    draw.call(x, draw.integer(0, 2), draw.integer(0, 3), draw.integer(6, 8), draw.integer(8, 9))


@spec("image.resize_image_with_crop_or_pad image.resize_with_crop_or_pad")
def _crop_or_pad(draw: Draw) -> None:
    draw.call(
        _picture(draw, draw.choice("float32", "uint8"), "0..9"),
        draw.integer(1, 9),
        draw.integer(1, 9),
    )


@spec("image.resize_image_with_pad", ulps=512)
def _with_pad(draw: Draw) -> None:
    draw.call(_picture(draw), draw.integer(1, 9), draw.integer(1, 9))


@spec(
    "image.resize_bilinear image.resize_bicubic image.resize_area image.resize_nearest_neighbor",
    ulps=512,
)
def _resize(draw: Draw) -> None:
    dtype = draw.choice("float32", "float32", "uint8", "float64", "float16")
    # Of every dtype the weights and the results are float32: so are the gradients' errors.
    draw.gradient = dtype == "float32"
    shape = (draw.integer(1, 2), draw.integer(1, 7), draw.integer(1, 7), draw.integer(1, 3))
    x = draw.tensor(dtype, shape, "0..9")
    more: dict[str, Any] = {"align_corners": True} if draw.chance(0.4) else {}
    if not more and "area" not in draw.function and draw.chance(0.4):
        more = {"half_pixel_centers": True}
    draw.call(x, [draw.integer(1, 9), draw.integer(1, 9)], **more)


@spec("image.resize_images image.resize", ulps=512)
def _resize_images(draw: Draw) -> None:
    x = _picture(draw, draw.choice("float32", "uint8"), "0..9")
    more: dict[str, Any] = {"align_corners": True} if draw.chance(0.3) else {}
    more |= {"preserve_aspect_ratio": True} if draw.chance(0.3) else {}
    draw.call(x, [draw.integer(1, 9), draw.integer(1, 9)], method=draw.integer(0, 3), **more)


@spec("image.crop_and_resize", ulps=512)
def _crop_and_resize(draw: Draw) -> None:
    count = draw.integer(0, 4)
    x = draw.tensor("float32", (2, draw.integer(2, 6), draw.integer(2, 6), 2))
    boxes = draw.tensor("float32", (count, 4), "-0.2..1.2")
    draw.call(
        x,
        boxes,
        draw.ints((count,), 0, 2, "int32"),
        [draw.integer(1, 4), draw.integer(1, 4)],
        method=draw.choice("bilinear", "nearest"),
        extrapolation_value=draw.choice(0, 2.5),
    )


@spec("image.draw_bounding_boxes")
def _boxes(draw: Draw) -> None:
    x = draw.tensor("float32", (2, 8, 9, 3), "0..1")
    draw.call(x, draw.tensor("float32", (2, 3, 4), "0..1"))


@spec("image.non_max_suppression")
def _suppression(draw: Draw) -> None:
    count = draw.integer(0, 9)
    boxes = draw.tensor("float32", (count, 4), "0..1")
    more = {"score_threshold": 0.2} if draw.chance(0.4) else {}
    draw.call(
        boxes,
        draw.tensor("float32", (count,), "0..1"),
        draw.integer(0, 9),
        draw.number(0.1, 0.9),
        **more,
    )


@spec("image.extract_glimpse")
def _glimpse(draw: Draw) -> None:
    x = draw.tensor("float32", (2, 6, 7, 2))
    offsets = draw.tensor("float32", (2, 2), "-0.5..0.5")
    draw.call(
        x,
        [draw.integer(1, 5), draw.integer(1, 5)],
        offsets,
        centered=draw.chance(0.7),
        normalized=True,
        noise="zero",
    )


@spec("image.encode_png")
def _png(draw: Draw) -> None:
    x = draw.tensor(
        draw.choice("uint8", "uint16"),
        (draw.integer(1, 5), draw.integer(1, 5), draw.integer(1, 4)),
        "0..200",
    )
    draw.line(f"tf.image.decode_png({draw.calling(x)}, dtype={x}.dtype)")


@spec("image.decode_png image.decode_image image.decode_bmp image.decode_gif image.decode_jpeg")
def _bad_bytes(draw: Draw) -> None:
    draw.call(draw.strings([b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"BM123", b"GIF89a"], ()))
