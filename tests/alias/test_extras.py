"""The packages that were a part of TensorFlow, where they are installed; else a skip says so."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf

R = np.random.default_rng(0)
X = R.normal(size=(200, 4)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)


def needs(package: str, extra: str) -> pytest.MarkDecorator:
    is_there = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not is_there, reason=f"needs thalweg[{extra}]")


with_estimator = needs("tensorflow_estimator", "estimator")


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize(
    ("package", "extra", "name"),
    [
        ("tf_slim", "slim", "contrib.slim.conv2d"),
        ("tf_slim", "slim", "contrib.layers.layer_norm"),
        ("keras", "keras", "keras.layers.Dense"),
        ("keras", "keras", "keras.layers.AbstractRNNCell"),
        ("keras", "keras", "keras.losses.Reduction"),
        ("tensorflow_estimator", "estimator", "estimator.Estimator"),
        ("tensorflow_estimator", "estimator", "keras.estimator.model_to_estimator"),
    ],
)
def test_names_of_packages_are_found_or_say_what_to_install(
    package: str, extra: str, name: str
) -> None:
    found: Any = tf
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        assert "pip install 'thalweg[" in str(error)
        pytest.skip(f"needs thalweg[{extra}]")
    assert importlib.util.find_spec(package) is not None
    assert callable(found) or isinstance(found, type)


def test_metrics_of_contrib_need_no_package() -> None:
    value, update = tf.contrib.metrics.streaming_accuracy(
        predictions=tf.constant([1, 0]), labels=tf.constant([1, 1])
    )
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        assert session.run(update) == session.run(value) == 0.5


@with_estimator
def test_estimators_of_contrib_learn(tmp_path: Path) -> None:
    learn = tf.contrib.learn
    columns = learn.infer_real_valued_columns_from_input(X)
    classifier = learn.DNNClassifier(
        hidden_units=[8], feature_columns=columns, n_classes=2, model_dir=str(tmp_path)
    )
    classifier.fit(X, Y, steps=150, batch_size=50)
    assert classifier.evaluate(X, Y, steps=1)["accuracy"] > 0.9
    assert np.mean(np.array(list(classifier.predict(X))) == Y) > 0.9
    assert classifier.predict_proba(X, as_iterable=False).shape == (200, 2)


@with_estimator
def test_a_model_function_that_gives_three_things(tmp_path: Path) -> None:
    def model(features: Any, targets: Any, mode: str) -> Any:
        w = tf.get_variable("w", [4, 1])
        guess = tf.matmul(features, w)[:, 0]
        if mode == tf.contrib.learn.ModeKeys.INFER:
            return guess, None, None
        loss = tf.reduce_mean((guess - tf.cast(targets, tf.float32)) ** 2)
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        return guess, loss, optimizer.minimize(loss, tf.train.get_global_step())

    estimator = tf.contrib.learn.Estimator(model, model_dir=str(tmp_path))
    experiment = tf.contrib.learn.Experiment(
        estimator,
        lambda: tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(50),
        lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(50),
        train_steps=60,
        eval_steps=4,
    )
    assert experiment.train_and_evaluate()["loss"] < 0.4
    assert len(list(estimator.predict(X[:3]))) == 3


@with_estimator
def test_an_estimator_for_tpus_on_this_cpu(tmp_path: Path) -> None:
    tpu = tf.contrib.tpu
    sizes: list[int] = []

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        sizes.append(params["batch_size"])
        logits = tf.layers.dense(features, 2)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        optimizer = tpu.CrossShardOptimizer(tf.train.AdamOptimizer(0.1))
        train = optimizer.minimize(loss, tf.train.get_global_step())

        def metrics(labels: Any, logits: Any) -> Any:
            return {"hits": tf.metrics.accuracy(labels, tf.argmax(logits, 1))}

        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=train, eval_metrics=(metrics, [labels, logits])
        )

    def input_fn(params: Any) -> Any:
        data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat(5)
        return data.batch(params["batch_size"], drop_remainder=True)

    config = tpu.RunConfig(
        master="",
        model_dir=str(tmp_path),
        tpu_config=tpu.TPUConfig(per_host_input_for_training=tpu.InputPipelineConfig.PER_HOST_V2),
    )
    options = {"config": config, "train_batch_size": 20, "eval_batch_size": 40}
    estimator = tpu.TPUEstimator(model_fn, use_tpu=False, **options)
    estimator.train(input_fn, max_steps=40)
    assert estimator.evaluate(input_fn, steps=5)["hits"] > 0.9
    assert sizes == [20, 40]
    with pytest.raises(ValueError, match="no TPU here"):
        tpu.TPUEstimator(model_fn, **options)


@needs("keras", "keras")
def test_initializers_of_keras_tell_normal_distributions_apart() -> None:
    make = tf.keras.initializers.VarianceScaling
    with tf.Session() as session:
        most = {
            kind: abs(session.run(make(1.0, "fan_in", kind, seed=1)([1, 9999]))).max()
            for kind in ("normal", "truncated_normal", "untruncated_normal")
        }
    assert most["normal"] == most["truncated_normal"] < 2.3 < 3 < most["untruncated_normal"]
    config = make(distribution="untruncated_normal").get_config()
    assert make.from_config(config).get_config() == config
