"""The rule that decides what is stored: reads · cost <= size · (cost + store) + reads · load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from thalweg.ir.expr import Load, call, constant
from thalweg.ir.index import number
from thalweg.ir.loop import IndexTuple, Operand, reduce, scatter
from thalweg.ir.target import Target
from thalweg.lower.cost import (
    analyse,
    element_cost,
    worth_inlining,
    worth_rematerializing,
)
from thalweg.lower.memory.buffers import Buffer, BufferKind

TARGET = Target(name="test", load_cost=2.0, store_cost=3.0, far_cost=40.0)
LOAD, STORE, FAR = TARGET.load_cost, TARGET.store_cost, TARGET.far_cost
N = 1000

# size, cost of an element, reads in all; whether it is computed where it is read
RULE: list[tuple[str, int, float, float, bool]] = [
    ("one reader", N, 1, N, True),
    ("an expensive one with one reader", N, 40, N, True),
    ("cheap with two readers", N, 1, 2 * N, True),
    ("as cheap as a load with many readers", N, LOAD, 100 * N, True),
    ("expensive with two readers", N, 30, 2 * N, False),
    ("expensive with two readers of a part each", N, 30, N, True),
    ("a few operations with two readers", N, 6, 2 * N, True),
    ("just too many with two readers", N, 8, 2 * N, False),
    ("expensive and stretched over rows", N, 12, 50 * N, False),
    ("an addition stretched over rows", N, 1, 50 * N, True),
    ("a scalar that everything reads", 1, 5, N, False),
    ("a cheap scalar that everything reads", 1, 2, N, True),
    ("nothing to compute", 0, 10, 0, True),
]


@pytest.mark.parametrize(
    ("size", "cost", "reads", "inlined"), [r[1:] for r in RULE], ids=[r[0] for r in RULE]
)
def test_the_rule(size: int, cost: float, reads: float, inlined: bool) -> None:
    assert worth_inlining(size, cost, reads, TARGET) is inlined
    stored = size * (cost + STORE) + reads * LOAD
    assert inlined is (reads * cost <= stored)


# cost of an element, late readers; whether they compute it again
LATE: list[tuple[str, float, int, bool]] = [
    ("an activation with one reader", 28, 1, True),
    ("an activation with two readers", 28, 2, False),
    ("a scaled row with several readers", 7, 5, True),
    ("as dear as memory", FAR, 1, True),
    ("a power", 43, 1, False),
]


@pytest.mark.parametrize(
    ("cost", "readers", "again"), [r[1:] for r in LATE], ids=[r[0] for r in LATE]
)
def test_the_rule_of_late_readers(cost: float, readers: int, again: bool) -> None:
    assert worth_rematerializing(cost, readers, TARGET) is again


def test_an_elements_cost_is_that_of_its_parts_each_once() -> None:
    load = Load(Buffer(BufferKind.TEMPORARY, np.dtype(np.float32), 1), number(0))
    square = call("mul", load, load)
    assert element_cost(load, TARGET) == LOAD
    assert element_cost(call("add", square, square), TARGET) == LOAD + 2


def operand(*shape: int) -> Operand:
    return Operand(0, shape, np.dtype(np.float32))


def test_every_part_counts_once() -> None:
    x = operand(4)
    (i,) = IndexTuple.over((4,))
    value = x[i].exp()
    form = analyse(value + value)
    assert form.cost == analyse(value).cost + 1
    assert form.loads == {x: 1.0}


def test_a_reduction_counts_what_it_repeats() -> None:
    x = operand(4, 10)
    (i,) = IndexTuple.over((4,))
    form = analyse(reduce("sum", [10], lambda k: x[i, k] * x[i, k] * x[0, k]))
    assert form.combines and form.loads == {x: 20.0}
    assert form.cost >= 10


def test_arithmetic_on_indices_is_free() -> None:
    x = operand(12)
    at = IndexTuple.over((3, 4))
    form = analyse(x[at[0] * 4 + at[1],])
    assert form.cost == 0 and form.moves_only


def test_an_index_from_memory_is_read() -> None:
    x, places = operand(12), operand(5)
    (i,) = IndexTuple.over((5,))
    form = analyse(x[places[i],])
    assert set(form.loads) == {x, places}
    assert not form.moves_only


def test_dear_functions_cost_more() -> None:
    def cost(function: str, *more: Any) -> float:
        return analyse(call(function, operand(1)[0], *more)).cost

    assert cost("add", 1.0) < cost("div", 1.0) < cost("exp") < cost("pow", 1.5)


def test_a_scatter_is_known_as_one() -> None:
    x = operand(4)
    form = analyse(scatter("sum", [4], lambda k: ((k // 2,), x[k]), 0))
    assert form.combines and not form.moves_only


def test_a_number_is_nothing() -> None:
    form = analyse(constant(1.5))
    assert (form.cost, dict(form.loads), form.expr_size) == (0, {}, 0)
    assert analyse(call("cast", 1, np.float32)).expr_size == 1
