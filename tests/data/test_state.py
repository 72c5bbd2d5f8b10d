"""Iterators in checkpoints: a restored job continues with the next element."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest

import thalweg as tf
from tests.data.pipelines import Dataset, drained, plain
from thalweg.data.state_code import decode, encode


def _job(directory: str, steps: int) -> list:
    """Run some steps of a job that continues at its last checkpoint; returns its elements."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = np.arange(40, dtype=np.float32)
        dataset = Dataset.from_tensor_slices((x, x.astype(np.int64))).shuffle(10, seed=3).repeat()
        dataset = dataset.map(
            lambda a, b: (a + tf.random_uniform([], seed=1), b), num_parallel_calls=2
        )
        iterator = dataset.batch(3).prefetch(2).make_initializable_iterator()
        tf.add_to_collection(
            tf.GraphKeys.SAVEABLE_OBJECTS,
            tf.data.experimental.make_saveable_from_iterator(iterator),
        )
        following = iterator.get_next()
        total = tf.Variable(0.0)
        add = tf.assign_add(total, tf.reduce_sum(following[0]))
        saver = tf.train.Saver()
        found = tf.train.latest_checkpoint(directory)
        if found is None:
            session.run(total.initializer)
        else:
            saver.restore(session, found)
        session.run(iterator.initializer)
        seen = [session.run([add, following[1]]) for _ in range(steps)]
        step = int(found.rpartition("-")[2]) + steps if found else steps
        saver.save(session, f"{directory}/model", global_step=step)
        return [(float(total), plain(keys)) for total, keys in seen]


def test_an_interrupted_job_sees_the_elements_of_an_uninterrupted_one(tmp_path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "pieces").mkdir()
    whole = _job(str(tmp_path / "whole"), 30)
    pieces = []
    for steps in (1, 4, 0, 10, 15):
        pieces += _job(str(tmp_path / "pieces"), steps)
    assert pieces == whole


def test_a_one_shot_iterator_is_restored_too() -> None:
    with tf.Graph().as_default() as graph:
        iterator = Dataset.range(10).shuffle(5, seed=1).make_one_shot_iterator()
        following, state = iterator.get_next(), iterator.save_state()
        saved = tf.placeholder(tf.string, [])
        restore = iterator.restore_state(saved)
    with tf.Session(graph=graph) as session:
        for _ in range(4):
            session.run(following)
        place = session.run(state)
        rest = plain(drained(session, following))
        session.run(restore, {saved: place})
        assert plain(drained(session, following)) == rest
    with tf.Session(graph=graph) as session:
        session.run(restore, {saved: place})
        assert plain(drained(session, following)) == rest


def test_a_restored_generator_is_rerun_to_its_position() -> None:
    def generate():
        yield from "abcdefgh"

    with tf.Graph().as_default() as graph:
        dataset = Dataset.from_generator(generate, tf.string, []).repeat(2).prefetch(2)
        iterator = dataset.make_initializable_iterator()
        following, state = iterator.get_next(), iterator.save_state()
        saved = tf.placeholder(tf.string, [])
        restore = iterator.restore_state(saved)
    for taken in (0, 3, 8, 11, 16):
        with tf.Session(graph=graph) as session:
            session.run(iterator.initializer)
            for _ in range(taken):
                session.run(following)
            place = session.run(state)
        with tf.Session(graph=graph) as session:
            session.run(iterator.initializer)
            session.run(restore, {saved: place})
            assert b"".join(drained(session, following)) == (b"abcdefgh" * 2)[taken:]


def test_files_and_caches_continue(tmp_path) -> None:
    names = []
    for number in range(3):
        path = tmp_path / f"{number}.txt"
        path.write_text("".join(f"{number}-{line}\n" for line in range(4)))
        names.append(str(path))
    wanted = [f"{n}-{line}".encode() for n in range(3) for line in range(4)]
    with tf.Graph().as_default() as graph:
        dataset = tf.data.TextLineDataset(names).cache(str(tmp_path / "cache")).repeat(2)
        iterator = dataset.make_initializable_iterator()
        following, state = iterator.get_next(), iterator.save_state()
        saved = tf.placeholder(tf.string, [])
        restore = iterator.restore_state(saved)
    place, actual = None, []
    while len(actual) < 24:
        with tf.Session(graph=graph) as session:
            session.run(iterator.initializer)
            if place is not None:
                session.run(restore, {saved: place})
            actual += [session.run(following) for _ in range(3)]
            place = session.run(state)
    assert actual == wanted * 2


def test_prefetched_errors_are_part_of_the_state() -> None:
    with tf.Graph().as_default() as graph:
        dataset = Dataset.from_tensor_slices([1, 0, 2, 0]).map(lambda x: tf.div(4, x)).prefetch(4)
        iterator = dataset.make_initializable_iterator()
        following, state = iterator.get_next(), iterator.save_state()
        saved = tf.placeholder(tf.string, [])
        restore = iterator.restore_state(saved)
    with tf.Session(graph=graph) as session:
        session.run(iterator.initializer)
        assert session.run(following) == 4
        place = session.run(state)
    with tf.Session(graph=graph) as session:
        session.run([iterator.initializer])
        session.run(restore, {saved: place})
        with pytest.raises(tf.errors.InvalidArgumentError, match="division by zero"):
            session.run(following)
        assert session.run(following) == 2


def test_a_state_cannot_be_loaded_into_another_pipeline() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        first = Dataset.range(3).make_one_shot_iterator()
        second = Dataset.range(3).repeat(2).make_one_shot_iterator()
        with pytest.raises(tf.errors.InvalidArgumentError, match="another pipeline"):
            session.run(second.restore_state(first.save_state()))


def test_damaged_states_are_data_loss() -> None:
    tree = {"a": [1, None, "x", b"bytes"], "b": np.arange(6).reshape(2, 3), "c": {"d": 1.5}}
    tree["texts"] = np.array([b"one", b""], object)
    data = encode(tree)
    again = decode(data)
    assert again["a"] == tree["a"]
    assert again["b"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert again["texts"].tolist() == [b"one", b""]
    generator = random.Random(0)
    for _ in range(2000):
        broken = bytearray(data[: generator.randrange(len(data) + 1)])
        for _ in range(generator.randrange(4)):
            if broken:
                broken[generator.randrange(len(broken))] = generator.randrange(256)
        with contextlib.suppress(tf.errors.DataLossError):
            decode(bytes(broken))
