"""Running datasets in tests, and random pipelines with their models in plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import thalweg as tf

Dataset = tf.data.Dataset
experimental = tf.data.experimental


def elements(make: Callable[[], Any], most: int = 1000) -> list[Any]:
    """The elements of a dataset, through a session."""
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = make().make_initializable_iterator()
        session.run(iterator.initializer)
        return drained(session, iterator.get_next(), most)


def drained(session: Any, following: Any, most: int = 1000) -> list[Any]:
    """The remaining elements."""
    result: list[Any] = []
    while len(result) < most:
        try:
            result.append(session.run(following))
        except tf.errors.OutOfRangeError:
            break
    return result


def plain(value: Any) -> Any:
    """Values as nested Python lists, tuples and dicts."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(plain(part) for part in value) if type(value) in (tuple, list) else value
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@dataclass(frozen=True)
class Step:
    """A stage of a pipeline of integers, and its model as a function of lists."""

    name: str
    build: Callable[[Any], Any]
    model: Callable[[list[int]], list[int]]

    def __repr__(self) -> str:
        return self.name


def _python(x: Any) -> Any:
    result = tf.py_func(lambda value: value * 3, [x], tf.int64)
    result.set_shape([])
    return result


def _chunks(values: list[int], size: int, drop: bool = False) -> list[list[int]]:
    found = [values[i : i + size] for i in range(0, len(values), size)]
    return [chunk for chunk in found if not drop or len(chunk) == size]


def _joined(parts: list[list[int]]) -> list[int]:
    return [value for part in parts for value in part]


def _interleaved(values: list[int], cycle: int, block: int) -> list[int]:
    """Interleave round-robin over `cycle` slots, `block` elements of a slot's dataset per visit."""
    waiting = [list(range(value % 4)) for value in values]
    slots: list[list[int] | None] = [None] * cycle
    result: list[int] = []
    place = 0
    while waiting or any(slot is not None for slot in slots):
        taken = 0
        while taken < block:
            if slots[place] is None:
                if not waiting or taken:
                    break
                slots[place] = waiting.pop(0)
            current = slots[place]
            assert current is not None
            if not current:
                slots[place] = None
                break
            result.append(current.pop(0))
            taken += 1
        place = (place + 1) % cycle
    return result


def _windowed(values: list[int], size: int, shift: int) -> list[int]:
    return _joined([values[i : i + size] for i in range(0, len(values), shift)])


def _chosen(sources: list[list[int]], numbers: list[int]) -> list[int]:
    return [sources[n].pop(0) for n in numbers if sources[n]]


STEPS = [
    Step("plus", lambda d: d.map(lambda x: x * 2 + 1), lambda v: [x * 2 + 1 for x in v]),
    Step(
        "sum",
        lambda d: d.map(lambda x: tf.reduce_sum(tf.stack([x, x, 1]))),
        lambda v: [2 * x + 1 for x in v],
    ),
    Step("python", lambda d: d.map(_python), lambda v: [x * 3 for x in v]),
    Step(
        "parallel python",
        lambda d: d.map(_python, num_parallel_calls=3),
        lambda v: [x * 3 for x in v],
    ),
    Step("parallel", lambda d: d.map(lambda x: x - 1, 2), lambda v: [x - 1 for x in v]),
    Step(
        "even",
        lambda d: d.filter(lambda x: tf.equal(x % 2, 0)),
        lambda v: [x for x in v if not x % 2],
    ),
    Step("take", lambda d: d.take(5), lambda v: v[:5]),
    Step("skip", lambda d: d.skip(3), lambda v: v[3:]),
    Step("shard", lambda d: d.shard(2, 1), lambda v: v[1::2]),
    Step("twice", lambda d: d.repeat(2), lambda v: v * 2),
    Step("rows", lambda d: d.batch(3).unbatch(), lambda v: v),
    Step(
        "whole batches",
        lambda d: d.batch(4, drop_remainder=True).unbatch(),
        lambda v: _joined(_chunks(v, 4, drop=True)),
    ),
    Step("prefetch", lambda d: d.prefetch(2), lambda v: v),
    Step("cache", lambda d: d.cache(), lambda v: v),
    Step("cache twice", lambda d: d.cache().repeat(2), lambda v: v * 2),
    Step("more", lambda d: d.concatenate(Dataset.range(2)), lambda v: [*v, 0, 1]),
    Step(
        "zip",
        lambda d: Dataset.zip((d, Dataset.range(7))).map(lambda a, b: a + b),
        lambda v: [a + b for a, b in zip(v, range(7), strict=False)],
    ),
    Step(
        "enumerate",
        lambda d: d.enumerate().map(lambda n, x: n + x),
        lambda v: [n + x for n, x in enumerate(v)],
    ),
    Step(
        "flat map",
        lambda d: d.flat_map(lambda x: Dataset.range(x % 3)),
        lambda v: _joined([list(range(x % 3)) for x in v]),
    ),
    Step(
        "interleave",
        lambda d: d.interleave(lambda x: Dataset.range(x % 4), cycle_length=2, block_length=2),
        lambda v: _interleaved(v, 2, 2),
    ),
    Step(
        "parallel interleave",
        lambda d: d.interleave(lambda x: Dataset.range(x % 4), 3, 1, num_parallel_calls=3),
        lambda v: _interleaved(v, 3, 1),
    ),
    Step(
        "window",
        lambda d: d.window(3, shift=2).flat_map(lambda w: w),
        lambda v: _windowed(v, 3, 2),
    ),
    Step(
        "running sum",
        lambda d: d.apply(experimental.scan(np.int64(0), lambda s, x: (s + x, s + x))),
        lambda v: list(itertools.accumulate(v)),
    ),
    Step(
        "take while",
        lambda d: d.apply(experimental.take_while(lambda x: x < 5)),
        lambda v: list(itertools.takewhile(lambda x: x < 5, v)),
    ),
    Step("unique", lambda d: d.apply(experimental.unique()), lambda v: list(dict.fromkeys(v))),
    Step(
        "choose",
        lambda d: experimental.choose_from_datasets(
            [d, Dataset.range(100, 103)], Dataset.range(9).map(lambda x: x % 2)
        ),
        lambda v: _chosen([list(v), [100, 101, 102]], [n % 2 for n in range(9)]),
    ),
]

#: Steps without a model in Python: their expected values are computed by a run.
RANDOM_STEPS = [
    Step("shuffle", lambda d: d.shuffle(4, seed=5), list),
    Step("shuffle again", lambda d: d.shuffle(3, seed=7).repeat(2), list),
    Step("shuffle once", lambda d: d.shuffle(3, None, False).repeat(2), list),
    Step(
        "draw",
        lambda d: experimental.sample_from_datasets([d, Dataset.range(50, 55)], [0.3, 0.7], seed=2),
        list,
    ),
    Step("noise", lambda d: d.map(_noisy), list),
    Step("parallel noise", lambda d: d.map(_noisy, num_parallel_calls=2), list),
    Step("noise twice", lambda d: d.map(_noisy).prefetch(1).repeat(2), list),
]


def _noisy(x: Any) -> Any:
    return x + tf.random_uniform([], 0, 100, tf.int64, seed=3)


def pipelines(steps: list[Step], most: int = 4) -> Any:
    """Lists of stages."""
    return st.lists(st.sampled_from(steps), max_size=most)


def built(steps: list[Step], count: int) -> Any:
    """A dataset of numbers with these stages."""
    dataset = Dataset.range(count)
    for step in steps:
        dataset = step.build(dataset)
    return dataset


def modelled(steps: list[Step], count: int) -> list[int]:
    """The expected elements of the dataset."""
    values = list(range(count))
    for step in steps:
        values = step.model(values)
    return values


def pairs(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of three numbers, and their indices."""
    numbers = np.random.default_rng(seed)
    return numbers.normal(size=(count, 3)).astype(np.float32), np.arange(count, dtype=np.int64)


def assert_batches_hold_the_elements(function: Callable[..., Any], data: Any, size: int) -> None:
    """Check that mapping batches and mapping single elements give bit-identical results."""
    many = elements(lambda: Dataset.from_tensor_slices(data).map(function).batch(size))
    single = elements(lambda: Dataset.from_tensor_slices(data).map(function))
    for index in range(2):
        joined = np.concatenate([batch[index] for batch in many])
        expected = np.stack([element[index] for element in single])
        assert joined.dtype == expected.dtype
        assert joined.tobytes() == expected.tobytes()
