"""Checkpoints rewritten as TensorFlow's own."""

from __future__ import annotations

import numpy as np
import pytest

import thalweg as tf
from thalweg.cli import main as command


@pytest.fixture
def saved(tmp_path):
    (tmp_path / "run").mkdir()
    with tf.Graph().as_default(), tf.Session() as session:
        tf.Variable(np.arange(6.0, dtype=np.float32).reshape(2, 3), name="w")
        tf.Variable(7, dtype=tf.int64, name="step")
        tf.get_variable(
            "parts",
            [4, 2],
            partitioner=tf.fixed_size_partitioner(2),
            initializer=tf.ones_initializer(),
        )
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(tmp_path / "run" / "model"), global_step=3)


def test_all_tensors_are_read_back(saved, tmp_path):
    target = str(tmp_path / "out" / "ckpt")
    names = tf.train.export_tensorflow_checkpoint(saved, target)
    assert names == ["parts", "step", "w"]
    first, again = tf.train.load_checkpoint(saved), tf.train.load_checkpoint(target)
    assert first.get_variable_to_shape_map() == again.get_variable_to_shape_map()
    for name in names:
        np.testing.assert_array_equal(first.get_tensor(name), again.get_tensor(name))


def test_the_command_takes_a_folder(saved, tmp_path, capsys):
    target = str(tmp_path / "ckpt")
    assert command.main(["export", str(tmp_path / "run"), target]) == 0
    assert "3 tensors" in capsys.readouterr().out
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.Variable(np.zeros((2, 3), np.float32), name="w")
        tf.train.Saver([w]).restore(session, target)
        np.testing.assert_array_equal(session.run(w), np.arange(6.0).reshape(2, 3))


def test_what_is_not_there_is_an_error_in_words(tmp_path, capsys):
    assert command.main(["export", str(tmp_path), str(tmp_path / "ckpt")]) == 1
    assert "thalweg export: Couldn't find" in capsys.readouterr().err
    assert command.main(["export", str(tmp_path / "no"), str(tmp_path / "ckpt")]) == 1
    assert str(tmp_path / "no") in capsys.readouterr().err
