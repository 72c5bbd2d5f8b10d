"""A case: one call (or small program) as plain data, and the Python program that shows it.

`code` is Python with `tf`, `np` and the inputs `x0`, `x1`, … in scope; its last line is an
expression, the results. A list named `steps` in it is run in order before the results are fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.fuzz_tf import values
from tools.fuzz_tf.wire import dtype_name

MODES = ("static", "unknown", "constant")


@dataclass(frozen=True)
class Case:
    """What to run: the code, the inputs' arrays, how they come in and what is compared."""

    number: int
    function: str
    code: tuple[str, ...]
    arrays: tuple[np.ndarray[Any, Any], ...]
    mode: str = "static"
    gradient: tuple[int, ...] = ()
    compiled: bool = True
    #: by how many roundings of their dtype results may differ; `scaled`: of the largest element's
    ulps: float = 64
    scaled: bool = True

    @property
    def dtype(self) -> str:
        """The dtype a disagreement is filed under: that of the first input."""
        return dtype_name(self.arrays[0]) if self.arrays else "-"

    @property
    def size(self) -> int:
        """How much there is to read in a reproducer: the smallest case of a group is shown."""
        return sum(a.size + a.ndim for a in self.arrays) + sum(map(len, self.code)) // 4

    def message(self) -> dict[str, Any]:
        """The case for a worker."""
        return {
            "kind": "case",
            "code": self.code,
            "mode": self.mode,
            "gradient": self.gradient,
            "compiled": self.compiled,
            "arrays": list(self.arrays),
        }


def program(case: Case, gradient: bool = False) -> str:
    """A program that runs the case, for either library; with its gradients if asked."""
    lines = [
        "import numpy as np, thalweg as tf  # or: import tensorflow.compat.v1 as tf",
        "tf.disable_eager_execution()",
    ]
    for i, array in enumerate(case.arrays):
        lines += _input_lines(case, i, array)
    lines += [*case.code[:-1], f"y = {case.code[-1]}", "session = tf.Session()", _feeds(case)]
    if any("ariable" in line or "metrics" in line for line in case.code):
        starts = "tf.global_variables_initializer(), tf.local_variables_initializer()"
        lines.append(f"session.run([{starts}], feeds)")
    if any(line.startswith("steps") for line in case.code):
        lines.append("for step in steps: session.run(step, feeds)")
    lines.append("print(session.run(y, feeds))")
    return "\n".join([*lines, *(_gradient_lines(case) if gradient else [])])


def _feeds(case: Case) -> str:
    if case.mode == "constant":
        return "feeds = {}"
    return "feeds = {" + ", ".join(f"x{i}: a{i}" for i in range(len(case.arrays))) + "}"


def _gradient_lines(case: Case) -> list[str]:
    inputs = ", ".join(f"x{i}" for i in case.gradient)
    return [
        "ys = [t for t in tf.nest.flatten(y) if t.dtype.is_floating or t.dtype.is_complex]",
        "sizes = [v.shape for v in session.run(ys, feeds)]",
        "weights = [np.cos(np.arange(np.prod(s)) * 1.7).reshape(s) + 0.3 for s in sizes]",
        "dys = [tf.constant(w, t.dtype, w.shape) for w, t in zip(weights, ys)]",
        f"gradients = tf.gradients(ys, [{inputs}], dys)",
        "print([None if g is None else session.run(g, feeds) for g in gradients])",
    ]


def _input_lines(case: Case, i: int, array: np.ndarray[Any, Any]) -> list[str]:
    literal = f"a{i} = {array_literal(array)}"
    name = dtype_name(array)
    if case.mode == "constant":
        return [literal, f"x{i} = tf.constant(a{i}, tf.{name}, shape={list(array.shape)})"]
    shape = "None" if case.mode == "unknown" else list(array.shape)
    return [literal, f"x{i} = tf.placeholder(tf.{name}, {shape})"]


def array_literal(array: np.ndarray[Any, Any]) -> str:
    """Python for an array: its elements, exact, however many."""
    name = dtype_name(array)
    dtype = "tf.bfloat16.as_numpy_dtype" if name == "bfloat16" else f"'{name}'"
    dtype = "object" if name == "string" else dtype
    wide = array.astype(np.float64) if name in ("bfloat16", "float16") else array
    text = repr(wide.tolist()).replace("nan", "np.nan").replace("inf", "np.inf")
    ending = f".reshape({array.shape})" if 0 in array.shape else ""
    return f"np.array({text}, {dtype}){ending}"


def is_float(array: np.ndarray[Any, Any]) -> bool:
    """Whether there are gradients with respect to it."""
    return dtype_name(array) in (*values.FLOATS, *values.COMPLEX)
