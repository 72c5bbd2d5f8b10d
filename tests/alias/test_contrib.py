"""Parts of contrib that are older spellings, or stand in for hardware and services."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def run(values: Any, feed: Any = None) -> Any:
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        return session.run(values, feed)


def events(folder: Path) -> list[tuple[int, str, float]]:
    return [
        (event.step, value.tag, value.simple_value)
        for file in sorted(folder.iterdir())
        for event in tf.train.summary_iterator(str(file))
        for value in event.summary.value
    ]


def test_summaries_write_themselves_at_some_steps(tmp_path: Path) -> None:
    summary = tf.contrib.summary
    writer = summary.create_file_writer(str(tmp_path))
    step, x = tf.train.get_or_create_global_step(), tf.placeholder(tf.float32, [])
    every_second = summary.record_summaries_every_n_global_steps(2)
    with writer.as_default(), every_second, tf.name_scope("train"):
        summary.scalar("loss", x * 2)
    with writer.as_default():
        summary.scalar("never", x)
    with summary.always_record_summaries():
        summary.scalar("nowhere", x)
    assert len(summary.all_summary_ops()) == 1
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), *summary.summary_writer_initializer_op()])
        for value in range(4):
            session.run(summary.all_summary_ops(), {x: value})
            session.run(tf.assign_add(step, 1))
        session.run(writer.flush())
    assert events(tmp_path) == [(0, "train/loss", 0.0), (2, "train/loss", 4.0)]


def test_the_older_columns_are_todays() -> None:
    layers = tf.contrib.layers
    age = layers.bucketized_column(layers.real_valued_column("age"), [10, 20])
    word = layers.sparse_column_with_keys("word", ["a", "b"])
    hashed = layers.sparse_column_with_hash_bucket("name", 4)
    crossed = layers.crossed_column([age, hashed], hash_bucket_size=8)
    assert set(layers.create_feature_spec_for_parsing([age, word, crossed])) == {
        "age",
        "word",
        "name",
    }
    features = {
        "age": tf.constant([[5.0], [15.0]]),
        "word": tf.constant([["b"], ["a"]]),
        "name": tf.constant([["x"], ["y"]]),
    }
    total, variables, bias = layers.weighted_sum_from_feature_columns(
        features, [age, word, crossed], num_outputs=2
    )
    wide = layers.input_from_feature_columns(
        features, [age, layers.embedding_column(word, 3), layers.one_hot_column(word)]
    )
    assert len(variables) == 3 and bias.shape.as_list() == [2]
    actual, width = run([total, wide])
    assert actual.shape == (2, 2) and width.shape == (2, 3 + 3 + 2)


def test_ids_that_are_repeated_are_looked_up_once() -> None:
    ids = tf.constant([[1, 2, 2], [0, 1, 1]])
    once = tf.contrib.layers.embed_sequence(ids, 5, 4, unique=True, scope="words")
    again = tf.contrib.layers.embed_sequence(ids, 5, 4, scope="words", reuse=True)
    mean = tf.contrib.layers.bow_encoder(ids, 5, 4, sparse_lookup=False, scope="words", reuse=True)
    first, second, average = run([once, again, mean])
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(average, first.mean(1), 1e-6)
    with pytest.raises(ValueError, match="Must specify vocab size"):
        tf.contrib.layers.embed_sequence(ids)


def test_a_tpu_that_is_not_there() -> None:
    resolver = tf.contrib.cluster_resolver.TPUClusterResolver
    assert resolver("").master() == ""
    with pytest.raises(ValueError, match="There is no TPU here"):
        resolver("my-tpu")


def test_loops_and_computations_of_tpus() -> None:
    tpu = tf.contrib.tpu
    total = tf.get_variable("total", [], initializer=tf.zeros_initializer())
    counted = tpu.repeat(3, lambda: tf.assign_add(total, 2.0))
    doubled = tpu.repeat(4, lambda x: x * 2, [tf.constant(1)])
    halved = tpu.while_loop(lambda x: x > 1, lambda x: x // 2, [tf.constant(100)])
    parts = tpu.batch_parallel(lambda x: x + 1, [tf.range(4)], num_shards=2)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(counted)
        assert session.run([total, doubled, halved]) == [6, 16, 1]
        np.testing.assert_array_equal(session.run(parts[0]), [1, 2, 3, 4])


def test_an_optimizer_over_one_shard() -> None:
    w = tf.Variable(1.0)
    optimizer = tf.contrib.tpu.CrossShardOptimizer(tf.train.MomentumOptimizer(0.25, 0.9))
    train = optimizer.minimize(tf.square(w))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run(w) == 0.5
    assert optimizer.get_slot_names() == ["momentum"]


def test_a_strategy_has_one_replica() -> None:
    strategy = tf.distribute.MirroredStrategy()
    assert not tf.distribute.has_strategy()
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy
        assert tf.distribute.in_cross_replica_context()
        assert tf.distribute.get_replica_context() is None
        inside = strategy.experimental_run_v2(
            lambda x: (x + 1, tf.distribute.get_replica_context()), (1,)
        )
    assert inside[0] == 2 and inside[1].num_replicas_in_sync == 1
    assert run(strategy.reduce("MEAN", tf.constant([1.0, 3.0]), axis=0)) == 2
    merged = tf.distribute.get_replica_context().merge_call(lambda _, x: x * 2, args=(3,))
    assert merged == 6
    with pytest.raises(ValueError, match="one replica"):
        tf.distribute.MirroredStrategy(["/gpu:0", "/gpu:1"])


def test_devices_of_this_process() -> None:
    config = tf.config.experimental
    (cpu,) = tf.config.list_physical_devices("CPU")[:1]
    assert cpu.device_type == "CPU"
    config.set_memory_growth(cpu, True)
    with pytest.raises(ValueError, match="Unrecognized device"):
        config.set_memory_growth("GPU:99", True)
    assert tf.contrib.eager.list_devices()


def test_values_wait_for_a_later_step() -> None:
    area = tf.contrib.staging.StagingArea([tf.float32], [[2]])
    x = tf.placeholder(tf.float32, [2])
    put, size = area.put([x]), area.size()
    get = area.get()
    with tf.Session() as session:
        session.run(put, {x: [1, 2]})
        session.run(put, {x: [3, 4]})
        assert session.run(size) == 2
        np.testing.assert_array_equal(session.run(get[0]), [1, 2])
        session.run(area.clear())
        assert session.run(size) == 0


def test_names_that_are_spelt_otherwise() -> None:
    before = run(tf.timestamp())
    assert before <= run(tf.timestamp())
    tf.disable_control_flow_v2()
    logits, labels = tf.constant([[1.0, 2.0]]), tf.constant([[0.0, 1.0]])
    nn = tf.contrib.nn
    flipped = nn.deprecated_flipped_softmax_cross_entropy_with_logits(logits, labels)
    expected = tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    assert np.array_equal(*run([flipped, expected]))
    assert run(tf.xla.experimental.compile(lambda x: x + 1, [1])) == [2]
    with tf.contrib.compiler.jit.experimental_jit_scope():
        assert run(tf.contrib.nccl.all_sum([tf.constant(1), tf.constant(2)])) == [3, 3]


def test_averages_are_saved_in_place_of_variables(tmp_path: Path) -> None:
    w = tf.get_variable("w", [], initializer=tf.ones_initializer())
    optimizer = tf.contrib.opt.MovingAverageOptimizer(
        tf.train.GradientDescentOptimizer(0.25), average_decay=0.5
    )
    with pytest.raises(RuntimeError, match="before creating the swapping_saver"):
        optimizer.swapping_saver()
    train = optimizer.minimize(tf.square(w))
    saver = optimizer.swapping_saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        path = saver.save(session, str(tmp_path / "model"))
        assert session.run(w) == 0.5
    assert tf.train.load_variable(path, "w") == 0.75


def test_a_strategy_of_several_workers_needs_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    make = tf.distribute.experimental.MultiWorkerMirroredStrategy
    assert make().num_replicas_in_sync == 1
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:2"]}}')
    with pytest.raises(ValueError, match="2 workers"):
        make()
