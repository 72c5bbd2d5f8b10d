"""Checkpoint files: round trips, compatibility with other tools, and damage."""

import errno
import itertools
import json
import os
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file, save_file

from thalweg import errors
from thalweg.platform.dtype_traits import TABLE
from thalweg.platform.files import checkpoint_files, durable
from thalweg.platform.files.checkpoints import open_checkpoint
from thalweg.platform.files.checksum import crc32c
from thalweg.platform.files.safetensors import NUMPY, Piece
from thalweg.platform.files.tensor_slices import Slice, parse_slice

MUTATIONS = 10_000 if os.environ.get("THALWEG_SOAK") else 300

TENSORS = {
    "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
    "step": np.array(7, np.int64),
    "half": np.ones(3, np.float16),
    **{row.name: np.ones((2, 1), row.numpy) for row in TABLE if row.is_narrow_float},
    "flags": np.array([True, False, True]),
    "text": np.array([[b"a", b"\xff\x00b"], [b"", b"long" * 50]], object),
    "complex": np.array([1 + 2j, 3], np.complex64),
    "wide": np.array(1 - 2j, np.complex128),
    "quantized": np.array([(-1,), (2,)], NUMPY["qint8"]),
    "empty": np.zeros((0, 3), np.uint8),
}


def pieces(tensors=TENSORS):
    return [Piece(name, array) for name, array in tensors.items()]


def sliced(rows=(0, 2, 5)):
    whole = np.arange(15.0).reshape(5, 3)
    cuts = pairwise(rows)
    return whole, [Piece("cut", whole[a:b], Slice((5, 3), (a, 0), (b - a, 3))) for a, b in cuts]


def saved(folder, name="model", shards=None):
    prefix = str(folder / name)
    checkpoint_files.save(prefix, [pieces()] if shards is None else shards)
    return prefix


def data_files(folder):
    return sorted(path for path in folder.iterdir() if ".data-" in path.name)


def test_all_dtypes_round_trip(tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path))
    assert list(checkpoint.entries) == sorted(TENSORS)
    for name, array in TENSORS.items():
        actual = checkpoint.read(name)
        assert actual.dtype == array.dtype
        np.testing.assert_array_equal(actual, array)


def test_arrays_are_views_of_the_file(tmp_path):
    found = open_checkpoint(saved(tmp_path)).read("weights")
    assert not found.flags.owndata
    assert not found.flags.writeable
    assert found.flags.aligned


def test_other_tools_can_read_the_data(tmp_path):
    foreign = ("weights", "bfloat16", "complex")  # of float8, their reader makes no arrays
    saved(tmp_path, shards=[[Piece(name, TENSORS[name]) for name in foreign]])
    (path,) = data_files(tmp_path)
    assert path.name == "model.data-00000-of-00001.safetensors"
    actual = load_file(path)
    np.testing.assert_array_equal(actual["weights"], TENSORS["weights"])
    np.testing.assert_array_equal(actual["bfloat16"], TENSORS["bfloat16"])
    assert actual["complex"].tobytes() == TENSORS["complex"].tobytes()


def test_float8_has_the_codes_of_the_format(tmp_path):
    saved(tmp_path)
    (path,) = data_files(tmp_path)
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header["float8_e4m3fn"]["dtype"] == "F8_E4M3"
    assert header["float8_e5m2"]["dtype"] == "F8_E5M2"


def test_files_of_other_tools_can_be_read(tmp_path):
    path = str(tmp_path / "theirs.safetensors")
    save_file({"a": np.eye(3, dtype=np.float64), "b": np.arange(3, dtype=np.int8)}, path)
    checkpoint = open_checkpoint(path)
    np.testing.assert_array_equal(checkpoint.read("a"), np.eye(3))
    np.testing.assert_array_equal(checkpoint.read("b"), [0, 1, 2])


@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.int8, np.uint16, np.complex64, np.bool_]),
        arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    )
)
@settings(max_examples=30, deadline=None)
def test_any_array_round_trips(tmp_path_factory, array):
    prefix = str(tmp_path_factory.mktemp("any") / "model")
    checkpoint_files.save(prefix, [[Piece("x", array)]])
    np.testing.assert_array_equal(open_checkpoint(prefix).read("x"), array)


def test_arrays_of_any_strides_are_written(tmp_path):
    array = np.arange(24).reshape(4, 6)[::2, ::-1].T
    prefix = saved(tmp_path, shards=[[Piece("x", array)]])
    np.testing.assert_array_equal(open_checkpoint(prefix).read("x"), array)


def test_large_streams_use_direct_io_in_blocks(tmp_path):
    values = np.random.default_rng(0).random((5, durable.BLOCK // 8 + 3))
    tensors = {f"v{i}": values[i : i + 2] for i in range(3)}
    prefix = saved(tmp_path, shards=[pieces(tensors)])
    checkpoint = open_checkpoint(prefix)
    for name, array in tensors.items():
        np.testing.assert_array_equal(checkpoint.read(name), array)


# Slices


def test_tensors_and_slices_are_assembled_from_slices(tmp_path):
    whole, parts = sliced()
    checkpoint = open_checkpoint(saved(tmp_path, shards=[parts]))
    np.testing.assert_array_equal(checkpoint.read("cut"), whole)
    np.testing.assert_array_equal(
        checkpoint.read("cut", parse_slice("5 3 1,3:1,2")), whole[1:4, 1:3]
    )


def test_slices_in_several_files(tmp_path):
    whole, parts = sliced()
    checkpoint = open_checkpoint(saved(tmp_path, shards=[parts[:1], parts[1:]]))
    np.testing.assert_array_equal(checkpoint.read("cut"), whole)
    assert len(data_files(tmp_path)) == 2


def test_a_slice_of_a_whole_tensor(tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path))
    actual = checkpoint.read("weights", parse_slice("2 3 -:0,2"))
    np.testing.assert_array_equal(actual, TENSORS["weights"][:, :2])


def test_missing_slices_are_an_error(tmp_path):
    _, parts = sliced()
    checkpoint = open_checkpoint(saved(tmp_path, shards=[parts[1:]]))
    with pytest.raises(errors.DataLossError, match="do not cover"):
        checkpoint.read("cut")


@pytest.mark.parametrize("spec", ["5", "5 3 0,1", "5 3 0,1:x", "5 3 0,1:0,9", "a b 0,1:-"])
def test_bad_slice_texts_are_errors(spec):
    with pytest.raises(errors.InvalidArgumentError):
        parse_slice(spec)


def test_slices_of_another_shape_are_an_error(tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path))
    with pytest.raises(errors.InvalidArgumentError, match="has shape"):
        checkpoint.read("weights", parse_slice("9 3 0,1:-"))


# Merging


def test_parts_are_merged(tmp_path):
    prefixes = []
    for shard, name in enumerate(("weights", "text")):
        (tmp_path / "beside").mkdir(exist_ok=True)
        prefixes.append(saved(tmp_path, f"beside/part-{shard}", [[Piece(name, TENSORS[name])]]))
    checkpoint_files.merge(prefixes, str(tmp_path / "model"))
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    assert list(checkpoint.entries) == ["text", "weights"]
    np.testing.assert_array_equal(checkpoint.read("text"), TENSORS["text"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.data-00000-of-00002.safetensors",
        "model.data-00001-of-00002.safetensors",
        "model.index",
    ]


# Atomicity


def test_saving_again_replaces_the_files(tmp_path):
    prefix = saved(tmp_path)
    for _ in range(3):
        checkpoint_files.save(prefix, [[Piece("other", np.ones(2))]])
    assert list(open_checkpoint(prefix).entries) == ["other"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("call", ["fsync", "rename", "pwrite", "write", "ftruncate"])
def test_a_crash_at_any_point_leaves_the_previous_checkpoint(tmp_path, monkeypatch, call):
    """Each call that changes files fails, as if the machine had crashed there."""
    prefix = saved(tmp_path)
    plain, calls = getattr(os, call), 0
    for stop in range(20):
        calls = 0

        def failing(*arguments, stop=stop):
            nonlocal calls
            calls += 1
            if calls > stop:
                raise OSError(errno.EIO, "stopped")
            return plain(*arguments)

        monkeypatch.setattr(os, call, failing)
        try:
            checkpoint_files.save(prefix, [[Piece("new", np.ones(3))]])
            monkeypatch.undo()
            break
        except errors.OpError:
            monkeypatch.undo()
            actual = open_checkpoint(prefix).entries
            assert list(actual) in (sorted(TENSORS), ["new"])
    assert list(open_checkpoint(prefix).entries) == ["new"]


def test_a_full_disk_leaves_no_files(tmp_path, monkeypatch):
    prefix = saved(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for call in ("posix_fallocate", "pwrite", "write", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(errors.ResourceExhaustedError, match="No space left"):
                saved(tmp_path, shards=[[Piece("new", np.ones(9))]])
        assert sorted(path.name for path in tmp_path.iterdir()) == before
    np.testing.assert_array_equal(open_checkpoint(prefix).read("weights"), TENSORS["weights"])


def test_partial_files_of_dead_writers_are_swept(tmp_path):
    orphan = tmp_path / "other.index.partial-00aa11bb"
    orphan.write_bytes(b"half")
    with durable.partial_file(str(tmp_path / "busy")) as descriptor:
        saved(tmp_path)
        os.write(descriptor, b"whole")
    assert not orphan.exists()
    assert (tmp_path / "busy").read_bytes() == b"whole"


# Damage


def test_missing_checkpoint(tmp_path):
    with pytest.raises(errors.NotFoundError, match="Failed to find any matching files"):
        open_checkpoint(str(tmp_path / "nothing"))


def test_unknown_names(tmp_path):
    with pytest.raises(errors.NotFoundError, match="Key nobody not found in checkpoint"):
        open_checkpoint(saved(tmp_path)).read("nobody")


def test_errors_locate_changed_data(tmp_path):
    prefix = saved(tmp_path)
    (path,) = data_files(tmp_path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(errors.DataLossError, match=rf"{path.name}: at byte 0: .*not those"):
        open_checkpoint(prefix).read("weights")


def test_a_truncated_data_file_is_detected(tmp_path):
    prefix = saved(tmp_path)
    (path,) = data_files(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(errors.DataLossError, match="the file ends here"):
        open_checkpoint(prefix)


_hands_over = itertools.cycle([False, True])


def read_all(prefix):
    """Read all tensors, alternately as views of the file and as a session restores them."""
    checkpoint = open_checkpoint(prefix)
    if next(_hands_over):
        checkpoint.read_into([(name, None, lambda array: None) for name in checkpoint.entries])
    else:
        for name in checkpoint.entries:
            checkpoint.read(name)


def mutated(content, rng):
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 4, 20))):
        where = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                changed[where] = rng.randrange(256)
            case 1:
                changed[where] ^= 1 << rng.randrange(8)
            case 2:
                del changed[where : where + rng.randrange(1, 30)]
            case _:
                changed[where:where] = rng.choice((b"9999999999", b"[", b"\0" * 8, b'"', b"-"))
        if not changed:
            break
    return bytes(changed)


def fuzz(read, path, count):
    """Check that mutations of a file read unchanged or raise an error that names a file."""
    content = path.read_bytes()
    rng = random.Random(0)
    for _ in range(count):
        path.write_bytes(mutated(content, rng))
        try:
            read()
        except (errors.DataLossError, errors.InvalidArgumentError, errors.NotFoundError) as error:
            assert str(path.parent) in str(error)
    path.write_bytes(content)


def test_hostile_indices(tmp_path):
    _, parts = sliced()
    prefix = saved(tmp_path, shards=[pieces() + parts])
    fuzz(lambda: read_all(prefix), tmp_path / "model.index", MUTATIONS)


def test_hostile_indices_with_a_valid_checksum(tmp_path, monkeypatch):
    _, parts = sliced()
    prefix = saved(tmp_path, shards=[pieces() + parts])
    path = tmp_path / "model.index"
    content = path.read_bytes().partition(b"\n")[0]
    rng = random.Random(1)
    for _ in range(MUTATIONS):
        text = mutated(content, rng).replace(b"\n", b"")
        path.write_bytes(text + b'\n{"crc32c":"%08x"}\n' % crc32c(text))
        try:
            read_all(prefix)
        except (errors.DataLossError, errors.InvalidArgumentError, errors.NotFoundError) as error:
            assert str(tmp_path) in str(error)


def test_hostile_data(tmp_path):
    _, parts = sliced()
    path = tmp_path / "alone.safetensors"
    checkpoint_files.save_file(str(path), pieces() + parts)
    fuzz(lambda: read_all(str(path)), path, MUTATIONS)


def test_shapes_larger_than_their_files(tmp_path):
    path = tmp_path / "huge.safetensors"
    note = {"x": {"name": "x", "full": [1 << 40], "start": [0]}}
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps({"__metadata__": {"thalweg": json.dumps(note)}, "x": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(errors.DataLossError, match="do not cover"):
        read_all(str(path))


@pytest.mark.parametrize(
    "content", [b"", b"1234567", bytes(8), b"\xff" * 8, b"\2" + bytes(7) + b"[]", b"\1" + bytes(9)]
)
def test_files_that_are_not_checkpoints(tmp_path, content):
    path = tmp_path / "none.safetensors"
    path.write_bytes(content)
    with pytest.raises(errors.DataLossError, match=r"none\.safetensors: at byte"):
        open_checkpoint(str(path))
