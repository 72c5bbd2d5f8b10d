"""Files both ways with TensorFlow: what it writes Thalweg reads, and what Thalweg writes it reads.

Usage: exchange.py PYTHON, the interpreter of an environment that has TensorFlow. Each side writes
records (plain and compressed) of Examples, an event file, a checkpoint and models
(`exchange_models.py`) into a folder, and the other one checks every value. Prints a line for each
file; the exit status tells whether all held.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import exchange_models  # pyright: ignore[reportImplicitRelativeImport] - beside this file, in either environment
import numpy as np

_SIDES = ("thalweg", "tensorflow")
_COMPRESSIONS = ("", "GZIP", "ZLIB")
_WEIGHTS = {
    "layer/kernel": np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30),
    "layer/bias": np.arange(30, dtype=np.float64),
    "global_step": np.int64(12345),
}


def _tensorflow(side: str) -> Any:
    if side == "thalweg":
        import thalweg

        return thalweg
    from tensorflow.compat import v1  # pyright: ignore[reportMissingImports] - in the other environment

    return v1


def _examples(tf: Any) -> list[bytes]:
    result: list[bytes] = []
    for i in range(50):
        features = {
            "number": tf.train.Feature(int64_list=tf.train.Int64List(value=[i, -i])),
            "scores": tf.train.Feature(float_list=tf.train.FloatList(value=[i / 3] * (i % 4))),
            "name": tf.train.Feature(bytes_list=tf.train.BytesList(value=[f"row {i}".encode()])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        result.append(example.SerializeToString(deterministic=True))
    return result


def _records(folder: Path, compression: str) -> str:
    return str(folder / f"rows{compression}.tfrecord")


def write(side: str, folder: Path) -> None:
    """Write every kind of file."""
    tf = _tensorflow(side)
    for compression in _COMPRESSIONS:
        options = tf.io.TFRecordOptions(compression_type=compression)
        with tf.io.TFRecordWriter(_records(folder, compression), options) as writer:
            for example in _examples(tf):
                writer.write(example)
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in _WEIGHTS.items():
            tf.Variable(value, name=name)
        loss = tf.summary.scalar("loss", tf.placeholder(tf.float32, [], "fed"))
        session.run(tf.global_variables_initializer())
        prefix = tf.train.Saver().save(session, str(folder / "model"), write_meta_graph=False)
        with tf.summary.FileWriter(str(folder / "events")) as writer:
            for step in range(5):
                writer.add_summary(session.run(loss, {"fed:0": step / 4}), step)
    if side == "thalweg":
        tf.train.export_tensorflow_checkpoint(prefix, str(folder / "model"))
    exchange_models.write(side, _models(folder))


def _models(folder: Path) -> Path:
    result = folder / "models"
    result.mkdir(exist_ok=True)
    return result


def check(side: str, folder: Path) -> None:
    """Read what the other side wrote; the first difference is an error."""
    tf = _tensorflow(side)
    for compression in _COMPRESSIONS:
        options = tf.io.TFRecordOptions(compression_type=compression)
        found = list(tf.io.tf_record_iterator(_records(folder, compression), options))
        assert found == _examples(tf), f"records differ ({compression or 'plain'})"
        print(f"  {len(found)} Examples in records, {compression or 'not compressed'}")
    (events,) = (folder / "events").iterdir()
    shown = [
        (event.step, _scalar(tf, value))
        for event in tf.train.summary_iterator(str(events))
        for value in event.summary.value
    ]
    assert shown == [(step, step / 4) for step in range(5)], shown
    print(f"  {len(shown)} scalars in an event file")
    reader = tf.train.load_checkpoint(str(folder / "model"))
    for name, value in _WEIGHTS.items():
        np.testing.assert_array_equal(reader.get_tensor(name), value)
    print(f"  {len(_WEIGHTS)} tensors of a checkpoint")
    exchange_models.check(side, _models(folder))


def _scalar(tf: Any, value: Any) -> float:
    if value.WhichOneof("value") == "simple_value":
        return value.simple_value
    return float(tf.make_ndarray(value.tensor))


def main() -> int:
    """Have each side write and the other one read."""
    if len(sys.argv) == 4:
        {"write": write, "check": check}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
        return 0
    interpreters = {"thalweg": sys.executable, "tensorflow": sys.argv[1]}
    with tempfile.TemporaryDirectory() as scratch:
        for writer, reader in (_SIDES, _SIDES[::-1]):
            folder = Path(scratch, writer)
            folder.mkdir()
            print(f"{writer} writes, {reader} reads:", flush=True)
            for task, side in (("write", writer), ("check", reader)):
                command = [interpreters[side], __file__, task, side, str(folder)]
                done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
                if done.returncode:
                    print(done.stderr, file=sys.stderr)
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
