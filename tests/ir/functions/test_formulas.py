"""Formulas of scalar functions on a target that is not LLVM: they ask for registers, no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codegen.math.test_functions import ROUNDED, assert_within_ulps, pairs, same, sample
from tests.ir.functions.numpy_register import NumpyRegister
from thalweg.ir.functions.function import Function, Site
from thalweg.ir.functions.table import FUNCTIONS

FLOATS = [np.dtype(np.float32), np.dtype(np.float64)]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def run(function: Function, *inputs: Any) -> Any:
    """A function's formula over arrays."""
    dtypes = function.dtypes(function.numpy, tuple(x.dtype for x in inputs))
    assert function.emit is not None
    return function.emit(Site(dtypes), *map(NumpyRegister, inputs)).value


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ROUNDED)
def test_functions_of_a_number(name: str, dtype: Any) -> None:
    x = np.concatenate([sample(dtype), np.geomspace(1e-6, 1e6, 2000).astype(dtype)])
    if name in ("sin", "cos", "tan"):  # the wider type, which is the measure, knows no more
        x = x[~(np.abs(x) > 1e9)]
    exact = FUNCTIONS[name].numpy(x.astype(np.longdouble))
    assert_within_ulps(name, run(FUNCTIONS[name], x), exact)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["pow", "atan2"])
def test_functions_of_two_numbers(name: str, dtype: Any) -> None:
    x, y = pairs(dtype)
    exact = FUNCTIONS[name].numpy(x.astype(np.longdouble), y.astype(np.longdouble))
    assert_within_ulps(name, run(FUNCTIONS[name], x, y), exact)


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int32), np.dtype(np.int64)], ids=str)
@pytest.mark.parametrize("name", [row.name for row in FUNCTIONS.values() if row.divides])
def test_divisions(name: str, dtype: Any) -> None:
    x, y = pairs(dtype)
    if dtype.kind == "i":
        x, y = x[y != 0], y[y != 0]
    same(run(FUNCTIONS[name], x, y), FUNCTIONS[name].numpy(x, y))


def test_powers_of_integers() -> None:
    x, y = sample(np.dtype(np.int64)), np.abs(sample(np.dtype(np.int64), 1))
    y = np.where(y < 0, 3, y)
    same(run(FUNCTIONS["pow"], x, y), np.power(x, y))
