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


def program(case: Case) -> str:
    """A program that runs the case, for either library."""
    inputs = [_input_line(case, i, array) for i, array in enumerate(case.arrays)]
    feeds = ", ".join(f"x{i}: a{i}" for i in range(len(case.arrays)))
    head = [
        "import numpy as np, thalweg as tf  # or: import tensorflow.compat.v1 as tf",
        "tf.disable_eager_execution()",
        *(line for lines in inputs for line in lines),
        *case.code[:-1],
        f"y = {case.code[-1]}",
    ]
    fetch = "y"
    if case.gradient:
        wanted = ", ".join(f"x{i}" for i in case.gradient)
        head.append(f"g = tf.gradients(y, [{wanted}])")
        fetch = "[y, *(d for d in g if d is not None)]"
    feed = "{}" if case.mode == "constant" else "{" + feeds + "}"
    tail = ["session = tf.Session()"]
    if any("ariable" in line or "metrics" in line for line in case.code):
        tail.append(
            "session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])"
        )
    if any(line.startswith("steps") for line in case.code):
        tail.append(f"for step in steps: session.run(step, {feed})")
    return "\n".join([*head, *tail, f"print(session.run({fetch}, {feed}))"])


def _input_line(case: Case, i: int, array: np.ndarray[Any, Any]) -> list[str]:
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
