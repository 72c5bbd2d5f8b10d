"""A tensor of 64 MB from process to process, next to what the machine can do.

Through shared memory it is compared with a ring: two slots that both processes have mapped, into
which one copies and of which the other is told over a pipe. Over TCP it is compared with a raw
socket. Both take turns, so that they see the same machine; the receiver answers with a few bytes.
"""

from __future__ import annotations

import mmap
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from thalweg.cluster.transport.endpoint import Endpoint
from thalweg.cluster.transport.peer import Peer
from thalweg.cluster.transport.security import Security
from thalweg.cluster.wire import Kind, Message

NBYTES = 64 << 20
LOOPBACK = "127.0.0.1"
SLOTS = 2
Work = Callable[[], None]
Array = np.ndarray[Any, Any]


class Comparison(NamedTuple):
    """Seconds of ours and of the base."""

    title: str
    ours: float
    base: float
    bar: float  # of ours / base


class Echo:
    """Answers a request with a few bytes."""

    def received(self, peer: Peer, message: Message) -> None:
        peer.reply(message, Message(Kind.DONE, message.step))

    def lost(self, peer: Peer, error: Exception) -> None:
        pass


def endpoint(how: str, bind: str | None) -> Endpoint:
    security = Security.none() if "plain" in how else Security.of_user()
    return Endpoint(Echo(), bind, security, "shared" in how)


# What the other process does


def serve(how: str) -> None:
    match how:
        case "socket":
            serve_socket()
        case "ring":
            serve_ring(int(sys.argv[2]))
        case _:
            print(endpoint(how, f"{LOOPBACK}:0").address, flush=True)
            sys.stdin.read()


def serve_socket() -> None:
    listener = socket.create_server((LOOPBACK, 0))
    print(f"{LOOPBACK}:{listener.getsockname()[1]}", flush=True)
    connection, _ = listener.accept()
    memory = memoryview(np.ones(NBYTES, np.uint8))
    while True:
        count = 0
        while count < NBYTES and (more := connection.recv_into(memory[count:])):
            count += more
        if count < NBYTES:
            return
        connection.sendall(b"!")


def serve_ring(file: int) -> None:
    """Look at a slot in place, as a receiver of ours does."""
    ring = mmap.mmap(file, SLOTS * NBYTES)
    print("ready", flush=True)
    while slot := sys.stdin.buffer.read(1):
        ring[slot[0] * NBYTES]
        os.write(1, b"!")


# What this process does


@contextmanager
def other(how: str, *arguments: str, files: tuple[int, ...] = ()) -> Iterator[Any]:
    """Another process that answers, and the first line it writes."""
    command = [sys.executable, __file__, how, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, pass_fds=files, bufsize=0, **pipes)
    line = bytearray()
    while not line.endswith(b"\n"):
        line += process.stdout.read(1)
    yield process, line.decode().strip()
    process.kill()
    process.communicate()


@contextmanager
def requests(how: str, array: Array) -> Iterator[Work]:
    """Ask an endpoint and wait for the answer."""
    with other(how) as (_, address):
        own = endpoint(how, None)
        peer, answers = own.peer(address), SimpleQueue[Exception | None]()

        def ask() -> None:
            message = Message(Kind.RUN, 1, {"handle": 1}, [array])
            peer.request(message, lambda _, error: answers.put(error))
            if (error := answers.get()) is not None:
                raise error

        yield ask
        own.close()


@contextmanager
def ring(array: Array) -> Iterator[Work]:
    """Copy into the next slot of a ring, and wait until the other process has looked at it."""
    file = os.memfd_create("ring")
    os.ftruncate(file, SLOTS * NBYTES)
    slots = np.frombuffer(mmap.mmap(file, SLOTS * NBYTES), np.uint8).reshape(SLOTS, NBYTES)
    slots[:] = 1
    with other("ring", str(file), files=(file,)) as (process, _):
        slot = 0

        def send() -> None:
            nonlocal slot
            slot = (slot + 1) % SLOTS
            np.copyto(slots[slot], array)
            process.stdin.write(bytes([slot]))
            process.stdout.read(1)

        yield send


@contextmanager
def raw_socket(array: Array) -> Iterator[Work]:
    with other("socket") as (_, address):
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as connection:

            def send() -> None:
                connection.sendall(array.data)
                connection.recv(1)

            yield send


def comparisons(repeat: int) -> Iterator[Comparison]:
    """Thalweg next to what the machine can do."""
    array = np.random.default_rng(0).integers(0, 255, NBYTES, np.uint8)
    for title, how, base, bar in (
        ("64 MB, shared memory; a ring", "shared", ring, 1.3),
        ("64 MB over TCP, no key; a raw socket", "plain", raw_socket, 1.2),
        ("64 MB over TCP, encrypted; a raw socket", "curve", raw_socket, 1.2),
    ):
        with requests(how, array) as ours, base(array) as other_work:
            for _ in range(3):
                ours()
                other_work()
            times = [(seconds(ours), seconds(other_work)) for _ in range(repeat)]
        own, others = (statistics.median(each) for each in zip(*times, strict=True))
        yield Comparison(title, own, others, bar)


def seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    serve(sys.argv[1])
