"""Nodes: typed when they are made, one object for equal structure, rewritten without recursion."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from thalweg.ir import expr
from thalweg.ir.dynamic import Dynamic
from thalweg.ir.expr import (
    FALSE,
    TRUE,
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Variable,
    as_expr,
    call,
    constant,
    select,
)
from thalweg.ir.index import Affine, affine, index_of, number
from thalweg.ir.kernel import Argument
from thalweg.ir.rewrite import Fold, Replace, Rewriter, free_variables, postorder, walk

ROW, COLUMN = Variable(4, "i"), Variable(5, "j")
X = Argument(0, np.dtype(np.float32), 20)


def load(*terms: tuple[int, Variable]) -> Load:
    return Load(X, Affine(0, {term: factor for factor, term in terms}))


def test_equal_structure_is_one_object() -> None:
    first = (load((5, ROW), (1, COLUMN)) * 2.0).exp() + Index(ROW)
    again = (load((5, ROW), (1, COLUMN)) * 2.0).exp() + Index(ROW)
    assert first is again
    assert first is not (load((5, ROW), (1, COLUMN)) * 3.0).exp() + Index(ROW)
    assert Load(X, index_of(ROW) + index_of(COLUMN)) is Load(X, index_of(COLUMN) + index_of(ROW))
    assert Load(X, Affine(0)) is not Load(Argument(0, X.dtype, 20), Affine(0))


@pytest.mark.parametrize(
    ("one", "other"), [(0.0, -0.0), (1, 1.0), (1, True), (np.int32(1), np.int64(1))]
)
def test_numbers_that_compare_equal_are_other_constants(one: object, other: object) -> None:
    assert as_expr(one) is not as_expr(other)
    assert constant(np.nan) is constant(np.nan)


def test_an_integer_of_run_time_is_not_its_hint() -> None:
    hint, same, other = Dynamic(3), Dynamic(3), Dynamic(3)
    hint.word = same.word = 7
    other.word = 8
    assert load((hint, ROW)) is load((same, ROW))
    assert load((hint, ROW)) is not load((3, ROW))
    assert load((hint, ROW)) is not load((other, ROW))


def test_a_node_lives_as_long_as_it_is_held() -> None:
    held = load((5, ROW)) + 17.25
    seen = weakref.ref(held)
    del held
    gc.collect()
    assert seen() is None
    before = sys.getrefcount(X)
    made = [load((n, ROW)) for n in range(100)]
    del made
    assert sys.getrefcount(X) == before  # the table keeps no buffer alive


def test_the_table_forgets_what_is_gone() -> None:
    gc.collect()
    before = len(expr._NODES)
    for n in range(1_000):
        load((n + 2, ROW))
    assert len(expr._NODES) <= before + 1


def test_threads_agree_on_nodes() -> None:
    def build(_: int) -> list[Expr]:
        return [(load((n, ROW)) * float(n)).tanh() for n in range(300)]

    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(build, range(8))
    assert all(a is b for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_the_child_of_a_fork_may_add_nodes() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with expr._LOCK:
            held.set()
            done.wait()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        held.wait()
        child = os.fork()
        if not child:
            os._exit(0 if expr._LOCK.acquire(blocking=False) else 1)
        done.set()
    assert os.waitpid(child, 0)[1] == 0


def test_nodes_are_frozen_and_survive_pickling() -> None:
    value = select(load((1, COLUMN)) > 0, Reduce("sum", (ROW,), load((5, ROW), (1, COLUMN))), 0)
    with pytest.raises(AttributeError, match="frozen"):
        value.dtype = np.dtype(np.int32)
    inner = pickle.loads(pickle.dumps((value, value)))
    assert inner[0] is inner[1] and inner[0].dtype == np.float32


def test_numbers_take_the_dtype_of_what_they_meet() -> None:
    assert (load() + 1).arguments[1] is constant(1, np.float32)
    assert (Index(ROW) * 0.5).arguments[1].dtype == np.float64
    assert select(TRUE, load(), 1).otherwise is constant(1.0, np.float32)
    assert call("add", 1, 2).dtype == np.int64


@pytest.mark.parametrize(
    ("comparison", "holds"),
    [("lt", True), ("le", True), ("gt", False), ("ge", False), ("eq", False), ("ne", True)],
)
def test_numbers_beyond_a_dtype_settle_comparisons(comparison: str, holds: bool) -> None:
    byte = Load(Argument(0, np.dtype(np.uint8), 1), Affine(0))
    assert call(comparison, byte, 300) is (TRUE if holds else FALSE)
    assert call(comparison, -1, byte) is (TRUE if holds else FALSE)


def test_deep_expressions_need_no_recursion() -> None:
    value: Expr = load((1, COLUMN))
    depth = 3 * sys.getrecursionlimit()
    for n in range(depth):
        value = value + float(n % 7)
    assert free_variables(value) == {COLUMN}
    assert sum(isinstance(part, Call) for part in walk([value])) == depth
    assert Fold[int](lambda part, known: 1 + max(known.parts(part), default=0)).of(value) > depth
    other = Replace(lambda part: load((1, ROW)) if isinstance(part, Load) else None).of(value)
    assert free_variables(other) == {ROW}
    assert Rewriter().of(value) is value


def test_parts_come_before_wholes_and_once() -> None:
    square = load((1, COLUMN)) * load((1, COLUMN))
    order = list(postorder([square + square, square]))
    assert [type(part) for part in order] == [Load, Call, Call]
    assert order[-1] is square + square


def test_bound_variables_are_not_free() -> None:
    row = Reduce("sum", (ROW,), load((5, ROW), (1, COLUMN)))
    assert free_variables(row) == {COLUMN}
    gathered = Load(X, affine(row.cast(np.int64)) + index_of(ROW) + number(1))
    assert free_variables(gathered) == {ROW, COLUMN}


def test_an_index_is_made_of_variables_and_whole_numbers() -> None:
    assert (Index(ROW) * 4 + 1).is_index and Const(np.int32(1)).is_index
    assert not (Index(ROW) * 4.0).is_index and not (Index(ROW) < 4).is_index
    assert not load().is_index and not TRUE.is_index
