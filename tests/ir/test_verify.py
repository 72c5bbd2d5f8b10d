"""The verifier: right kernels pass, and one seeded fault of each kind is found and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from thalweg.graph.node import Node
from thalweg.ir.expr import (
    Accumulated,
    Index,
    Load,
    OperandLoad,
    Reduce,
    Scan,
    Variable,
    constant,
    select,
)
from thalweg.ir.index import Affine, affine, number
from thalweg.ir.kernel import Access, Argument, Check, Contraction, Kernel, Loops, Store
from thalweg.ir.loop import Operand
from thalweg.ir.verify import ENABLED, InvalidKernel, body_faults, faults, verify
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.loop_nest import LoopNest, NestTemplate

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int32)
I, J, K = (Variable(extent, name) for extent, name in ((4, "i"), (5, "j"), (6, "k")))  # noqa: E741
X, Y = Argument(0, FLOAT, 20), Argument(1, FLOAT, 20, True)
PLACE = Affine(0, {I: 5, J: 1})
STORE = Store(Y, (I, J), PLACE, Load(X, PLACE) * 2.0)
CHECK = Check((I,), Load(X, Affine(0, {I: 5})) > 0.0, 1)
LOOPS = Loops((X, Y), (I, J), (STORE,), (CHECK,))

A, B = Argument(0, FLOAT, 24), Argument(1, FLOAT, 30)
C = Argument(2, FLOAT, 20, True)
A_SIDE = Access(Load(A, Affine(0, {I: 6, K: 1})))
B_SIDE = Access(Load(B, Affine(0, {K: 5, J: 1})))
TOTAL = Store(C, (I, J), PLACE, Accumulated(FLOAT))
PRODUCT = Contraction((A, B, C), (), (I,), (J,), (K,), A_SIDE, B_SIDE, FLOAT, (TOTAL,))


def storing(**changes: Any) -> Kernel:
    return replace(LOOPS, stores=(replace(STORE, **changes),))


def checking(**changes: Any) -> Kernel:
    return replace(LOOPS, checks=(replace(CHECK, **changes),))


def bounded(variable: Variable) -> Access:
    return Access(A_SIDE.value, ((0, Affine(0, {variable: 1}), 2),))


SEEDED: dict[str, tuple[Callable[[], Kernel], str]] = {
    "argument order": (lambda: replace(LOOPS, arguments=(Y, X)), "order of their positions"),
    "an unknown buffer": (
        lambda: storing(value=Load(Argument(2, FLOAT, 20), PLACE)),
        "no argument",
    ),
    "a store to what is not written": (
        lambda: Loops((X, Y), (I, J), (replace(STORE, buffer=X),)),
        "not said to be written",
    ),
    "no prefix": (lambda: storing(variables=(J, I)), "no prefix of the loops"),
    "a serial variable of nobody": (
        lambda: replace(LOOPS, serial=frozenset([K])),
        "a serial variable is no loop",
    ),
    "a scan out of order": (
        lambda: storing(value=Scan("sum", J, Load(X, PLACE), False, False)),
        "a scan goes along j",
    ),
    "an unbound variable": (lambda: storing(value=Index(K).cast(FLOAT)), "not bound: k"),
    "an unbound offset": (lambda: storing(offset=Affine(0, {K: 1})), "not bound"),
    "an unbound distinct variable": (lambda: storing(distinct=frozenset([K])), "not bound"),
    "a variable bound twice": (
        lambda: storing(value=Reduce("sum", (J,), Load(X, PLACE))),
        "binds j again",
    ),
    "a reduction of one value": (
        lambda: storing(value=Reduce("sum", (), Load(X, PLACE))),
        "goes over nothing",
    ),
    "a way to combine": (lambda: storing(combine="xor"), "combines nothing"),
    "a missing cast": (
        lambda: Loops((X, Argument(1, INT, 20, True)), (I, J), (_stored_as_int(),)),
        "without a cast",
    ),
    "a store beyond the end": (
        lambda: storing(offset=Affine(1, PLACE.terms)),
        "stored to at 1 … 20",
    ),
    "a load before the start": (
        lambda: storing(value=Load(X, Affine(-1, PLACE.terms))),
        "loaded from at -1 … 18",
    ),
    "a division that is no expression": (
        lambda: storing(value=Load(X, affine(Index(I) * 5 // 2))),
        "is no expression",
    ),
    "a mask of numbers": (lambda: storing(inside=Index(J)), "a condition is of int64"),
    "a check of numbers": (lambda: checking(condition=Index(I)), "a condition is of int64"),
    "a check without a fault": (lambda: checking(fault=0), "fault is 0"),
    "a check over nothing": (lambda: checking(variables=()), "not bound: i"),
    "an op's load": (
        lambda: storing(value=OperandLoad(Operand(0, (), FLOAT), ())),
        "OperandLoad is left",
    ),
    "a sum of nobody": (lambda: storing(value=Accumulated(FLOAT)), "where there is none"),
    "a sum of another dtype": (
        lambda: _with_total(value=Accumulated(np.float64).cast(FLOAT)),
        "a sum of float64",
    ),
    "two roles": (lambda: replace(PRODUCT, batch=(I,)), "two roles"),
    "sums of integers": (lambda: replace(PRODUCT, dtype=INT), "sums are of int32"),
    "factors that share rows": (lambda: replace(PRODUCT, b=A_SIDE), "of the other one's"),
    "an unbound factor": (
        lambda: replace(PRODUCT, reduced=(Variable(6, "k2"),)),
        "not bound: k",
    ),
    "an unbound bound": (
        lambda: replace(
            PRODUCT, a=replace(A_SIDE, bounds=((0, Affine(0, {Variable(2, "z"): 1}), 2),))
        ),
        "a bound is on a variable",
    ),
    "a store over some": (lambda: _with_total(variables=(I,)), "not over all rows"),
}


def _stored_as_int() -> Store:
    return replace(STORE, buffer=Argument(1, INT, 20, True))


def _with_total(**changes: Any) -> Kernel:
    return replace(PRODUCT, stores=(replace(TOTAL, **changes),))


def test_right_kernels_have_no_faults() -> None:
    assert not list(faults(LOOPS)) and not list(faults(PRODUCT))
    beyond = Load(X, Affine(1, PLACE.terms))
    guarded = select(Index(J) < 4, beyond, 0.0)
    assert not list(faults(storing(value=guarded)))
    assert not list(faults(replace(PRODUCT, a=Access(A_SIDE.value, ((0, Affine(0, {I: 1}), 3),)))))


@pytest.mark.parametrize("case", SEEDED)
def test_a_seeded_fault_is_found(case: str) -> None:
    make, words = SEEDED[case]
    found = list(faults(make()))
    assert any(words in fault for fault in found), found


def test_a_fault_names_the_pass_and_the_kernel() -> None:
    with pytest.raises(InvalidKernel, match=r"after fuse, in the kernel of Add: .* not bound"):
        verify(storing(value=Index(K).cast(FLOAT)), "fuse", "the kernel of Add")


def nest(**changes: Any) -> LoopNest:
    buffer = Buffer(BufferKind.TEMPORARY, FLOAT, 20)
    place = Affine(0, {I: 5, J: 1})
    write = Store(buffer, (I, J), place, constant(1.0, FLOAT))
    nodes: tuple[Node, ...] = ()
    return LoopNest(NestTemplate((I, J), (replace(write, **changes),)), nodes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"variables": (J,)}, "no prefix"),
        ({"offset": Affine(3, {I: 5, J: 1})}, "stored to at 3 … 22"),
        ({"value": Load(Buffer(BufferKind.INPUT, FLOAT, 2), number(2))}, "loaded from at 2 … 2"),
        ({"value": Accumulated(FLOAT)}, "where there is none"),
    ],
)
def test_nests_are_held_to_the_same(changes: dict[str, Any], words: str) -> None:
    found = list(body_faults(nest(**changes).kernel))
    assert any(words in fault for fault in found) if words else not found


def test_the_tests_run_with_it() -> None:
    assert ENABLED
