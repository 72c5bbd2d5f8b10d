"""Integers of 64 bits that 32 hold are compared as such: a GPU has no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codegen.cuda.emulated import agree, assemble
from tests.codegen.oracle import at, place
from thalweg.ir.expr import Call, Cast, Index, Select, constant
from thalweg.ir.kernel import Argument, Loops, Store
from thalweg.ir.loop import Variable


def hot(dtype: Any) -> Loops:
    """Ones at the places that labels name, in rows of 40."""
    labels, out = Argument(0, dtype, 6), Argument(1, np.dtype(np.float32), 240, True)
    i, j = Variable.fresh(6), Variable.fresh(40)
    is_hot = Call("eq", (Index(j), Cast(at(labels, (1, i)), np.int64)))
    value = Select(is_hot, constant(np.float32(1)), constant(np.float32(0)))
    return Loops((labels, out), (i, j), (Store(out, (i, j), place((40, i), (1, j)), value),))


@pytest.mark.parametrize(("dtype", "width"), [("int32", "b32"), ("int64", "b64")])
def test_comparisons_with_an_index(dtype: str, width: str) -> None:
    kernel = hot(np.dtype(dtype))
    labels = np.array([0, 39, -1, 40, 7, np.iinfo(dtype).min], dtype)
    agree(kernel, [labels, np.zeros(240, np.float32)])
    assert f"setp.eq.{width}" in assemble(kernel)
