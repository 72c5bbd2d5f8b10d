"""The page of `thalweg explain`: its data. What its script draws of them is seen in a browser, by
`make test-browser` (`tests/browser`)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thalweg.cli import explain
from thalweg.runtime import engine

pytestmark = pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")

PROGRAM = """
import numpy as np
import tensorflow as tf

x = tf.placeholder(tf.float32, [8, 4], name="x")
with tf.name_scope("layer"):
    w = tf.Variable(tf.ones([4, 3]), name="w")
    y = tf.nn.relu(tf.matmul(x, w) * 1 + 0, name="y")
loss = tf.reduce_sum(y, name="loss")
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(3):
        session.run([train, loss], {x: np.ones((8, 4))})
    session.make_callable(loss, [x])(np.ones((8, 4)))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    script, out = folder / "program.py", folder / "page.html"
    script.write_text(PROGRAM)
    command = [
        sys.executable,
        "-c",
        "import sys; from thalweg.cli.main import main; sys.exit(main())",
    ]
    given = [*command, "explain", "--replace", "--out", str(out), str(script)]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "3 steps" in done.stdout
    return out


def data_of(page: Path) -> Any:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def training(page: Path) -> Any:
    return next(step for step in data_of(page)["steps"] if "loss" in step["title"])


def test_the_page_needs_no_network(written: Path) -> None:
    text = written.read_text()
    links = re.findall(r"(?:src|href|url|import)\s*[=(]", text)
    assert not links
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}


def test_stages_are_graphs_that_run(written: Path) -> None:
    step = training(written)
    first, *others = step["stages"]
    assert first["pass"] == ""
    assert "neutral_elements" in [each["pass"] for each in others]
    for stage in step["stages"]:
        seen: set[int] = set()
        for number, inputs, controls in stage["nodes"]:
            inside = {each[0] for each in stage["nodes"]}
            assert inside.intersection(inputs, controls) <= seen
            seen.add(number)
    kinds = [
        [step["nodes"][each[0]][1] for each in stage["nodes"]] for stage in (first, others[-1])
    ]
    assert "Mul" in kinds[0]
    assert len(kinds[1]) < len(kinds[0])


def test_rules_name_the_users_lines(written: Path) -> None:
    step = training(written)
    places = [place for each in step["passes"] for place in each["places"]]
    rule, node, line = next(place for place in places if place[0] == "multiply by one")
    file, _, number = step["lines"][line].rpartition(":")
    assert (rule, node) == ("multiply by one", "layer/mul")
    source = data_of(written)["sources"][file][int(number) - 1]
    assert "* 1 + 0" in source


def test_kernels_have_nodes_times_and_memory(written: Path) -> None:
    step = training(written)
    assert all(kernel["seconds"] > 0 for kernel in step["kernels"])
    used = {node[4] for node in step["nodes"]}
    assert used - {-1} <= set(range(len(step["kernels"])))
    assert len(used) > 1
    assert len(step["memory"]) == len(step["kernels"])


def test_a_program_without_steps_is_named(tmp_path: Path) -> None:
    with explain.Recorder() as recorder:
        pass
    assert not recorder.plans
