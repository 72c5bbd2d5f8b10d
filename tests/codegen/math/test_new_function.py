"""A scalar function is one row: adding a row and an op block is all that a new one takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.codegen.jit import run, variable_loads
from thalweg.ir.expr import call
from thalweg.ir.functions.arithmetic import formula
from thalweg.ir.functions.dtypes import of_common
from thalweg.ir.functions.exponential import exponential, logarithm
from thalweg.ir.functions.function import Function
from thalweg.ir.functions.register import Register
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.lower.cost import element_cost
from thalweg.ops.core.elementwise import Unary, unary


def cube_root(x: Register) -> Register:
    """∛x, by a step of Newton's method from the root that a logarithm gives."""
    size = x.absolute()
    near = exponential(logarithm(size) / 3.0)
    root = near - (near * near * near - size) / (near * near * 3.0)
    is_end = size.equals(0.0) | size.equals(np.inf)
    return is_end.choose(x, root.with_sign(x))


ROWS = [
    Function("test_cbrt", np.cbrt, formula(cube_root), cost=30, ulps=4),
    Function(
        "test_softsign",
        lambda x: x / (1 + np.abs(x)),  # no ufunc: the row says what its dtypes are
        formula(lambda x: x / (x.absolute() + 1.0)),
        of_common,
        cost=6,
        ulps=2,
    ),
]


class CubeRootOfATest(Unary):
    """y = ∛x"""

    signature = "x: T -> y: T; T: floating"

    def numpy(self, x: Any) -> Any:
        return np.cbrt(x)

    def element(self, x: Any) -> Any:
        return call("test_cbrt", x)

    def gradient(self, node: Any, dy: Any) -> Any:
        return dy / (3.0 * tf.square(node.output))


cbrt = unary(CubeRootOfATest)


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for row in ROWS:
        monkeypatch.setitem(FUNCTIONS, row.name, row)
    yield


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_code(row: Function, dtype: Any) -> None:
    x = np.concatenate([np.linspace(-9, 9, 90), [0.0, -0.0, 1e4, -1e-3]]).astype(dtype)
    expr = call(row.name, *variable_loads(x))
    for lanes in (1, 16):
        np.testing.assert_allclose(run(expr, [x], lanes), row.numpy(x), rtol=np.finfo(dtype).eps)
    assert element_cost(expr) > row.cost


def test_an_op_block_over_a_row_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CubeRootOfATest, "numpy", _not_called)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None])
        y = cbrt(x * 2.0) + 1.0
        value = np.linspace(1, 50, 77, dtype=np.float32)
        got, slope = session.run([y, *tf.gradients(y, x)], {x: value})
    np.testing.assert_allclose(got, np.cbrt(value * 2) + 1, rtol=1e-6)
    np.testing.assert_allclose(slope, 2 / (3 * np.cbrt(value * 2) ** 2), rtol=1e-5)


def _not_called(self: Any, x: Any) -> Any:
    raise AssertionError("the NumPy kernel ran, not the compiled code")
