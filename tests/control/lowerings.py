"""The three ways a control node can run: native, on the executor, and on NumPy kernels alone."""

import pytest

import thalweg.runtime.dataflow.control_region as controlled
from thalweg.runtime import engine

NAMES = ("native", "executor", "numpy")


def choose(name: str, patch: pytest.MonkeyPatch) -> None:
    """Have sessions made from now on run control nodes in one of the ways."""
    patch.setattr(controlled, "NATIVE", name == "native")
    patch.setattr(engine, "COMPILES", name != "numpy")
