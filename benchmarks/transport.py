"""How fast messages and tensors go from process to process, next to what the machine can do.

Prints the time of a small message there and back next to ZeroMQ's own, and that of 64 MB next to a
copy to shared memory that is mapped already, and to a raw socket. Each row is measured in turns
with what it is compared to, so that both see the same machine.

    .venv/bin/python benchmarks/transport.py
"""

from __future__ import annotations

import mmap
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import numpy as np
import zmq

from thalweg.cluster.transport.endpoint import Endpoint
from thalweg.cluster.transport.peer import Peer
from thalweg.cluster.transport.security import Security
from thalweg.cluster.wire import Kind, Message

NBYTES = 64 << 20
LOOPBACK = "127.0.0.1"
Work = Callable[[], None]


class Echo:
    """Answers a request with a few bytes."""

    def received(self, peer: Peer, message: Message) -> None:
        peer.reply(message, Message(Kind.DONE, message.step))

    def lost(self, peer: Peer, error: Exception) -> None:
        pass


def endpoint(how: str, bind: str | None) -> Endpoint:
    security = Security.of_user() if "curve" in how else Security.none()
    return Endpoint(Echo(), bind, security, "shared" in how)


# What the other process does


def serve(how: str) -> None:
    if how == "zeromq":
        serve_zeromq()
    elif how == "socket":
        serve_socket()
    else:
        print(endpoint(how, f"{LOOPBACK}:0").address, flush=True)
        sys.stdin.read()


def serve_zeromq() -> None:
    router = zmq.Context().socket(zmq.ROUTER)
    print(f"{LOOPBACK}:{router.bind_to_random_port(f'tcp://{LOOPBACK}')}", flush=True)
    while True:
        router.send_multipart(router.recv_multipart())


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


# What this process does


@contextmanager
def task(how: str) -> Iterator[str]:
    """The address of another process that answers."""
    command = [sys.executable, __file__, how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.kill()
    process.communicate()


@contextmanager
def requests(how: str, *values: np.ndarray) -> Iterator[Work]:
    """Ask an endpoint and wait for the answer."""
    with task(how) as address:
        own = endpoint(how, None)
        peer, answers = own.peer(address), SimpleQueue[Exception | None]()

        def ask() -> None:
            peer.request(
                Message(Kind.STATUS, 1, {"handle": 1}, values), lambda _, error: answers.put(error)
            )
            if (error := answers.get()) is not None:
                raise error

        yield ask
        own.close()


@contextmanager
def zeromq_requests() -> Iterator[Work]:
    with task("zeromq") as address, zmq.Context() as context:
        dealer = context.socket(zmq.DEALER)
        dealer.connect(f"tcp://{address}")

        def ask() -> None:
            dealer.send(bytes(64))
            dealer.recv()

        yield ask
        dealer.close(0)


@contextmanager
def copies(array: np.ndarray) -> Iterator[Work]:
    """Copy to shared memory that is mapped already."""
    memory = mmap.mmap(-1, array.nbytes)
    target = np.frombuffer(memory, array.dtype)
    yield lambda: np.copyto(target, array)


@contextmanager
def socket_sends(array: np.ndarray) -> Iterator[Work]:
    with task("socket") as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as connection:

            def send() -> None:
                connection.sendall(array.data)
                connection.recv(1)

            yield send


def compare(name: str, ours: Work, base: Work, repeat: int) -> None:
    """Print the best of two works that are measured in turns, and the ratios of both."""
    times = list[tuple[float, float]]()
    for _ in range(3):
        ours(), base()
    for _ in range(repeat):
        times.append((seconds(ours), seconds(base)))
    own, other = zip(*times, strict=True)
    best, median = min(own) / min(other), statistics.median(own) / statistics.median(other)
    print(f"{name:40} {min(own) * 1e3:8.3f} {min(other) * 1e3:8.3f} {best:6.2f} {median:8.2f}")


def seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    array = np.random.default_rng(0).integers(0, 255, NBYTES, np.uint8)
    print(f"{'there and back, best, in ms':40} {'ours':>8} {'base':>8} {'ratio':>6} {'medians':>8}")
    with zeromq_requests() as base:
        for how in ("plain", "curve"):
            with requests(how) as ours:
                compare(f"a small message, {how}; ZeroMQ's own", ours, base, 3000)
    with requests("curve shared", array) as ours, copies(array) as base:
        compare("64 MB in shared memory; a copy", ours, base, 50)
    with socket_sends(array) as base:
        for how in ("plain", "curve"):
            with requests(how, array) as ours:
                compare(f"64 MB over TCP, {how}; a raw socket", ours, base, 30)


if __name__ == "__main__":
    serve(sys.argv[1]) if sys.argv[1:] else main()
