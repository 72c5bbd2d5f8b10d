"""Writes the printed plans and profiles into docs/compiler.md, between its markers.

Usage: plan_page.py [perceptron] [googlenet], both if none is named. The GoogleNet step is the one
of the benchmarks: a training step on 16 images.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

import thalweg as tf

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compiler.md"
IMPORTS = "import numpy as np\nimport thalweg as tf\n\n"


def perceptron() -> Any:
    x = tf.placeholder(tf.float32, [None, 784], name="x")
    labels = tf.placeholder(tf.int32, [None], name="labels")
    hidden = tf.layers.dense(x, 100, activation=tf.nn.relu, name="hidden")
    logits = tf.layers.dense(hidden, 10, name="logits")
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(losses, name="loss")
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)

    sess = tf.Session()
    sess.run(tf.global_variables_initializer())
    images, digits = np.ones((64, 784), np.float32), np.arange(64, dtype=np.int32) % 10
    return sess.plan([train, loss], {x: images, labels: digits})


def googlenet() -> Any:
    """The plan of the benchmarks' GoogleNet step."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import works
    from systems import on_thalweg

    (work,) = works.choose(["googlenet"])
    return on_thalweg.make(work, 0).plan()


def perceptron_block() -> str:
    """The example, its plan and its profile."""
    source = inspect.getsource(perceptron).partition("\n")[2]
    code = IMPORTS + dedent(source).replace("return sess.plan(", "plan = sess.plan(")
    with tf.Graph().as_default():
        plan = perceptron()
    return "\n".join([_fence(code + "print(plan)\n", "python"), _fence(plan), *_profile(plan, 50)])


def googlenet_block() -> str:
    """The heaviest kernels of the plan, and the profile."""
    plan = googlenet()
    return "\n".join([_fence(plan.text(most=16)), *_profile(plan, 10, 24)])


def _profile(plan: Any, runs: int, most: int | None = None) -> list[str]:
    profile = plan.profile(runs).text(most)
    return [f"and `plan.profile({runs})`:", "", _fence(profile)]


def _fence(text: Any, language: str = "text") -> str:
    shown = str(text).replace(f"{ROOT}/", "").rstrip()
    return f"```{language}\n{shown}\n```\n"


BLOCKS: dict[str, Callable[[], str]] = {
    "perceptron": perceptron_block,
    "googlenet": googlenet_block,
}


def write(name: str) -> None:
    """Put a block between its markers."""
    begin, end = f"<!-- {name}: written by tools/plan_page.py -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    block = BLOCKS[name]()
    page, count = pattern.subn(lambda _: f"{begin}\n\n{block}\n{end}", PAGE.read_text())
    if count != 1:
        raise SystemExit(f"{PAGE}: there are {count} places for {name}, not one")
    PAGE.write_text(page)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or BLOCKS:
        write(chosen)
        print(f"{PAGE.relative_to(ROOT)}: {chosen}")
