"""The cipher as expressions gives the words of the cipher over arrays, one for one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check_lowerings
from thalweg.ir.interpret import run_loop
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ir.philox import Generator, philox_words, unsigned
from thalweg.ops.random.philox import Philox

LONG, HUGE = (1 << 64) - 1, (1 << 128) - 1
GENERATORS = [
    Philox(0, 0),
    Philox(LONG, HUGE),
    Philox(0x299F31D0A4093822, 0x0370734413198A2E85A308D3243F6A88),
    Philox(5, LONG - 3),  # the lower half overflows on the way
    Philox.from_seeds(87654321, 42),
]


class Form:
    """A loop that is no op's."""

    def __init__(self, loop: Callable[..., Any]) -> None:
        self.loop = loop

    def has(self, part: str) -> bool:
        return part == "loop"


def elements(loop: Callable[..., Any], array: Any, *shape: int) -> Any:
    """The values of `loop(at, operand)` over a shape."""
    operand = Operand(0, array.shape, array.dtype)
    return run_loop(Form(loop), [operand], [array], shape)


@pytest.mark.parametrize("generator", GENERATORS)
def test_words(generator: Philox) -> None:
    place = generator.place()
    actual = elements(lambda at, place: Generator.at(place).word(at[0]), place, 21)
    assert actual.tolist() == generator.words(21).tolist()


@pytest.mark.parametrize("lane", range(4))
def test_blocks(lane: int) -> None:
    def loop(at: IndexTuple, place: Operand) -> Any:
        words = [unsigned(place[i]) for i in range(6)]
        counter = words[2] + unsigned(at[0]), *words[3:]
        return philox_words((words[0], words[1]), counter)[lane]

    generator = GENERATORS[2]
    actual = elements(loop, generator.place(), 5)
    assert actual.tolist() == generator.blocks(5)[:, lane].tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("seeds", [(0, 0), (-1, 7), (2**31 - 1, -(2**31))])
def test_scrambled_seeds(dtype: Any, seeds: tuple[int, int]) -> None:
    array = np.array(seeds, dtype)
    actual = elements(lambda at, seed: Generator.scrambled(seed).word(at[0]), array, 9)
    assert actual.tolist() == Philox.scrambled(*seeds).words(9).tolist()


FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]


@pytest.mark.parametrize("shape", [[], [7], [2, 3], [0, 2]])
def test_stateless_numbers(shape: list[int]) -> None:
    def build(seed: tf.Tensor) -> None:
        for dtype in FLOATS:
            tf.random.stateless_uniform(shape, seed, dtype=dtype)
            tf.random.stateless_normal(shape, seed, dtype=dtype)
        for dtype in (tf.int32, tf.int64):
            tf.random.stateless_uniform(shape, seed, -5, 9, dtype)
            tf.random.stateless_uniform(shape, seed, dtype.min, dtype.max, dtype)

    check_lowerings(build, [np.array([3, 4])])


def drawn(node: Any, generator: Philox, inputs: list[Any], shape: list[int]) -> Any:
    """What a node draws at a place of its stream, by its loop."""
    arrays = [*inputs, generator.place()]
    operands = [Operand(i, a.shape, a.dtype, a) for i, a in enumerate(arrays)]
    return run_loop(node.op, operands, arrays, shape)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("make", [tf.random_uniform, tf.random_normal])
def test_stateful_numbers(dtype: tf.DType, make: Callable[..., tf.Tensor]) -> None:
    shape = [3, 5]
    with tf.Graph().as_default() as graph, tf.Session() as session:
        make(shape, dtype=dtype, seed=3)
        (node,) = [n for n in graph.nodes if n.op.has("stream")]
        first, second = session.run(node.output), session.run(node.output)
    begin = Philox.from_seeds(node.op.seed, node.op.seed2)
    for expected, generator in ((first, begin), (second, begin.skip(15 * 256))):
        actual = drawn(node, generator, [np.array(shape)], shape)
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual.astype(float), expected.astype(float), 1e-5, 1e-6)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_stateful_integers(dtype: tf.DType) -> None:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        expected = session.run(tf.random_uniform([9], -3, 11, dtype, seed=3))
        (node,) = [n for n in graph.nodes if n.op.has("stream")]
    ends = [np.array(end, dtype.as_numpy_dtype) for end in (-3, 11)]
    generator = Philox.from_seeds(node.op.seed, node.op.seed2)
    actual = drawn(node, generator, [np.array([9]), *ends], [9])
    assert actual.dtype == expected.dtype and actual.tolist() == expected.tolist()
