"""The format and the streams of printed values."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check
from thalweg.ops.core.printing import summarize


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [
        (7, 3, "7"),
        ([1, 2, 3], 3, "1 2 3"),
        ([1, 2, 3, 4], 3, "1 2 3..."),
        ([[1, 2], [3, 4]], 10, "[1 2][3 4]"),
        ([[1, 2], [3, 4]], 3, "[1 2][3...]..."),
        ([[[1], [2]], [[3], [4]]], -1, "[[1][2]][[3][4]]"),
        ([], 3, ""),
        ([0.5, 1e-10, np.float32(1) / 3], 3, "0.5 1e-10 0.333333343"),
        ([True, False], 3, "1 0"),
        (np.complex64(1 - 2j), 3, "(1,-2)"),
        (b"abc", 3, "abc"),
    ],
)
def test_summarize(value: Any, limit: int, text: str) -> None:
    array = np.array(value, np.float32) if isinstance(value, list) and 0.5 in value else value
    assert summarize(array, limit) == text


def test_print_passes_values_and_gradients() -> None:
    check(lambda x: tf.Print(x, [x, "text"], "seen: "), np.array([1.0, 2.0]), expect=lambda x: x)


def test_print_writes_at_most_first_n_times(capsys: pytest.CaptureFixture[str]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        node = tf.Print(tf.constant(1), [[1, 2, 3, 4], "a"], "seen: ", first_n=2, summarize=2)
        for _ in range(3):
            session.run(node)
    assert capsys.readouterr().err == "seen: [1 2...][a]\n" * 2


@pytest.mark.parametrize(
    ("template", "inputs", "text"),
    [
        ("x: {}", [1, 2, 3], "x: [1 2 3]"),
        ("{}", list(range(10)), "[0 1 2 ... 7 8 9]"),
        ("{}", [[1, 2], [3, 4]], "[[1 2]\n [3 4]]"),
        ("{}", [[[1], [2]], [[3], [4]]], "[[[1]\n  [2]]\n\n [[3]\n  [4]]]"),
        ("{}", ["a", "b"], '["a" "b"]'),
        ("{}", 1.5, "1.5"),
    ],
)
def test_format(template: str, inputs: Any, text: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(tf.strings.format(template, tf.constant(inputs))) == text.encode()


def test_format_checks_the_number_of_placeholders() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="2 placeholder"):
        tf.strings.format("{} {}", tf.constant(1))


def test_tf_print(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant([1, 2])
        session.run(tf.print("x =", x, [x, 3], output_stream=sys.stdout, end="!\n"))
        session.run(tf.print(x, sep=",", output_stream=f"file://{file}"))
        with pytest.raises(ValueError, match="output stream"):
            tf.print(x, output_stream="nowhere")
        with pytest.raises(ValueError, match="Unrecognized"):
            tf.print(x, colour="red")
    assert capsys.readouterr().out == "x = [1 2] [[1 2], 3]!\n"
    assert file.read_text() == "[1 2]\n"
