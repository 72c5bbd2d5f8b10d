"""Bad input to every command: one line that names the file, exit status 1, memory in bounds."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import struct
import tracemalloc

import pytest

import thalweg as tf
from thalweg.platform.files.checksum import masked_crc32c
from thalweg.platform.files.records import framed
from thalweg.summary.events import FILE_VERSION, SUMMARY, event_bytes

SINGLE = [
    "graph.pb",
    "graph.pbtxt",
    "run/model-3.meta",
    "plain.safetensors",
    "plain.tfrecord",
    "gzip.tfrecord",
    "zlib.tfrecord",
]
#: A file inside something, and what is inspected to look at it.
INNER = [
    ("run/model-3.index", "run/model-3"),
    ("run/checkpoint", "run"),
    ("tf/model.index", "tf/model"),
    ("tf/model.data-00000-of-00001", "tf/model"),
    ("saved/saved_model.pb", "saved"),
    ("saved/variables/variables.index", "saved"),
    ("objects/saved_model.pb", "objects"),
]


def copied(files, tmp_path):
    shutil.copytree(files, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


def event_file(folder):
    (path,) = (folder / "logs").iterdir()
    return path


# Nothing there


@pytest.mark.parametrize("arguments", [(), ("--tensor", "w"), ("--verify",), ("--json",)])
def test_inspect_what_is_missing(fails, tmp_path, arguments):
    fails(tmp_path / "no", "inspect", tmp_path / "no", *arguments)
    fails(tmp_path / "no.pb", "inspect", tmp_path / "no.pb", *arguments)
    fails(tmp_path / "no.safetensors", "inspect", tmp_path / "no.safetensors", *arguments)


def test_inspect_what_is_no_file(fails, tmp_path):
    fails(tmp_path, "inspect", tmp_path)
    os.mkfifo(tmp_path / "pipe.tfrecord")
    fails("pipe.tfrecord", "inspect", tmp_path / "pipe.tfrecord")
    (tmp_path / "loop.pb").symlink_to(tmp_path / "loop.pb")
    fails("loop.pb", "inspect", tmp_path / "loop.pb")
    (tmp_path / "folder.pb").mkdir()
    fails("folder.pb", "inspect", tmp_path / "folder.pb")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root")
def test_inspect_what_may_not_be_read(files, fails, tmp_path):
    for name in SINGLE:
        path = tmp_path / name.rpartition("/")[2]
        shutil.copy(files / name, path)
        path.chmod(0)
        fails(path, "inspect", path)


@pytest.mark.parametrize("name", SINGLE)
def test_inspect_an_empty_file(fails, tmp_path, thalweg, name):
    path = tmp_path / name.rpartition("/")[2]
    path.touch()
    if ".tfrecord" in name:
        assert "records      0" in thalweg("inspect", path).out, "a file of no records is fine"
    else:
        fails(path, "inspect", path)
    fails(path, "inspect", path, "--tensor", "w")


# Damage


@pytest.mark.parametrize("name", [*SINGLE, "events"])
def test_inspect_a_truncated_file(files, fails, tmp_path, name):
    source = event_file(files) if name == "events" else files / name
    path = tmp_path / source.name
    content = source.read_bytes()
    path.write_bytes(content[: len(content) - 3])
    fails(path, "inspect", path, *(["--verify"] if name.endswith("safetensors") else []))


@pytest.mark.parametrize(("name", "shown"), INNER)
def test_inspect_with_a_truncated_part(files, fails, tmp_path, name, shown):
    folder = copied(files, tmp_path)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    fails(folder, "inspect", folder / shown, "--verify")


@pytest.mark.parametrize(("name", "shown"), INNER)
def test_inspect_with_a_part_that_is_something_else(files, fails, tmp_path, name, shown):
    folder = copied(files, tmp_path)
    (folder / name).write_bytes(random.Random(0).randbytes(3000))
    fails(folder, "inspect", folder / shown, "--verify")


@pytest.mark.parametrize("name", [*SINGLE, "run/model-3.index", "tf/model.index", "events"])
def test_inspect_says_one_line_at_most_whatever_the_damage(files, thalweg, tmp_path, name):
    """Cut anywhere, with any byte changed: an answer, or one line."""
    folder = copied(files, tmp_path)
    path = event_file(folder) if name == "events" else folder / name
    content, choose = path.read_bytes(), random.Random(1)
    for _ in range(30):
        damaged = bytearray(content[: choose.randrange(1, len(content) + 1)])
        damaged[choose.randrange(len(damaged))] = choose.randrange(256)
        path.write_bytes(damaged)
        answer = thalweg("inspect", path, *choose.choice([[], ["--tensor", "w"], ["--json"]]))
        lines = answer.err.splitlines()
        assert len(lines) == answer.status <= 1
        assert all(line.startswith("thalweg inspect: ") and str(folder) in line for line in lines)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.h5", b"\x89HDF\r\n\x1a\n"),
        ("arrays.npz", b"PK\x03\x04"),
        ("array.npy", b"\x93NUMPY\x01\x00"),
        ("model.pkl", b"\x80\x04\x95"),
        ("notes.txt", b"only words\n"),
        ("program.py", b"import tensorflow as tf\n"),
        ("noise.bin", random.Random(2).randbytes(5000)),
        ("zeros.bin", bytes(5000)),
    ],
)
def test_inspect_a_file_of_another_kind(fails, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    fails(tmp_path / name, "inspect", tmp_path / name)


@pytest.mark.parametrize(
    "suffix", [".pb", ".pbtxt", ".meta", ".safetensors", ".index", ".tfrecord"]
)
@pytest.mark.parametrize("name", SINGLE)
def test_a_wrong_name_misleads_nobody(files, thalweg, tmp_path, name, suffix):
    path = tmp_path / f"file{suffix}"
    shutil.copy(files / name, path)
    answer = thalweg("inspect", path)
    assert answer.status == answer.err.count("\n") <= 1
    assert answer.status == 0 or str(tmp_path / "file") in answer.err


# Hostile lengths


def record_of_length(size):
    head = struct.pack("<Q", size)
    return head + struct.pack("<I", masked_crc32c(head)) + bytes(100)


def huge_constant():
    graph = tf.GraphDef()
    node = graph.node.add(name="w", op="Const")
    node.attr["value"].tensor.dtype = 1
    node.attr["value"].tensor.float_val.append(1.0)
    for _ in range(3):
        node.attr["value"].tensor.tensor_shape.dim.add(size=1 << 20)
    return graph.SerializeToString()


def huge_summary():
    summary = tf.Summary()
    tensor = summary.value.add(tag="w").tensor
    tensor.dtype = 1
    tensor.float_val.append(1.0)
    tensor.tensor_shape.dim.add(size=1 << 33)
    version = framed(event_bytes(FILE_VERSION, b"brain.Event:2"))
    return version + framed(event_bytes(SUMMARY, summary.SerializeToString()))


def safetensors(header):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


HOSTILE = {
    "length.tfrecord": record_of_length(1 << 62),
    "long.tfrecord": record_of_length(1 << 40),
    "bomb.tfrecord": gzip.compress(record_of_length(3 << 30) + bytes(1 << 25), 1),
    "claim.tfrecord": gzip.compress(
        record_of_length(2 << 30) + random.Random(4).randbytes(3 << 20), 1
    ),
    "events.out.tfevents.1": record_of_length(1 << 50),
    "header.safetensors": (1 << 62).to_bytes(8, "little") + b"{}",
    "shape.safetensors": safetensors(
        {"w": {"dtype": "F32", "shape": [1 << 31, 1 << 31], "data_offsets": [0, 0]}}
    ),
    "offsets.safetensors": safetensors(
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 60]}}
    ),
    "deep.safetensors": (20_000).to_bytes(8, "little") + b"[" * 20_000,
    "field.pb": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    "varint.pb": b"\x0a" + b"\xff" * 50,
    "deep.pbtxt": b"node { attr { value { list { func { attr { value " * 3000,
    "table.bin": bytes(100) + (0xDB4775248B80FB57).to_bytes(8, "little"),
    "table.index": b"\xff" * 60 + (0xDB4775248B80FB57).to_bytes(8, "little"),
}


@pytest.fixture
def little_memory():
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 << 20, f"{peak:,} bytes for a small file"


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("arguments", [(), ("--tensor", "w")])
def test_inspect_what_lies_about_its_size(fails, tmp_path, little_memory, name, arguments):
    (tmp_path / name).write_bytes(HOSTILE[name])
    fails(tmp_path / name.removesuffix(".index"), "inspect", tmp_path / name, *arguments)


@pytest.mark.parametrize(
    ("name", "content"), [("graph.pb", huge_constant), ("events.out.tfevents.1", huge_summary)]
)
def test_a_tensor_that_claims_to_be_huge(fails, tmp_path, little_memory, name, content):
    (tmp_path / name).write_bytes(content())
    fails(tmp_path / name, "inspect", tmp_path / name, "--tensor", "w")


def test_a_file_larger_than_any_graph_is_not_read(fails, tmp_path, little_memory):
    with open(tmp_path / "huge.pb", "wb") as file:
        file.write(b"\x0a\x01")
        file.truncate(3 << 30)
    fails(tmp_path / "huge.pb", "inspect", tmp_path / "huge.pb")


# Parts that are not there


@pytest.mark.parametrize(
    "path", ["run", "tf/model", "plain.safetensors", "graph.pb", "saved", "plain.tfrecord", "logs"]
)
def test_a_tensor_that_is_not_there(files, fails, path):
    assert "there is no" in fails(
        "logs" if path == "logs" else path, "inspect", files / path, "--tensor", "zzz"
    )


def test_records_that_are_not_there(files, fails):
    path = files / "plain.tfrecord"
    fails(path, "inspect", path, "--tensor", "label", "--record", "5")
    fails("logs", "inspect", files / "logs", "--tensor", "matrix", "--record", "3")
    fails("logs", "inspect", files / "logs", "--tensor", "picture")
    fails(files / "run", "inspect", files / "run", "--tensor", "w", "--record", "0")


def test_options_that_need_a_tensor(files, fails):
    fails(files / "run", "inspect", files / "run", "--output", "w.npy")
    fails(files / "run", "inspect", files / "run", "--record", "1")


def test_an_output_that_cannot_be_written(files, fails, tmp_path):
    for target in (tmp_path, tmp_path / "no" / "w.npy"):
        fails(target, "inspect", files / "run", "--tensor", "w", "--output", target)


# Other commands


def test_export_bad_input(files, fails, tmp_path):
    for path in (tmp_path / "no", tmp_path, files / "graph.pb", files / "plain.tfrecord"):
        fails(path, "export", path, tmp_path / "out")
    folder = copied(files, tmp_path)
    for name in ("run/model-3.index", "tf/model.data-00000-of-00001"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    fails(folder, "export", folder / "run/model-3", tmp_path / "out")
    fails(folder, "export", folder / "tf/model", tmp_path / "out")
    (tmp_path / "file").touch()
    fails(tmp_path / "file", "export", files / "run", tmp_path / "file" / "out")


UNREADABLE = {
    "old.py": b"print 'python 2'\n",
    "zero.py": b"x = '\x00'\n",
    "latin.py": b"# caf\xe9\nx = 1\n",
    "coding.py": b"# coding: no-such-thing\n",
    "deep.py": b"(" * 5000 + b"1" + b")" * 5000,
    "sum.py": b"x = 1" + b" + 1" * 20_000,
    "noise.py": random.Random(3).randbytes(2000),
    "words.ipynb": b"no notebook",
    "old.ipynb": b'{"worksheets": []}',
    "odd.ipynb": b'{"cells": 3}',
    "list.ipynb": b"[1]",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_migrate_what_is_no_program(thalweg, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(UNREADABLE[name])
    answer = thalweg("migrate", "--check", path)
    line, summary = answer.out.splitlines()
    assert (answer.status, answer.err) == (1, "")
    assert line.startswith(str(path)) and "1 of them unreadable" in summary


def test_migrate_what_is_no_file(fails, thalweg, tmp_path):
    fails(tmp_path, "migrate", "--check", tmp_path)
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    with open(tmp_path / "huge.py", "wb") as file:
        file.truncate(1 << 40)
    for name in ("no.py", "pipe.py", "loop.py", "huge.py"):
        answer = thalweg("migrate", "--check", tmp_path / name)
        assert answer.status == 1
        assert answer.out.splitlines()[0].startswith(str(tmp_path / name))


@pytest.mark.parametrize("action", [("clear",), ("limit",), ("limit", "1GB")])
def test_cache_in_a_bad_place(fails, monkeypatch, tmp_path, action):
    place = tmp_path / "cache"
    monkeypatch.setenv("THALWEG_CACHE", str(place))
    place.touch()
    fails(place, "cache", *action)
    place.unlink()
    place.mkdir()
    place.chmod(0o777)
    fails(place, "cache", *action)
    monkeypatch.setenv("THALWEG_CACHE", "0")
    fails("THALWEG_CACHE=0", "cache", *action)
    monkeypatch.setenv("THALWEG_CACHE_LIMIT", "much")
    monkeypatch.setenv("THALWEG_CACHE", str(place))
    fails("THALWEG_CACHE_LIMIT", "cache", *action)


@pytest.mark.parametrize(
    ("setting", "value"), [("THALWEG_TARGET", "toaster"), ("THALWEG_CACHE_LIMIT", "much")]
)
def test_doctor_with_bad_settings(fails, monkeypatch, setting, value):
    monkeypatch.setenv(setting, value)
    fails(setting, "doctor")
