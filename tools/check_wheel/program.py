"""A user's program, run where nothing but the wheel is installed: it writes and reads every format.

It writes into the current folder, prints a line for each part, and fails where something is lost.
"""

from __future__ import annotations

import glob
import importlib.util

import numpy as np

import thalweg as tf

_RNG = np.random.default_rng(0)
_INPUTS = _RNG.normal(size=(256, 3)).astype(np.float32)
_TARGETS = _INPUTS @ np.array([[1.0], [-2.0], [0.5]], np.float32)


def _model() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    y = tf.placeholder(tf.float32, [None, 1], name="y")
    predicted = tf.identity(tf.layers.dense(x, 1, name="line"), name="predicted")
    return x, y, predicted, tf.losses.mean_squared_error(y, predicted)


def train_and_save() -> None:
    """Train, write summaries with the graph, save; restore in another graph."""
    with tf.Graph().as_default() as graph, tf.Session(config=tf.ConfigProto()) as session:
        x, y, predicted, loss = _model()
        step = tf.train.AdamOptimizer(0.1).minimize(loss)
        tf.summary.scalar("loss", loss)
        tf.summary.histogram("predicted", predicted)
        merged = tf.summary.merge_all()
        session.run(tf.global_variables_initializer())
        with tf.summary.FileWriter("logs", graph) as writer:
            for number in range(200):
                summary, _ = session.run([merged, step], {x: _INPUTS, y: _TARGETS})
                writer.add_summary(summary, number)
        first = session.run(predicted, {x: _INPUTS})
        path = tf.train.Saver().save(session, "saved/model")
    assert np.abs(first - _TARGETS).max() < 0.1, "it has not learnt"
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(f"{path}.meta").restore(session, path)
        again = session.run("predicted:0", {"x:0": _INPUTS})
    np.testing.assert_array_equal(first, again)
    assert tf.train.latest_checkpoint("saved") == path
    (file,) = glob.glob("logs/*")
    events = [event.WhichOneof("what") for event in tf.train.summary_iterator(file)]
    assert events.count("summary") == 200
    assert {"graph_def", "meta_graph_def"} < set(events)
    print(f"  trained, saved, restored; {len(events)} events")


def monitored_job() -> None:
    """A job that stops and goes on from its checkpoint."""
    for last in (5, 10):
        with tf.Graph().as_default():
            count = tf.train.get_or_create_global_step()
            more = tf.assign_add(count, 1)
            hooks = [tf.train.StopAtStepHook(last_step=last)]
            with tf.train.MonitoredTrainingSession(checkpoint_dir="job", hooks=hooks) as session:
                while not session.should_stop():
                    reached = session.run(more)
        assert reached == last
    print(f"  a job went on to step {reached}")


def saved_model() -> None:
    """Export a model with a signature, load it, and call it."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 3])
        scale = tf.Variable(2.0)
        session.run(scale.initializer)
        tf.saved_model.simple_save(session, "exported", {"x": x}, {"scaled": x * scale})
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.loader.load(session, ["serve"], "exported")
        signature = loaded.signature_def["serving_default"]
        fetch, feed = signature.outputs["scaled"].name, signature.inputs["x"].name
        np.testing.assert_array_equal(session.run(fetch, {feed: _INPUTS}), 2 * _INPUTS)
    print("  exported and loaded a saved model")


def records() -> None:
    """Examples to a TFRecord file and back: by a data pipeline and as messages."""
    with tf.python_io.TFRecordWriter("rows.tfrecord") as writer:
        for number in range(10):
            value = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
            features = tf.train.Features(feature={"number": value})
            writer.write(tf.train.Example(features=features).SerializeToString())
    with tf.Graph().as_default(), tf.Session() as session:
        described = {"number": tf.FixedLenFeature([], tf.int64)}
        data = tf.data.TFRecordDataset("rows.tfrecord").batch(10)
        data = data.map(lambda rows: tf.parse_example(rows, described))
        numbers = session.run(data.make_one_shot_iterator().get_next())["number"]
    read = map(tf.train.Example.FromString, tf.python_io.tf_record_iterator("rows.tfrecord"))
    listed = [row.features.feature["number"].int64_list.value[0] for row in read]
    assert list(numbers) == listed == list(range(10))
    print("  wrote and read examples")


def graph_files() -> None:
    """A graph to a file, as bytes and as text, and from there into another graph."""
    with tf.Graph().as_default() as graph:
        tf.multiply(tf.constant(6), tf.constant(7), name="product")
    for name, as_text in (("graph.pb", False), ("graph.pbtxt", True)):
        tf.train.write_graph(graph, ".", name, as_text=as_text)
    with open("graph.pb", "rb") as file:
        read = tf.GraphDef.FromString(file.read())
    with tf.Graph().as_default(), tf.Session() as session:
        (product,) = tf.import_graph_def(read, return_elements=["product:0"])
        assert session.run(product) == 42
    print("  wrote and imported a graph")


def main() -> None:
    """Run all parts."""
    assert importlib.util.find_spec("tensorboard") is None, "the environment is not clean"
    train_and_save()
    monitored_job()
    saved_model()
    records()
    graph_files()


if __name__ == "__main__":
    main()
