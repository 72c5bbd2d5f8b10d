"""NumPy's BLAS inside steps: on one thread, only through `platform.blas`."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import texts

#: Functions of NumPy that use BLAS, or may.
BLAS = {"dot", "vdot", "inner", "matmul", "tensordot", "linalg", "convolve", "correlate"}
BLAS |= {"cov", "corrcoef", "polyfit", "vander", "kron", "multi_dot"}
#: Modules that do not run in steps.
OUTSIDE = ("platform/blas.py", "testing/")


def uses(source: str) -> list[str]:
    """The uses of BLAS in a module other than through `thalweg.platform.blas`."""
    result: list[str] = []
    for part in ast.walk(ast.parse(source)):
        if isinstance(part, ast.BinOp | ast.AugAssign) and isinstance(part.op, ast.MatMult):
            result.append(f"line {part.lineno}: @")
        if not isinstance(part, ast.Attribute) or not isinstance(
            part.value, ast.Name | ast.Attribute
        ):
            continue
        if ast.unparse(part.value) == "np.linalg" and part.attr != "LinAlgError":
            result.append(f"line {part.lineno}: np.linalg.{part.attr}")
        elif ast.unparse(part.value) == "np" and part.attr in BLAS - {"linalg"}:
            result.append(f"line {part.lineno}: np.{part.attr}")
    return result


def test_uses_are_found():
    source = "a @ b\na @= b\nnp.dot(a, b)\nnp.linalg.svd(a)\nnp.linalg.LinAlgError\nnp.sum(a)"
    assert len(uses(source)) == 4
    assert uses("def f():\n    return np.einsum('ij,jk', a, b, optimize=True)") == []


def test_modules_of_steps_use_blas_only_through_the_platform():
    suspect = re.compile(rf" @=? |\bnp\.({'|'.join(BLAS)})\b")
    found = {
        name: places
        for name, text in texts().items()
        if not name.startswith(OUTSIDE) and suspect.search(text) and (places := uses(text))
    }
    assert not found, "thalweg.platform.blas has these on one thread"


STEP = """
import os
import numpy as np

def ran():
    own = {str(os.getpid())}
    spent = {}
    for task in set(os.listdir("/proc/self/task")) - own:
        with open(f"/proc/self/task/{task}/schedstat") as file:
            spent[task] = int(file.read().split()[0])
    return spent

of_blas = set(ran())  # nobody else has made threads yet
import thalweg as tf
from thalweg.runtime import engine

x = tf.placeholder(tf.float32, [400, 400])
near = x + 400 * tf.eye(400)
fetches = [
    tf.summary.histogram("values", tf.tile(x, [3, 3])),
    tf.matmul(x, x), tf.nn.l2_loss(x), tf.reduce_sum(x, 0), tf.svd(x, compute_uv=False),
    tf.self_adjoint_eigvals(x), tf.qr(x)[1], tf.cholesky(tf.matmul(near, near, transpose_b=True)),
    tf.matrix_inverse(near), tf.matrix_determinant(near / 400), tf.matrix_solve(near, x),
    tf.matrix_solve_ls(near, x), tf.matrix_triangular_solve(near, x),
    tf.image.resize_bilinear(tf.reshape(x, [1, 400, 400, 1]), [300, 300]),
    tf.nn.conv2d(tf.reshape(x, [1, 400, 400, 1]), tf.ones([5, 5, 1, 8]), [1] * 4, "SAME"),
    tf.image.crop_and_resize(tf.reshape(x, [1, 400, 400, 1]), [[0., 0., 1., 1.]], [0], [300, 300]),
]
values = np.random.RandomState(0).uniform(size=(400, 400)).astype(np.float32)
for engine.COMPILES in (True, False):
    with tf.Session() as session:
        before = ran()
        session.run(fetches, {x: values})
        after = ran()
    print(len(of_blas), max((after[task] - before[task] for task in of_blas), default=0))
spent = ran()
np.ones((900, 900)) @ np.ones((900, 900))
print(max((ran()[task] - spent[task] for task in of_blas), default=0))
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no clocks of threads")
def test_steps_do_not_use_the_threads_of_blas():
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "4"}
    command = [sys.executable, "-c", STEP]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    (threads, compiled), (_, by_kernels), (by_program,) = (
        map(int, line.split()) for line in output.stdout.strip().split("\n")
    )
    assert max(compiled, by_kernels) < 1_000_000  # nanoseconds
    if threads:  # and what a program does by itself has its threads back
        assert by_program > 1_000_000
