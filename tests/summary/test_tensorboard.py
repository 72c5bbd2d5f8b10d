"""TensorBoard's own readers understand the event files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.ops.io.summaries import bucket_limits

accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
loaders = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")

STEPS = 3


def train(folder: Path) -> tf.Graph:
    """A run that writes every kind of summary."""
    with tf.Graph().as_default() as graph, tf.Session() as session:
        with tf.name_scope("layer"):
            x = tf.placeholder(tf.float32, [4], name="input")
            tf.summary.scalar("mean", tf.reduce_mean(x))
            tf.summary.histogram("x", x)
        tf.summary.image("picture", tf.reshape(x, [1, 2, 2, 1]), max_outputs=1)
        tf.summary.audio("sound", tf.reshape(x, [1, 4]), 8000, max_outputs=1)
        tf.summary.text("words", tf.as_string(x))
        merged = tf.summary.merge_all()
        with tf.summary.FileWriter(folder, graph) as writer:
            for step in range(STEPS):
                metadata = tf.RunMetadata()
                summary = session.run(
                    merged,
                    {x: np.arange(4) + step},
                    tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE),
                    metadata,
                )
                writer.add_summary(summary, step)
                writer.add_run_metadata(metadata, f"step {step}", step)
    return graph


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, tf.Graph]:
    folder = tmp_path_factory.mktemp("run")
    graph = train(folder)
    everything = dict.fromkeys(accumulators.DEFAULT_SIZE_GUIDANCE, 0)
    board = accumulators.EventAccumulator(str(folder), everything)
    board.Reload()
    return board, graph


def test_tags(run: tuple[Any, tf.Graph]) -> None:
    tags = run[0].Tags()
    assert tags["scalars"] == ["layer/mean_1"]
    assert tags["histograms"] == ["layer/x"]
    assert tags["images"] == ["picture/image"]
    assert tags["audio"] == ["sound/audio"]
    assert tags["tensors"] == ["words"]
    assert tags["run_metadata"] == [f"step {step}" for step in range(STEPS)]
    assert tags["graph"]
    assert tags["meta_graph"]


def test_scalars(run: tuple[Any, tf.Graph]) -> None:
    actual = [(event.step, event.value) for event in run[0].Scalars("layer/mean_1")]
    assert actual == [(step, 1.5 + step) for step in range(STEPS)]


def test_histograms(run: tuple[Any, tf.Graph]) -> None:
    event = run[0].Histograms("layer/x")[1]
    values = event.histogram_value
    assert (event.step, values.min, values.max, values.num, values.sum) == (1, 1, 4, 4, 10)
    assert set(values.bucket_limit) <= set(bucket_limits().tolist())
    assert sum(values.bucket) == 4


def test_images(run: tuple[Any, tf.Graph]) -> None:
    event = run[0].Images("picture/image")[-1]
    assert (event.width, event.height) == (2, 2)
    with tf.Graph().as_default(), tf.Session() as session:
        pixels = session.run(tf.image.decode_png(event.encoded_image_string))
    assert pixels.ravel().tolist() == [102, 153, 204, 255]


def test_sounds(run: tuple[Any, tf.Graph]) -> None:
    event = run[0].Audio("sound/audio")[0]
    assert (event.sample_rate, event.length_frames, event.content_type) == (8000, 4, "audio/wav")


def test_text(run: tuple[Any, tf.Graph]) -> None:
    events = run[0].Tensors("words")
    assert tf.make_ndarray(events[0].tensor_proto)[0] == b"0.000000"
    assert run[0].SummaryMetadata("words").plugin_data.plugin_name == "text"


def test_the_graph_with_its_scopes_and_shapes(run: tuple[Any, tf.Graph]) -> None:
    board, graph = run
    shown = board.Graph()
    assert tf.GraphDef.FromString(shown.SerializeToString()) == graph.as_graph_def(add_shapes=True)
    node = next(node for node in shown.node if node.name == "layer/input")
    assert node.attr["_output_shapes"].list.shape[0].dim[0].size == 4
    assert len(board.MetaGraph().graph_def.node) == len(shown.node)


def test_run_metadata(run: tuple[Any, tf.Graph]) -> None:
    assert run[0].RunMetadata("step 0").step_stats.dev_stats


def test_a_file_that_grows_is_followed(tmp_path: Path) -> None:
    writer = tf.summary.FileWriter(tmp_path)
    (path,) = tmp_path.iterdir()
    loader = loaders.EventFileLoader(str(path))
    seen: list[int] = []
    for step in (1, 2):
        writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag="a", simple_value=1)]), step)
        writer.flush()
        seen.append([event.step for event in loader.Load()][-1])
    assert seen == [1, 2]
    writer.close()
