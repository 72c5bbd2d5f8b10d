"""`thalweg migrate --check`: every way to reach a name of TensorFlow, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from thalweg.absent import INSTEAD
from thalweg.cli.replacements import advice
from thalweg.cli.tf_uses import uses

ROOT = Path(__file__).resolve().parents[2]


def names(text):
    return [use.name for use in uses(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import tensorflow as tf\ntf.nn.relu(1)", ["nn.relu"]),
        ("import tensorflow\ntensorflow.nn.relu(1)", ["nn.relu"]),
        ("import tensorflow.compat.v1 as tf\ntf.Session()", ["Session"]),
        ("from tensorflow.compat import v1 as tf\ntf.Session()", ["Session"]),
        ("import tensorflow as tf\ntf.compat.v1.Session()", ["Session"]),
        ("import tensorflow as tf\ntf.compat.as_bytes(1)", ["compat.as_bytes"]),
        ("from tensorflow.nn import relu as r\nr(1)", ["nn.relu", "nn.relu"]),
        ("from tensorflow import nn\nnn.relu(1)", ["nn", "nn.relu"]),
        ("import tensorflow.contrib.slim as s\ns.conv2d", ["contrib.slim", "contrib.slim.conv2d"]),
        ("import tensorflow.contrib.slim", ["contrib.slim"]),
        ("from tensorflow.nn import *", ["nn"]),
        ("import tensorflow as tf\nl = tf.layers\nl.dense(1)", ["layers", "layers.dense"]),
        ("import tensorflow as tf\ntf.Graph().as_default()", ["Graph"]),
        ("import tensorflow as tf\ntf.f(tf.a, k=tf.b)", ["f", "a", "b"]),
        ("def f():\n return tf.a\nimport tensorflow as tf", ["a"]),
        ("def f():\n import tensorflow as t\n t.a\nt.b", ["a"]),
        ("import tensorflow as tf\ndef f(tf, x=tf.a): tf.b\n", ["a"]),
        ("import tensorflow as tf\ng = lambda tf: tf.b\n", []),
        ("import tensorflow as tf\n@tf.d\nasync def f(x: tf.e) -> tf.f: pass", ["d", "e", "f"]),
        ("import tensorflow as tf\nclass A(tf.layers.Layer):\n x = tf.a", ["layers.Layer", "a"]),
        ("import numpy as tf\ntf.a", []),
        ("from .tensorflow import a\na.b", []),
        ("import thalweg as tf\ntf.a", ["a"]),
        ("tf.a", []),
    ],
)
def test_names_are_found_however_they_are_called(text, expected):
    assert names(text) == expected


def test_places_are_those_of_editors():
    (use,) = uses("import tensorflow as tf\n\nif True:\n    x = tf.nn.relu(1, name='a')")
    assert use == ("nn.relu", 4, 9, ("name",))


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import tensorflow.compat.v1 as tf\n"
        "tf.disable_v2_behavior()\n"
        "x = tf.placeholder(tf.float32)\n"
        "y = tf.layers.dense(x, 3, activaton=tf.nn.relu)\n"
        "z = tf.ragged.constant([x])\n"
        "w = tf.nn.sofmax(x)\n"
        "n = tf.errors.OutOfRangeError, tf.GraphKeys.NO_SUCH\n"
    )
    return path


def test_what_is_missing_is_told_with_its_place(program, thalweg):
    answer = thalweg("migrate", "--check", program)
    assert answer.status == 1
    lines = answer.out.splitlines()
    assert lines[0].startswith(f"{program}:4:5: tf.layers.dense(activaton=) is not here: it takes")
    assert lines[1].startswith(f"{program}:5:5: tf.ragged.constant is not here: use tf.constant")
    assert lines[2] == f"{program}:6:5: tf.nn.sofmax is not here: did you mean tf.nn.softmax?"
    assert lines[3].startswith(f"{program}:7:32: tf.GraphKeys.NO_SUCH is not here")
    assert lines[4] == "1 file: 6 names of TensorFlow are here, 4 are not"
    assert "1  tf.placeholder" in thalweg("migrate", "--check", "--all", program).out


def test_scripts_get_json(program, thalweg):
    report = json.loads(thalweg("migrate", "--check", "--json", program).out)
    assert [each["line"] for each in report["missing"]] == [4, 5, 6, 7]
    assert {"name": "tf.placeholder", "uses": 1} in report["existing"]


def test_our_own_examples_pass(thalweg):
    answer = thalweg("migrate", "--check", ROOT / "examples")
    assert answer.status == 0, answer.out
    assert "0 are not" in answer.out


def test_folders_are_searched_and_notebooks_read(tmp_path, thalweg):
    for folder in ("a/b", ".hidden", "__pycache__"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.py").write_text("import tensorflow as tf\ntf.no_such_name")
    source = ["%matplotlib inline\n", "!ls\n", "import tensorflow as tf\n", "tf.no_such_name"]
    cells = [
        {"cell_type": "markdown", "source": "tf.nothing"},
        {"cell_type": "code", "source": "%%bash\nls -l"},
        {"cell_type": "code", "source": source},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}))
    answer = thalweg("migrate", "--check", tmp_path)
    assert [line.partition(": tf.")[0] for line in answer.out.splitlines()[:-1]] == [
        f"{tmp_path}/a/b/x.py:2:1",
        f"{tmp_path}/n.ipynb:cell 3:4:1",
    ]


@pytest.mark.parametrize("name", INSTEAD)
def test_a_name_below_another_gets_its_advice(name):
    assert advice(f"{name}.no_such_name") == INSTEAD[name]


def test_names_that_moved_are_found():
    assert advice("python.ops.rnn_cell_impl.LSTMCell").endswith("LSTMCell")
    assert advice("zzz.qqq") == ""
