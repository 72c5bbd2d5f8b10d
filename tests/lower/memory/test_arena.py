"""The memory plan: no live value is ever overwritten.

Checked on random graphs, launch by launch, against a plain record of what each byte holds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tf
from tests.lower.programs import lowered, native
from tests.random_graphs import examples
from tests.random_graphs.generator import SeededGenerator
from tests.random_graphs.layers import COMPILED
from thalweg.codegen.cuda.target import emulated
from thalweg.codegen.machine import host
from thalweg.device.local import local_devices
from thalweg.ir.expr import Load, Reduce, constant
from thalweg.ir.index import row_major
from thalweg.ir.kernel import Store
from thalweg.ir.loop import Variable
from thalweg.ir.target import Target
from thalweg.lower.lowered import Lowered
from thalweg.lower.lowering import lower
from thalweg.lower.memory.arena import Arena, Request, arrange, by_size, in_place, rounded
from thalweg.lower.memory.barriers import SHARED, BarrierPlan, is_small
from thalweg.lower.memory.buffers import Buffer, BufferKind, Pieces
from thalweg.lower.nests.loop_nest import LoopNest, NestTemplate
from thalweg.lower.specialise import NotCompiled
from thalweg.runtime.compiled import Executable
from thalweg.runtime.plan import Step, plan


def random_regions(seed: int, count: int) -> list[Lowered]:
    """The regions of a random step, lowered for its shapes."""
    generator = SeededGenerator(seed)
    with generator.graph.as_default():
        generator.grow(COMPILED, count)
    computed = [tensor for tensor in generator.tensors if tensor.op.inputs]
    fetches = tuple(dict.fromkeys(computed[-3:]))
    if not fetches:
        return []
    step = plan(Step(fetches, (), tuple(generator.feeds)), local_devices({}))
    calls = [i.call for i in step.instructions if isinstance(i.call, Executable)]
    result: list[Lowered] = []
    for call in calls:
        shapes = {tensor: generator.values[tensor].shape for tensor in call.region.inputs}
        try:
            result.append(lower(call.region, shapes, host()))
        except NotCompiled:
            continue
    return result


def scratches(region: Lowered, seed: int) -> list[int]:
    """Some scratch memory for each launch."""
    rng = np.random.default_rng(seed)
    return [int(size) for size in rng.choice([0, 0, 1, 64, 1000], len(region.launches))]


def temporaries(region: Lowered) -> dict[Buffer, tuple[int, int]]:
    """Each temporary's first and last launch."""
    lives: dict[Buffer, tuple[int, int]] = {}
    for position, launch in enumerate(region.launches):
        for buffer in launch.buffers:
            if buffer.kind is BufferKind.TEMPORARY:
                first, _ = lives.get(buffer, (position, position))
                lives[buffer] = first, position
    return lives


@examples(150, soak=3000)
@given(st.integers(0, 2**63), st.sampled_from(range(5, 31)))
def test_no_two_live_buffers_overlap(seed: int, count: int) -> None:
    for region in random_regions(seed, count):
        sizes = scratches(region, seed % 1000)
        arena = arrange(region.launches, sizes, region.pieces, host())
        lives = temporaries(region)
        assert set(arena.offsets) == set(lives)
        for position in range(len(region.launches)):
            alive = [b for b, (first, last) in lives.items() if first <= position <= last]
            pieces = [(arena.offsets[b], b.bytes) for b in alive]
            if sizes[position]:
                pieces.append((arena.scratch[position], sizes[position]))
            assert_apart(sorted(pieces), arena)


def assert_apart(pieces: list[tuple[int, int]], arena: Arena) -> None:
    end = 0
    for start, size in pieces:
        assert start % host().alignment == 0
        assert start >= end
        end = start + size
    assert end <= arena.size


@examples(150, soak=3000)
@given(st.integers(0, 2**63), st.sampled_from(range(5, 31)))
def test_launches_that_do_not_wait_touch_nothing_that_others_write(seed: int, count: int) -> None:
    for region in random_regions(seed, count):
        sizes = scratches(region, seed % 1000)
        arena = arrange(region.launches, sizes, region.pieces, host())
        waits = BarrierPlan(arena, host())
        touched: list[tuple[Any, bool, int]] = []  # since the last wait: what, whether written, who
        for number, (launch, start) in enumerate(zip(region.launches, arena.scratch, strict=True)):
            piece = start, start + sizes[number]
            must_wait, owner = waits.place(launch, piece, phases=1 + number % 2)
            assert owner == SHARED or (is_small(launch, host()) and number % 2 == 0)
            if must_wait:
                touched = []
            own = places(launch, arena, piece)
            for (one, writes), (other, wrote, who) in ((a, b) for a in own for b in touched):
                is_same_thread = who == owner != SHARED
                assert is_same_thread or not (writes or wrote) or not meet(one, other)
            touched += [(what, writes, owner) for what, writes in own]


def places(launch: Any, arena: Arena, scratch: tuple[int, int]) -> list[tuple[Any, bool]]:
    """The memory that a launch accesses: ranges of the arena, or other buffers."""
    result: list[tuple[Any, bool]] = [(scratch, True)] if scratch[1] > scratch[0] else []
    for buffer, argument in zip(launch.buffers, launch.kernel.arguments, strict=True):
        place: Any = buffer
        if buffer.kind is BufferKind.TEMPORARY:
            place = (arena.offsets[buffer], arena.offsets[buffer] + buffer.bytes)
        result.append((place, argument.written))
    return result


def meet(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return one[0] < other[1] and other[0] < one[1]
    return one is other


@examples(100, soak=2000)
@given(st.integers(0, 2**63), st.sampled_from(range(5, 31)))
def test_every_temporary_is_written_before_it_is_read(seed: int, count: int) -> None:
    for region in random_regions(seed, count):
        written: set[Buffer] = set()
        for launch in region.launches:
            for buffer in launch.buffers:
                if buffer.kind is BufferKind.TEMPORARY and buffer.size:
                    assert buffer in written or buffer in launch.written
            written |= set(launch.written)


@examples(150, soak=3000)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 5000)), max_size=40)
)
def test_the_largest_first_are_apart_as_well(drawn: list[tuple[int, int, int]]) -> None:
    sizes = [rounded(size, host().alignment) for _, _, size in drawn]
    requests = [
        Request(first, first + length, size)
        for (first, length, _), size in zip(drawn, sizes, strict=True)
    ]
    starts, size = by_size(requests)
    for time in range(45):
        alive = [n for n, request in enumerate(requests) if request.first <= time <= request.last]
        assert sum(requests[n].size for n in alive) <= size
        pieces = sorted((starts[n], requests[n].size) for n in alive)
        assert_apart(pieces, Arena(size, {}, ()))


def test_the_largest_first_leave_no_holes() -> None:
    # As they come, the small one would lie in the middle of what the large one could have had.
    requests = [Request(0, 1, 640), Request(1, 3, 64), Request(2, 3, 704)]
    assert by_size(requests) == ([0, 704, 0], 768)  # of which at one time 768 live


@pytest.fixture
def graph() -> Any:
    with tf.Graph().as_default():
        yield


def stored(x: Any) -> Any:
    """A tensor that is stored: a product."""
    return tf.matmul(x, x)


def test_the_arena_is_as_large_as_what_lives_at_once(graph: Any) -> None:
    x = tf.placeholder(tf.float32, [64, 64])
    y = x
    for _ in range(10):
        y = stored(y)
    step = native(y)
    product = math.prod((64, 64)) * 4
    widest = max(loaded.scratch for loaded in step.loaded)
    assert 2 * product <= step.listing.arena.size <= 2 * product + 2 * (widest + host().alignment)


def test_a_result_takes_the_place_of_what_dies_with_it(graph: Any) -> None:
    x = tf.placeholder(tf.float32, [64, 64])
    first = stored(x)
    changed = tf.exp(first) * tf.reduce_sum(first)
    made = lowered(stored(changed))
    reading = next(launch for launch in made.launches if launch.nodes[-1].type == "Mul")
    assert sum(b.kind is BufferKind.TEMPORARY and b.size == 64 * 64 for b in reading.buffers) == 1


def test_what_is_read_elsewhere_keeps_its_place(graph: Any) -> None:
    x = tf.placeholder(tf.float32, [64, 64])
    first = stored(x)
    made = lowered(stored(tf.exp(tf.transpose(first))))
    moving = next(
        launch for launch in made.launches if {"Exp", "Transpose"} & {n.type for n in launch.nodes}
    )
    assert sum(b.kind is BufferKind.TEMPORARY for b in moving.buffers) == 2


def test_results_and_feeds_are_no_part_of_the_arena(graph: Any) -> None:
    x = tf.placeholder(tf.float32, [100])
    step = native(tf.exp(x), x * 2)
    assert step.listing.arena.size == 0 and not step.listing.arena.offsets


def rows_written(rows: tuple[int, ...], length: int) -> tuple[list[LoopNest], Buffer, Buffer]:
    """A nest that writes rows, and their last reader, which divides each row by its sum."""
    size = math.prod(rows) * length
    made, after = (Buffer.temporary(np.dtype(np.float32), size, None) for _ in range(2))
    outer, along, summed = (
        tuple(map(Variable.fresh, rows)),
        *map(Variable.fresh, (length, length)),
    )
    place, inside = (row_major((*outer, v)) for v in (along, summed))
    ones = Store(made, (*outer, along), place, constant(np.float32(1)))
    total = Reduce("sum", (summed,), Load(made, inside))
    shares = Store(after, (*outer, along), place, Load(made, place) / total)
    both = [LoopNest(NestTemplate((*outer, along), (store,)), ()) for store in (ones, shares)]
    return both, made, after


@pytest.mark.parametrize(("length", "reuses"), [(1 << 15, True), (1 << 12, False), (60_000, False)])
def test_long_rows_that_a_target_keeps_are_written_in_place(length: int, reuses: bool) -> None:
    """Shorter ones stay in registers, where kernels that only read them are faster."""
    nests, made, after = rows_written((3,), length)
    assert in_place(nests, Pieces(), emulated()) == ({after: made} if reuses else {})
    assert in_place(nests, Pieces(), Target(name="a processor")) == {}


def test_a_reduction_to_one_number_writes_no_rows() -> None:
    """It may read another number for the last time, whose memory is as large as its own."""
    first, second, numbers = (Buffer.temporary(np.dtype(np.float32), n, None) for n in (1, 1, 50))
    along = Variable.fresh(50)
    element = Load(numbers, row_major((along,))) * Load(first, row_major(()))
    stores = [Store(first, (), row_major(()), constant(np.float32(2)))]
    stores.append(Store(second, (), row_major(()), Reduce("sum", (along,), element)))
    nests = [LoopNest(NestTemplate((), (store,)), ()) for store in stores]
    assert in_place(nests, Pieces(), emulated()) == {}
