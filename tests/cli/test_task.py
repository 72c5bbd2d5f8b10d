"""`thalweg task`: a process that serves as a task; what it says of files that are no clusters."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import thalweg as tf
from thalweg.cluster.addresses import free_ports


def started(folder: Path, cluster: dict, *options: str) -> subprocess.Popen:
    """A task that serves, as a process of its own."""
    file = folder / "cluster.json"
    file.write_text(json.dumps(cluster))
    command = [
        sys.executable,
        "-m",
        "thalweg",
        "task",
        "--cluster",
        str(file),
        "--job",
        "ps",
        *options,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_task_serves_until_a_signal(ending: signal.Signals, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with started(tmp_path, {"cluster": {"ps": [f"localhost:{port}"]}}) as process:
        try:
            assert process.stdout.readline() == f"/job:ps/task:0 listens at 127.0.0.1:{port}\n"
            with tf.Graph().as_default(), tf.Session(f"thalweg://localhost:{port}") as session:
                assert session.run(tf.constant(20) + 1) == 21
        finally:
            process.send_signal(ending)
            out, err = process.communicate()
    assert (out, err) == ("", "")
    assert process.returncode == {signal.SIGTERM: 0, signal.SIGINT: 130}[ending]


def test_a_key_is_read_from_a_file(tmp_path: Path, monkeypatch) -> None:
    key = tmp_path / "key"
    key.write_text(tf.cluster.new_key())
    (port,) = free_ports(1)
    cluster = {"ps": [f"localhost:{port}"]}
    with started(tmp_path, cluster, "--key", str(key)) as process:
        try:
            process.stdout.readline()
            target = f"thalweg://localhost:{port}"
            with pytest.raises(tf.errors.UnauthenticatedError):
                tf.Session(target, graph=tf.Graph())
            monkeypatch.setenv("THALWEG_CLUSTER_KEY", str(key))
            with tf.Graph().as_default(), tf.Session(target) as session:
                assert session.run(tf.constant(1)) == 1
        finally:
            process.terminate()
            process.communicate()


def test_a_file_without_a_key_is_named(fails, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text('{"ps": ["localhost:0"]}')
    task = ["task", "--cluster", file, "--job", "ps", "--key", tmp_path / "key"]
    fails(tmp_path / "key", *task)
    (tmp_path / "key").write_text("too short")
    assert "40 letters" in fails(tmp_path / "key", *task)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ps": 3}', '{"ps": [1]}', "\x00", "null"])
def test_a_file_that_is_no_cluster_is_named(fails, tmp_path: Path, text: str) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(text)
    fails(file, "task", "--cluster", file, "--job", "ps")


def test_a_task_that_is_not_in_the_cluster_is_named(fails, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text('{"ps": ["localhost:0"]}')
    fails(tmp_path / "absent.json", "task", "--cluster", tmp_path / "absent.json", "--job", "ps")
    assert "No such job" in fails(file, "task", "--cluster", file, "--job", "worker")
    assert "index 1" in fails(file, "task", "--cluster", file, "--job", "ps", "--index", 1)


def test_an_address_that_is_taken_is_named(fails, tmp_path: Path) -> None:
    server = tf.train.Server.create_local_server()
    address = server.target.removeprefix("thalweg://")
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"ps": [address]}))
    try:
        fails(f"Cannot listen at {address}", "task", "--cluster", file, "--job", "ps")
    finally:
        server.stop()
    file.write_text('{"ps": ["no such host:2222"]}')
    fails("no such host", "task", "--cluster", file, "--job", "ps")
