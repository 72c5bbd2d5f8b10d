"""How far a value walks: the files and calls of the package that each phase of a step enters.

`python tools/walk.py [CHECKOUT]` builds the model of ARCHITECTURE.md, differentiates it, and runs a
training step twice; for each phase it prints how many files of the package were entered, and how
many Python functions were called there. `--files` lists the files.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", nargs="?", default=str(Path(__file__).parent.parent))
    parser.add_argument("--files", action="store_true", help="list the files of each phase")
    given = parser.parse_args()
    sys.path.insert(0, given.checkout)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["THALWEG_CACHE"] = cache  # a first run compiles
        _walk(Path(given.checkout) / "thalweg", given.files)


def _walk(package: Path, lists_files: bool) -> None:
    import numpy as np

    import thalweg as tf

    batch = np.ones((4, 3), np.float32)
    state: dict[str, Any] = {}

    def build() -> None:
        x = tf.placeholder(tf.float32, [None, 3])
        w, b = tf.Variable(np.ones((3, 2), np.float32)), tf.Variable(np.zeros(2, np.float32))
        state.update(x=x, loss=tf.reduce_mean(tf.tanh(tf.matmul(x, w) + b)))

    def differentiate() -> None:
        state["train"] = tf.train.GradientDescentOptimizer(0.1).minimize(state["loss"])

    def run() -> None:
        session.run([state["loss"], state["train"]], {state["x"]: batch})

    print("| phase | files | calls |\n|---|---|---|")
    _phase("build", build, package, lists_files)
    _phase("gradients and updates", differentiate, package, lists_files)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        _phase("first run", run, package, lists_files)
        _phase("second run", run, package, lists_files)


def _phase(name: str, work: Callable[[], None], package: Path, lists_files: bool) -> None:
    calls = Counter[str]()
    root = str(package) + os.sep

    def note(frame: Any, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(root):
            calls[file[len(root) :]] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    print(f"| {name} | {len(calls)} | {calls.total():,} |")
    if lists_files:
        print("".join(f"    {count:6} {file}\n" for file, count in calls.most_common()))


if __name__ == "__main__":
    main()
