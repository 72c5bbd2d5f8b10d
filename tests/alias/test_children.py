"""The processes that a program under `thalweg run` starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from thalweg.alias import children, old_arrays
from thalweg.alias.libraries.table import LIBRARIES
from thalweg.alias.startup import sitecustomize

PARENT = """\
import multiprocessing, subprocess, sys
import tensorflow as tf
import beside

def work(x):
    parts = [slice(0, 1), slice(None)]
    return beside.bytes_of(tf.Session().run(tf.constant([[1, 2], [3, 4]], tf.uint8) * x)[parts])

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("spawned", pool.apply(work, (2,)), flush=True)
    for arguments in (
        ["child.py", "x"],
        ["-c", "import sys; print('thalweg' in sys.modules)"],
        ["-c", "import thalweg as t, tensorflow as f, numpy; print(numpy.float(f.abs is t.abs))"],
    ):
        subprocess.run([sys.executable, *arguments], check=True)
"""

CHILD = '''\
"""A child."""
from __future__ import division
import sys
import numpy as np
import beside
assert np.float is float, "before tensorflow is imported"
from tensorflow.contrib import rnn
print(__doc__, __name__, __spec__, sys.argv, np.array([1], np.uint8).tostring())
'''


def test_children_have_what_the_program_has(tmp_path: Path) -> None:
    own = tmp_path / "site"  # whose own start is not lost
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.own_start = True\n")
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "child.py").write_text(CHILD + "assert own_start\n")
    (tmp_path / "beside.py").write_text("def bytes_of(x):\n    return x.tostring()\n")
    paths = [str(own), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "thalweg", "run", "parent.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        check=False,
    )
    assert done.stdout.splitlines() == [
        "spawned b'\\x02\\x04'",
        "A child. __main__ None ['child.py', 'x'] b'\\x01'",
        "False",
        "1.0",
    ], done.stderr


def begun(python: object, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a child awaits imports, told which Python ran its parent."""
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setattr(sys, "path_hooks", [])
    monkeypatch.setenv("PYTHONPATH", "before")
    monkeypatch.setenv("THALWEG_RUN", "")
    with monkeypatch.context() as parent:
        parent.setattr(sys, "version", python)
        children.inherit(Path("folder"), "1.15", replace=False)
    sitecustomize.begin()
    return bool(sys.meta_path)


def test_another_python_is_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun(sys.version, monkeypatch)
    assert not begun("2.7.18", monkeypatch)


def test_the_path_has_the_start_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun(sys.version, monkeypatch)
    children.inherit(Path("folder"), "1.15", replace=False)
    start, *rest = os.environ["PYTHONPATH"].split(os.pathsep)
    assert (Path(start, "sitecustomize.py").is_file(), rest) == (True, ["before"])


def test_all_that_is_changed_is_awaited() -> None:
    assert {library.package for library in LIBRARIES} <= set(sitecustomize.AWAITED)
    assert tuple(sign.decode() for sign in sitecustomize.OLD_ARRAYS) == old_arrays.SIGNS
