"""What `thalweg inspect` tells about files that are as they should be."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

import thalweg as tf
from thalweg.cli.report import Report, Size, printable, text_of
from thalweg.cli.tensors import NamedArray, save_tensor


def event_file(files):
    (path,) = (files / "logs").iterdir()
    return path


def test_a_checkpoint_by_any_of_its_files(files, thalweg):
    run = files / "run"
    texts = {
        thalweg("inspect", path).out
        for path in (run / "model-3", run / "model-3.index", *run.glob("*.safetensors"))
    }
    assert len(texts) == 1
    assert "w     float32  [2, 2]  16 B" in texts.pop().replace("name  dtype", "")


@pytest.mark.parametrize("path", ["run/model-3", "run", "tf/model", "plain.safetensors", "saved"])
def test_a_variable(files, thalweg, path):
    answer = thalweg("inspect", files / path, "--tensor", "w")
    assert answer.status == 0
    assert "[[1. 2.]" in answer.out and "mean   2.5" in answer.out


@pytest.mark.parametrize("path", ["graph.pb", "graph.pbtxt", "run/model-3.meta", "saved"])
def test_a_constant(files, thalweg, path):
    assert "[7. 8.]" in thalweg("inspect", files / path, "--tensor", "bias").out
    assert "[7. 8.]" in thalweg("inspect", files / path, "--tensor", "bias:0").out


def test_all_tensors_can_be_checked(files, thalweg):
    assert "all checksums right" in thalweg("inspect", files / "run", "--verify").out
    assert "all checksums right" in thalweg("inspect", files / "tf/model", "--verify").out


def test_a_folder_of_checkpoints_names_the_latest(files, thalweg):
    assert f"{files}/run/model-3  latest" in thalweg("inspect", files / "run").out
    assert thalweg("inspect", files / "run/checkpoint").out == thalweg("inspect", files / "run").out
    assert f"{files}/tf/model  latest" in thalweg("inspect", files / "tf").out


def test_graphs_of_bytes_and_of_text(files, thalweg):
    for name in ("graph.pb", "graph.pbtxt"):
        text = thalweg("inspect", files / name).out
        assert "1  MatMul" in text and "x     float32  (?, 2)" in text


def test_a_saved_model(files, thalweg):
    text = thalweg("inspect", files / "saved").out
    assert "in   x     float32  (?, 2)  x:0" in text
    assert "signature serving_default" in text and "tags        serve" in text
    assert thalweg("inspect", files / "saved/saved_model.pb").out == text


def test_a_saved_model_of_objects(files, thalweg):
    text = thalweg("inspect", files / "objects").out
    assert "variable         1  kernel" in text and "signature_map" in text
    assert "[5. 6.]" in thalweg("inspect", files / "objects", "--tensor", "inner").out


@pytest.mark.parametrize("name", ["plain", "gzip", "zlib"])
def test_records(files, thalweg, name):
    path = files / f"{name}.tfrecord"
    text = thalweg("inspect", path).out
    assert "records      5" in text and "label   int64   5       1     1" in text
    assert "pixels  float   5       1     5" in text
    assert "[0.5 0.5 0.5]" in thalweg("inspect", path, "--tensor", "pixels", "--record", "2").out


def test_records_of_sequences(thalweg, tmp_path):
    sequence_example = tf.train.SequenceExample()
    sequence_example.context.feature["id"].int64_list.value.append(7)
    for row in ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0]):
        sequence_example.feature_lists.feature_list["rows"].feature.add().float_list.value.extend(
            row
        )
    sequence_example.feature_lists.feature_list["uneven"].feature.add().int64_list.value.extend([1])
    sequence_example.feature_lists.feature_list["uneven"].feature.add()
    path = tmp_path / "sequences.tfrecord"
    with tf.python_io.TFRecordWriter(str(path)) as writer:
        writer.write(sequence_example.SerializeToString())
    text = thalweg("inspect", path).out
    assert "rows    steps of float   1       3     3" in text and "id      int64" in text
    assert "[[1. 2.]" in thalweg("inspect", path, "--tensor", "rows").out
    assert "different lengths" in thalweg("inspect", path, "--tensor", "uneven").err


def test_events(files, thalweg):
    for path in (files / "logs", event_file(files)):
        text = thalweg("inspect", path).out
        assert "loss     scalar         3           0          2    0.333333" in text
        assert "picture  image" in text


def test_what_was_written_under_a_tag(files, thalweg):
    logs = files / "logs"
    assert "[2.         0.33333334]" in thalweg("inspect", logs, "--tensor", "loss").out
    assert "[[2. 0.]" in thalweg("inspect", logs, "--tensor", "matrix").out
    assert "[[1. 0.]" in thalweg("inspect", logs, "--tensor", "matrix", "--record", "1").out
    assert "[3. 4.]" in thalweg("inspect", logs, "--tensor", "weights").out


def test_a_tensor_is_saved(files, thalweg, tmp_path):
    target = tmp_path / "w.npy"
    assert thalweg("inspect", files / "run", "--tensor", "w", "--output", target).status == 0
    np.testing.assert_array_equal(np.load(target), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    "array",
    [np.array([1, 2], ml_dtypes.bfloat16), np.array([b"a", b"bcd"], object), np.array(True)],
)
def test_any_dtype_is_saved_so_that_numpy_alone_reads_it(tmp_path, array):
    save_tensor(str(tmp_path / "a.npy"), NamedArray("a", array))
    assert np.load(tmp_path / "a.npy", allow_pickle=False).tolist() == array.tolist()


@pytest.mark.parametrize(
    "path", ["run", "graph.pb", "saved", "objects", "plain.tfrecord", "logs", "plain.safetensors"]
)
def test_scripts_get_json(files, thalweg, path):
    report = json.loads(thalweg("inspect", files / path, "--json").out)
    assert report["kind"] and report["path"] == str(files / path)


def test_scripts_get_tensors_as_json(files, thalweg):
    report = json.loads(thalweg("inspect", files / "run", "--tensor", "w", "--json").out)
    assert report["values"] == [[1.0, 2.0], [3.0, 4.0]] and report["dtype"] == "float32"
    report = json.loads(
        thalweg("inspect", files / "plain.tfrecord", "--tensor", "name", "--json").out
    )
    assert report["values"] == ["cat"]


def test_nothing_in_a_file_steers_the_terminal():
    report = Report("graph", "a\x1b[31m.pb", {"tags": "\x07"}, {"t\n": [{"n": "\x1b[2J"}]})
    assert all(printable(line) == line for line in report.lines())
    assert text_of(float("nan")) == "nan" and text_of(Size(2_000_000)) == "2 MB"
