"""TensorFlow's checkpoints: reading, slices, and damage."""

import random

import numpy as np
import pytest

from tests.platform.files.test_checkpoint_files import (
    MUTATIONS,
    TENSORS,
    fuzz,
    pieces,
    read_all,
    sliced,
)
from thalweg import errors
from thalweg.platform.files import sorted_table, tf_bundle
from thalweg.platform.files.checkpoints import open_checkpoint
from thalweg.platform.files.checksum import masked_crc32c
from thalweg.platform.files.tensor_slices import parse_slice
from thalweg.platform.files.tf_bundle_writer import write_bundle

# The index and the data of `v = [1., 2., 3.]`, `s = ["ab", ""]`, as TensorFlow 2.21 writes them.
INDEX = bytes.fromhex(
    "00000608011a02080100010f7308071204120208022808359188b04d0001117608011204120208032008"
    "280c35735b8971000000000100000000c4bb5433000000000100000000c0f2a1b0000102770039000000"
    "000100000000ec1dd2ef3e084b0e00000000000000000000000000000000000000000000000000000000"
    "000000000000000057fb808b247547db"
)
DATA = bytes.fromhex("020078270b3461620000803f0000004000004040")


def written(folder, content=None):
    prefix = str(folder / "theirs")
    write_bundle(prefix, pieces() + sliced()[1] if content is None else content)
    return prefix


def test_files_of_tensorflow_can_be_read(tmp_path):
    (tmp_path / "v.index").write_bytes(INDEX)
    (tmp_path / "v.data-00000-of-00001").write_bytes(DATA)
    checkpoint = open_checkpoint(str(tmp_path / "v"))
    np.testing.assert_array_equal(checkpoint.read("v"), [1, 2, 3])
    assert checkpoint.read("s").tolist() == [b"ab", b""]


def test_all_dtypes_round_trip(tmp_path):
    checkpoint = open_checkpoint(written(tmp_path))
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(checkpoint.read(name), array)


def test_slices(tmp_path):
    whole, _ = sliced()
    checkpoint = open_checkpoint(written(tmp_path))
    np.testing.assert_array_equal(checkpoint.read("cut"), whole)
    np.testing.assert_array_equal(checkpoint.read("cut", parse_slice("5 3 1,3:-")), whole[1:4])


def test_many_tensors_need_many_blocks(tmp_path):
    tensors = {f"scope/variable_{i}": np.full(3, i) for i in range(500)}
    checkpoint = open_checkpoint(written(tmp_path, pieces(tensors)))
    assert list(checkpoint.entries) == sorted(tensors)
    np.testing.assert_array_equal(checkpoint.read("scope/variable_321"), [321] * 3)


def test_keys_of_slices():
    """Encodings of one to ten bytes in the order of the numbers."""
    numbers = [0, -1, 1, 63, 64, -64, -65, 8191, 8192, 1 << 40, -(1 << 40), (1 << 63) - 1]
    keys = {tf_bundle.slice_key(b"n", ((n, 0),)): n for n in numbers}
    assert [keys[key] for key in sorted(keys)] == sorted(numbers)
    assert tf_bundle.slice_key(b"a\0\xff", ()) == b"\0a\0\xff\xff\0\0\1\0"
    assert tf_bundle.slice_key(b"w", ((0, 67), (0, -1))) == b"\0w\0\1\1\2\x80\xc0\x43\x80\x7f"


def test_changed_data_is_detected(tmp_path):
    prefix = written(tmp_path)
    path = tmp_path / "theirs.data-00000-of-00001"
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(errors.DataLossError, match=r"at byte 0: the tensor does not have"):
        read_all(prefix)
    path.write_bytes(content[:-1])
    with pytest.raises(errors.DataLossError, match="the file ends before"):
        read_all(prefix)


def test_hostile_indices(tmp_path):
    prefix = written(tmp_path)
    fuzz(lambda: read_all(prefix), tmp_path / "theirs.index", MUTATIONS)


def test_hostile_data(tmp_path):
    prefix = written(tmp_path)
    fuzz(lambda: read_all(prefix), tmp_path / "theirs.data-00000-of-00001", MUTATIONS)


def test_hostile_entries(tmp_path):
    """Invalid entries in blocks with valid checksums."""
    prefix = written(tmp_path)
    path = tmp_path / "theirs.index"
    found = list(sorted_table.pairs(path.read_bytes()))
    rng = random.Random(2)
    for _ in range(MUTATIONS):
        changed = dict(found)
        key = rng.choice(list(changed))
        value = bytearray(changed[key] or b"\0")
        for _ in range(rng.randrange(1, 4)):
            value[rng.randrange(len(value))] = rng.randrange(256)
        changed[key] = bytes(value)
        path.write_bytes(sorted_table.table(sorted(changed.items())))
        try:
            read_all(prefix)
        except (errors.DataLossError, errors.NotFoundError) as error:
            assert str(tmp_path) in str(error)


# Snappy


@pytest.mark.parametrize(
    ("packed", "plain"),
    [
        (b"\4\x0cabcd", b"abcd"),
        (b"\x0a\x0cabcd\x09\x04", b"abcdabcdab"),  # six from four back: into the copy itself
        (b"\x0a\x0cabcd\x16\x04\x00", b"abcdabcdab"),
        (b"\x0a\x0cabcd\x17\x04\0\0\0", b"abcdabcdab"),
        (b"\x46\xf0\x45" + b"x" * 70, b"x" * 70),
    ],
)
def test_snappy(packed, plain):
    assert sorted_table.snappy_decompress(packed) == plain


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xff\xff\xff\xff\x7f",
        b"\x0a\x0cabcd",
        b"\x05\x09\x04",
        b"\x04\x0cab",
        b"\x08\x16\0\0",
    ],
)
def test_bad_snappy(packed):
    with pytest.raises(errors.DataLossError):
        sorted_table.snappy_decompress(packed)


def closed(block, kind):
    return block + kind + masked_crc32c(block + kind).to_bytes(4, "little")


def test_compressed_blocks():
    counted = bytes(4) + b"\1\0\0\0"  # one restart, at 0
    block = b"\0\1\1kv" + counted
    packed = bytes([len(block), len(block) - 1 << 2]) + block
    data = closed(packed, b"\1")
    statistics = closed(counted, b"\0")
    index = closed(b"\0\1\2k" + bytes([0, len(packed)]) + counted, b"\0")
    footer = bytes([len(data), len(counted), len(data + statistics), len(index) - 5])
    content = data + statistics + index + footer.ljust(40, b"\0") + sorted_table.MAGIC
    assert list(sorted_table.pairs(content)) == [(b"k", b"v")]
