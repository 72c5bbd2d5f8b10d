"""Rows of the op table: batch, space, depth and patches."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check
from thalweg.ops.arrays.rearranging import BatchToSpace, SpaceToBatch

R = np.random.default_rng(0)
IMAGES = R.normal(size=(1, 2, 4, 2))
PADDINGS = [[1, 1], [0, 2]]


def space_to_batch(x: Any, block: list[int], paddings: Any) -> Any:
    """One strided slice of the padded array for each position in a block."""
    rest = [(0, 0)] * (x.ndim - 1 - len(block))
    padded = np.pad(x, [(0, 0), *map(tuple, paddings), *rest])
    parts = [
        padded[(slice(None), *(slice(o, None, b) for o, b in zip(offset, block, strict=True)))]
        for offset in np.ndindex(*block)
    ]
    return np.concatenate(parts)


def space_to_depth(x: Any, block: int) -> Any:
    parts = [x[:, i::block, j::block] for i in range(block) for j in range(block)]
    return np.concatenate(parts, axis=3)


ROWS: dict[str, Any] = {
    "space_to_batch_nd": (
        lambda x: tf.space_to_batch_nd(x, [2, 3], PADDINGS),
        [IMAGES],
        lambda x: space_to_batch(x, [2, 3], PADDINGS),
    ),
    "space_to_batch_nd one axis": (
        lambda x: tf.space_to_batch_nd(x, [2], [[0, 1]]),
        [IMAGES[0, :, :3, 0]],
        lambda x: space_to_batch(x, [2], [[0, 1]]),
    ),
    "space_to_batch_nd no axis": (
        lambda x: tf.space_to_batch_nd(x, [], np.zeros((0, 2))),
        [IMAGES],
        lambda x: x,
    ),
    "space_to_batch_nd empty": (
        lambda x: tf.space_to_batch_nd(x, [2, 2], [[0, 0], [0, 0]]),
        [np.zeros((0, 2, 2, 1))],
        np.zeros((0, 1, 1, 1)),
    ),
    "space_to_batch": (
        lambda x: tf.space_to_batch(x, [[1, 1], [0, 0]], 2),
        [IMAGES],
        lambda x: space_to_batch(x, [2, 2], [[1, 1], [0, 0]]),
    ),
    "batch_to_space_nd": (
        lambda x: tf.batch_to_space_nd(x, [2, 3], [[0, 0], [0, 0]]),
        [space_to_batch(IMAGES, [2, 3], PADDINGS)],
        np.pad(IMAGES, [(0, 0), *map(tuple, PADDINGS), (0, 0)]),
    ),
    "batch_to_space_nd crops": (
        lambda x: tf.batch_to_space_nd(x, [2, 3], PADDINGS),
        [space_to_batch(IMAGES, [2, 3], PADDINGS)],
        IMAGES,
    ),
    "batch_to_space": (
        lambda x: tf.batch_to_space(x, [[0, 0], [0, 1]], 2),
        [space_to_batch(IMAGES, [2, 2], [[0, 0], [0, 0]])],
        IMAGES[:, :, :-1],
    ),
    "space_to_depth": (
        lambda x: tf.space_to_depth(x, 2),
        [IMAGES],
        lambda x: space_to_depth(x, 2),
    ),
    "space_to_depth NCHW": (
        lambda x: tf.space_to_depth(x, 2, data_format="NCHW"),
        [np.moveaxis(IMAGES, 3, 1)],
        np.moveaxis(space_to_depth(IMAGES, 2), 3, 1),
    ),
    "depth_to_space": (
        lambda x: tf.depth_to_space(x, 2),
        [space_to_depth(IMAGES, 2)],
        IMAGES,
    ),
    "depth_to_space NCHW": (
        lambda x: tf.depth_to_space(x, 2, data_format="NCHW"),
        [np.moveaxis(space_to_depth(IMAGES, 2), 3, 1)],
        np.moveaxis(IMAGES, 3, 1),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect)


def patches(x: Any, size: int, stride: int, rate: int, pads: Any) -> Any:
    padded = np.pad(x, [(0, 0), *pads, (0, 0)])
    extent = (size - 1) * rate + 1
    rows = range(0, padded.shape[1] - extent + 1, stride)
    columns = range(0, padded.shape[2] - extent + 1, stride)
    cut = [
        [
            padded[:, r : r + extent : rate, c : c + extent : rate].reshape(len(x), -1)
            for c in columns
        ]
        for r in rows
    ]
    return np.array(cut).transpose(2, 0, 1, 3)


@pytest.mark.parametrize(
    ("size", "stride", "rate", "padding", "pads"),
    [
        (1, 1, 1, "VALID", [(0, 0), (0, 0)]),
        (2, 1, 1, "VALID", [(0, 0), (0, 0)]),
        (2, 1, 1, "SAME", [(0, 1), (0, 1)]),
        (2, 2, 1, "SAME", [(0, 0), (0, 0)]),
        (2, 1, 2, "SAME", [(1, 1), (1, 1)]),
    ],
)
def test_extract_image_patches(size: int, stride: int, rate: int, padding: str, pads: Any) -> None:
    def cut(x: tf.Tensor) -> tf.Tensor:
        return tf.extract_image_patches(
            x, [1, size, size, 1], [1, stride, stride, 1], [1, rate, rate, 1], padding
        )

    check(cut, IMAGES, expect=lambda x: patches(x, size, stride, rate, pads))
    check(lambda x: tf.gradients(cut(x) ** 2, x), IMAGES, gradient=False)


@pytest.mark.parametrize("base", [None, [[2, 0], [0, 5]]])
def test_required_paddings(base: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        sizes = tf.placeholder_with_default([5, 7], [2])
        paddings, crops = session.run(tf.required_space_to_batch_paddings(sizes, [3, 4], base))
    floor = np.zeros((2, 2), int) if base is None else np.array(base)
    assert np.all(np.add(paddings.sum(1), [5, 7]) % [3, 4] == 0)
    assert np.all(paddings[:, 0] == floor[:, 0])
    np.testing.assert_array_equal(crops, [[0, p] for p in (paddings - floor)[:, 1]])
    assert np.all(crops[:, 1] < [3, 4])


IMPOSSIBLE: dict[str, Any] = {
    "block 0": lambda: tf.space_to_batch_nd(IMAGES, [0, 2], PADDINGS),
    "negative padding": lambda: tf.space_to_batch_nd(IMAGES, [1, 1], [[0, -1], [0, 0]]),
    "not divisible": lambda: tf.space_to_batch_nd(IMAGES, [3, 2], [[0, 0], [0, 0]]),
    "batch": lambda: tf.batch_to_space_nd(IMAGES, [2, 2], [[0, 0], [0, 0]]),
    "crops": lambda: tf.batch_to_space_nd(IMAGES, [1, 1], [[2, 1], [0, 0]]),
    "mismatch": lambda: tf.space_to_batch_nd(IMAGES, [2, 2], [[0, 0]]),
    "depth block": lambda: tf.space_to_depth(IMAGES, 1),
    "depth": lambda: tf.depth_to_space(IMAGES, 2),
    "format": lambda: tf.space_to_depth(IMAGES, 2, data_format="HWC"),
    "ksizes": lambda: tf.extract_image_patches(IMAGES, [2, 2, 2, 1], [1] * 4, [1] * 4, "SAME"),
    "padding": lambda: tf.extract_image_patches(IMAGES, [1] * 4, [1] * 4, [1] * 4, "FULL"),
    "nothing": lambda: tf.extract_image_patches(IMAGES),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_arguments(name: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"\w"):
        IMPOSSIBLE[name]()


def test_space_is_padded_with_empty_strings() -> None:
    with tf.Session() as session:
        moved = session.run(tf.space_to_batch_nd([["a"]], [2], [[0, 1]]))
    assert moved.tolist() == [[b"a"], [b""]]


def test_square_blocks_of_old_graphs() -> None:
    there, back = SpaceToBatch(block_size=2), BatchToSpace(block_size=2)
    check(
        lambda x: there(x, PADDINGS),
        IMAGES,
        expect=lambda x: space_to_batch(x, [2, 2], PADDINGS),
    )
    check(lambda x: back(x, PADDINGS), space_to_batch(IMAGES, [2, 2], PADDINGS), expect=IMAGES)
