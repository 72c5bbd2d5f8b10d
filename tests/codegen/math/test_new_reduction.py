"""A reduction is one row: adding a row is all that a new one takes, from its text to its code."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.oracle import UFUNCS, agree, at, numbers, over
from thalweg.ir.functions.reductions import REDUCTIONS, Reduction
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Loops, Store
from thalweg.ir.loop import Variable

ROW = Reduction("parity", np.bitwise_xor, lambda dtype: dtype.type(0), "bit_xor", sign="^=")


@pytest.mark.parametrize("shape", [(7, 93), (130, 3)])
def test_a_row_is_code(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    monkeypatch.setitem(REDUCTIONS, ROW.name, ROW)
    monkeypatch.setitem(UFUNCS, ROW.name, ROW.numpy)
    rows, columns = shape
    i, k = Variable.fresh(rows), Variable.fresh(columns)
    x, y = Argument(0, np.int32, rows * columns), Argument(1, np.int32, rows, True)
    value = over("parity", k, at(x, (columns, i), (1, k)))
    store = Store(y, (i,), Affine(0, {i: 1}), value, "parity")
    agree(Loops((x, y), (i,), (store,)), [numbers(shape, np.int32), numbers(rows, np.int32, 1)])


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint16, np.bool_])
@pytest.mark.parametrize("name", [name for name, row in REDUCTIONS.items() if row.result is None])
def test_the_identity_changes_nothing(name: str, dtype: type[np.generic]) -> None:
    row, elements = REDUCTIONS[name], np.arange(2, 9).astype(dtype)
    with_identity = np.asarray([row.identity(elements.dtype), *elements], dtype)
    assert row.numpy.reduce(with_identity) == row.numpy.reduce(elements)
