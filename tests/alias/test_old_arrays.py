"""Programs that use arrays as NumPy 1 had them."""

import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg.alias import old_arrays


def run(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"np": np}
    exec(old_arrays.compiled(source, "old.py"), names)
    return names


@pytest.mark.parametrize(
    "index",
    [
        "ix = [slice(0, 1), slice(None)]\ny = x[ix]",
        "ix = [slice(None)] * 2\nix[0] = slice(0, 1)\ny = x[ix]",
        "y = x[[slice(0, 1), Ellipsis]]",
        "y = x[list((slice(0, 1), Ellipsis))]",
        "def f():\n    ix = [slice(i) for i in (1, 3)]\n    return x[ix]\ny = f()",
    ],
)
def test_a_list_of_slices_is_a_tuple(index: str) -> None:
    names = run(f"x = np.arange(6).reshape(2, 3)\n{index}")
    assert names["y"].tolist() == [[0, 1, 2]]


def test_slices_in_lists_are_assigned_to() -> None:
    names = run("x = np.zeros((2, 2))\nix = [slice(0, 1), slice(1, 2)]\nx[ix] = 5")
    assert names["x"].tolist() == [[0, 5], [0, 0]]


def test_other_lists_are_what_they_were() -> None:
    names = run("x = np.arange(4)\nix = [2, 0]\ny = x[ix]\nslice(1)\nd = {'a': x}['a']")
    assert names["y"].tolist() == [2, 0]


def test_tostring_is_tobytes() -> None:
    names = run(
        "class Old:\n    def tostring(self):\n        return 'own'\n"
        "x = np.array([1], np.uint8).tostring()\ny = Old().tostring()"
    )
    assert names["x"] == b"\x01"
    assert names["y"] == "own"


def test_lines_and_the_docstring_stay() -> None:
    source = '"""About."""\nfrom __future__ import division\nx = np.ones(1).tostring()\n1 / 0\n'
    with pytest.raises(ZeroDivisionError) as caught:
        run(source)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].lineno == 4
    assert run(source.replace("1 / 0", ""))["__doc__"] == "About."


def test_thalweg_run_has_the_arrays_of_numpy_1(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def f(x):\n    return x.tostring(), slice(1)\n")
    (tmp_path / "main.py").write_text(
        "import numpy as np\n"
        "import tensorflow as tf\n"
        "import beside\n"
        "print(beside.f(np.array([7], np.uint8))[0])\n"
        "print(np.hstack(np.ones(1) for _ in range(2)), type(np.meshgrid([1])))\n"
        "print(tf.Session().run(tf.constant([-1, 300], tf.uint8)))\n"
    )
    command = [sys.executable, "-m", "thalweg", "run", str(tmp_path / "main.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.splitlines() == ["b'\\x07'", "[1. 1.] <class 'list'>", "[255  44]"], (
        done.stderr
    )
