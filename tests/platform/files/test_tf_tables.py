"""Reading TensorFlow's checkpoints of version 1, and damaged ones."""

from __future__ import annotations

import base64
import random
import zlib

import numpy as np
import pytest

import thalweg as tf
from thalweg import errors
from thalweg.platform.files.sorted_table import pairs, table

#: A checkpoint that TensorFlow 2.21 wrote with `write_version=V1`: a file of 645 bytes.
WRITTEN = """
eNqFULtKA0EUvXcyazY3hsQJS+LiAxYlxE+wMaQRLG0CdmtCFFlNyINAmgxp/Yr4A1poIVoo2PoF/oWdiOjMOLtJ
IXjZgdlzzz1zzwF4RLpHypHT7AwvBgLKmQCoSE47Ck/6ggvmsjIFjIAE8dMwalusaLAqOd2wN+gLV4G/DQxcYgWm
T0DEXXvXmv3zMIrs/JKZ9whHZpbZWa5A8/6o02vF76cNN084NgCWXQ3oG2RWwSwOCKKUmPCXD+nj2xZitmjcACLK
iViJzSkNnx8xBCRPO7P9ovWp2+kzR3alTGGuYnwqCpNTORXbifHYrC92CgByb/EQr041uxKzFwL5i4/ZNZOR3cSP
I9Or5HazX4kljpnNkVlmonjrOkWT3FwUaupTR9YYlXSWVtOLo9Wabh3Deuq42cK0N07sq5h1kw7cuRSogFVtvDTu
kp+n99kNYArhmifY68PV7Ja7zzwP/1bjU15uDffffgBAUXJG
"""
VALUES = {
    "half": np.array([0.5, -2], np.float16),
    "w": np.array([[1, 2], [3, 4]], np.float32),
    "count": np.int64(-7),
    "flags": np.array([True, False]),
    "words": np.array([b"a", b"bcd"], object),
    "z": np.array([1 + 2j], np.complex64),
    "small": np.array([-3, 4], np.int8),
    "parts": np.ones([4, 2], np.float32),
}


def written():
    return zlib.decompress(base64.b64decode(WRITTEN))


@pytest.fixture
def path(tmp_path):
    (tmp_path / "model").write_bytes(written())
    return tmp_path / "model"


def test_every_dtype_is_read(path):
    reader = tf.train.load_checkpoint(str(path))
    assert set(reader.get_variable_to_shape_map()) == set(VALUES)
    for name, value in VALUES.items():
        actual = reader.get_tensor(name)
        np.testing.assert_array_equal(actual, value)
        assert np.asarray(actual).dtype == value.dtype


def test_variables_are_restored(path):
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.Variable(np.zeros((2, 2), np.float32), name="w")
        parts = tf.get_variable(
            "parts", [4, 2], partitioner=tf.fixed_size_partitioner(4), dtype=tf.float32
        )
        tf.train.Saver([w, *parts]).restore(session, str(path))
        np.testing.assert_array_equal(session.run(w), VALUES["w"])
        np.testing.assert_array_equal(session.run(tf.concat(list(parts), 0)), VALUES["parts"])


def test_several_files_are_one_checkpoint(tmp_path):
    """Each has all descriptions and some of the slices."""
    content = dict(pairs(written()))
    described = content.pop(b"")
    for number in range(2):
        share = dict([(b"", described), *list(content.items())[number::2]])
        (tmp_path / f"model-{number:05}-of-00002").write_bytes(table(sorted(share.items())))
    reader = tf.train.load_checkpoint(str(tmp_path / "model-?????-of-00002"))
    for name, value in VALUES.items():
        np.testing.assert_array_equal(reader.get_tensor(name), value)


def test_damage_is_an_error_that_names_the_file(path):
    choose = random.Random(0)
    content = dict(pairs(written()))
    for _ in range(200):
        key = choose.choice(sorted(content))
        value = bytearray(content[key])
        value[choose.randrange(len(value))] ^= 1 << choose.randrange(8)
        path.write_bytes(table(sorted((content | {key: bytes(value)}).items())))
        try:
            reader = tf.train.load_checkpoint(str(path))
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
        except errors.DataLossError as error:
            assert str(path) in str(error)


def test_a_missing_slice_is_an_error(path):
    content = dict(pairs(written()))
    path.write_bytes(table([(b"", content[b""])]))
    with pytest.raises(errors.DataLossError, match="do not cover"):
        tf.train.load_checkpoint(str(path)).get_tensor("w")
