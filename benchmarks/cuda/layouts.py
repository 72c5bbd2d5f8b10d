"""Channels first next to channels last on a GPU: what `LayoutTimes` of its target should say.

    python benchmarks/cuda/layouts.py          # a GPU, or THALWEG_CUDA=emulated with --tiny

For each case, microseconds of its kernels in either layout and of a transpose between them, each
the best of some runs of a profile; then nanoseconds that channels first takes longer, for each flop
of a convolution or element of a pooling, and for each element of the transpose.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import thalweg as tf

Case = Callable[[Any, Any, str], Any]  # of an image, of its channels and a layout


def convolution(size: int) -> Case:
    """A convolution to as many channels."""

    def case(image: Any, channels: int, layout: str) -> Any:
        weights = tf.ones([size, size, channels, channels], image.dtype) / channels
        return tf.nn.conv2d(image, weights, [1, 1, 1, 1], "SAME", data_format=layout)

    return case


def adjoint(image: Any, channels: int, layout: str) -> Any:
    """The adjoint of a 3x3 convolution in its image."""
    weights = tf.ones([3, 3, channels, channels], image.dtype) / channels
    shape = image.shape.as_list()
    strides = [1, 1, 1, 1]
    return tf.nn.conv2d_backprop_input(shape, weights, image, strides, "SAME", data_format=layout)


def pool(image: Any, channels: int, layout: str) -> Any:
    """A max pooling."""
    window = [1, 2, 2, 1] if layout == "NHWC" else [1, 1, 2, 2]
    return tf.nn.max_pool(image, window, window, "SAME", data_format=layout)


def pool_gradient(image: Any, channels: int, layout: str) -> Any:
    """The gradient of a max pooling."""
    return tf.gradients(pool(image, channels, layout), image)[0]


def transpose(image: Any, channels: int, layout: str) -> Any:
    """An image in the other layout."""
    return tf.transpose(image, [0, 2, 3, 1] if layout == "NCHW" else [0, 3, 1, 2])


CASES: dict[str, tuple[Case, int]] = {  # with the taps of a window
    "1x1": (convolution(1), 1),
    "3x3": (convolution(3), 9),
    "3x3 adjoint": (adjoint, 9),
    "max pooling": (pool, 0),
    "its gradient": (pool_gradient, 0),
    "transpose": (transpose, 0),
}


def microseconds(case: Case, sizes: tuple[int, int, int], dtype: Any, layout: str) -> float:
    """Those of the kernels of a case."""
    batch, side, channels = sizes
    shape = [batch, side, side, channels] if layout == "NHWC" else [batch, channels, side, side]
    config = tf.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.layout_optimizer = 2  # OFF
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        with tf.device("/gpu:0"):
            image = tf.Variable(tf.ones(shape, dtype))
            result = tf.reduce_max(case(image + 0, channels, layout)).op.inputs[0]
            taken = tf.assign(tf.Variable(tf.zeros(result.shape, dtype)), result).op
        session.run(tf.global_variables_initializer())
        rows = session.plan(taken).profile(20).rows
    return sum(row.best for row in rows) * 1e6


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tiny", action="store_true", help="sizes for an emulated GPU")
    given = options.parse_args()
    every = [(2, 4, 8)] if given.tiny else [(32, 56, 64), (32, 28, 128), (32, 14, 256)]
    print("| case | dtype | sizes | NCHW us | NHWC us | difference, ns per flop or element |")
    print("|---|---|---|---|---|---|")
    for name, (case, taps) in CASES.items():
        for dtype in (tf.float32, tf.bfloat16):
            for sizes in every:
                first, last = (microseconds(case, sizes, dtype, n) for n in ("NCHW", "NHWC"))
                batch, side, channels = sizes
                count = batch * side * side * channels * (2 * taps * channels if taps else 1)
                per = (first if name == "transpose" else first - last) * 1e3 / count
                cells = f"{first:.1f} | {last:.1f} | {np.format_float_scientific(per, 2)}"
                print(f"| {name} | {dtype.name} | {sizes} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
