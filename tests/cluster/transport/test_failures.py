"""Processes that are killed, paused, forked, or simply end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest

from tests.cluster.transport.conftest import LONG, MakeEndpoint, Recorder, ask, own_descriptors
from tests.cluster.transport.test_hostile import Stranger
from thalweg import errors
from thalweg.cluster.transport.endpoint import Endpoint
from thalweg.cluster.transport.security import Security
from thalweg.cluster.wire import Kind, Message

MAX_SILENCE = 5.0  # seconds until a peer must be lost
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


class Task(NamedTuple):
    """A process with an endpoint that answers."""

    process: int
    address: str

    def signal(self, number: int) -> None:
        os.kill(self.process, number)


@pytest.fixture
def task(endpoint: MakeEndpoint) -> Iterator[Callable[..., Task]]:
    """Starts tasks with the same key, and ends them."""
    tasks = list[Task]()

    def start(address: str = "127.0.0.1:0") -> Task:
        reading, writing = os.pipe()
        process = os.fork()
        if not process:
            serve(address, writing)
        os.close(writing)
        with open(reading, "rb") as pipe:
            tasks.append(Task(process, pipe.readline().decode().strip()))
        return tasks[-1]

    yield start
    for each in tasks:
        each.signal(signal.SIGKILL)
        os.waitpid(each.process, 0)


def serve(address: str, writing: int) -> None:
    """Answer until this process is killed."""
    try:
        served = Endpoint(Recorder(), address)
        os.write(writing, f"{served.address}\n".encode())
        os.close(writing)
        signal.pause()
    finally:
        os._exit(1)


def lost(client: Endpoint, since: float) -> Exception:
    """The error of the one peer that is lost, within the time in which it must be."""
    _, error = client.handler.losses.get(timeout=LONG)  # pyright: ignore[reportAttributeAccessIssue]
    assert time.monotonic() - since < MAX_SILENCE
    return error


def test_a_killed_task_is_lost_and_one_in_its_place_is_found(
    endpoint: MakeEndpoint, task: Callable[..., Task]
):
    killed = task()
    client = endpoint(None)
    peer = client.peer(killed.address)
    value = np.arange(1 << 18)
    kept = ask(peer, value).values[0]
    killed.signal(signal.SIGKILL)
    assert isinstance(lost(client, time.monotonic()), errors.UnavailableError)
    with pytest.raises(errors.UnavailableError):
        ask(peer)
    assert np.array_equal(kept, value)  # though it lies in memory of a process that is gone
    del kept
    task(killed.address)
    again = client.peer(killed.address, LONG)
    assert ask(again).kind is Kind.DONE and again.incarnation != peer.incarnation
    gc.collect()
    client.close()
    assert client.handler.losses.empty()
    assert not [path for path in own_descriptors().values() if "memfd:thalweg" in path]


def test_a_paused_task_is_lost_and_does_not_come_back(
    endpoint: MakeEndpoint, task: Callable[..., Task]
):
    paused = task()
    client = endpoint(None)
    peer = client.peer(paused.address)
    ask(peer)
    paused.signal(signal.SIGSTOP)
    assert isinstance(lost(client, time.monotonic()), errors.UnavailableError)
    with pytest.raises(errors.UnavailableError):
        peer.send(Message(Kind.RUN))
    paused.signal(signal.SIGCONT)
    assert ask(client.peer(paused.address)).kind is Kind.DONE
    assert not peer.is_alive and client.handler.losses.empty()


def test_who_connects_again_replaces_its_former_connection(endpoint: MakeEndpoint):
    """A process that was cut off may be back before its silence is noticed."""
    server = endpoint(security=Security.none())
    first, second, third = (Stranger(server.address) for _ in range(3))
    former = first.greet(incarnation=5).session
    second.greet(incarnation=6, replaces=former)  # another process may not
    third.greet(incarnation=5, replaces=former)
    assert "connected again" in str(server.handler.losses.get(timeout=LONG)[1])
    assert server.handler.losses.empty()
    for each in (first, second, third):
        each.close()


def test_a_process_at_the_address_of_another_replaces_it(endpoint: MakeEndpoint):
    """One that was killed while it was cut off says no goodbye."""
    server = endpoint(security=Security.none())
    first, second, third = (Stranger(server.address) for _ in range(3))
    first.greet("10.0.0.1:2222", incarnation=5)
    second.greet("10.0.0.1:2222", incarnation=5)  # the same one, over two connections
    assert server.handler.losses.empty()
    third.greet("10.0.0.1:2222", incarnation=6)
    for _ in range(2):
        peer, error = server.handler.losses.get(timeout=LONG)
        assert peer.incarnation == 5 and "connected again" in str(error)
    for each in (first, second, third):
        each.close()


def test_an_endpoint_that_lost_a_peer_tells_which_connection_it_was(endpoint: MakeEndpoint):
    server, client = endpoint(security=Security.none()), endpoint(None, Security.none())
    lost_one = client.peer(server.address)
    ask(lost_one)
    client.loop.call(lambda: lost_one.mark_lost(errors.UnavailableError(None, None, "silence")))
    client.handler.losses.get(timeout=LONG)
    assert client.peer(server.address, LONG) is not lost_one
    assert client._last_sessions == {server.address: lost_one.session}
    ask(client.peer(server.address, LONG))
    assert server.handler.losses.get(timeout=LONG)[0].incarnation == client.incarnation


def in_child(function: Callable[[], bool]) -> bool:
    """What a function returns in the child of a fork."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if function() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_child_of_a_fork_disturbs_nobody_and_has_its_own_endpoint(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    value = ask(peer, np.arange(1 << 18)).values[0]

    def child() -> bool:
        nonlocal value
        del value  # the parent still has it
        gc.collect()
        try:
            peer.send(Message(Kind.RUN))
        except errors.UnavailableError as error:
            own = Endpoint(client.handler)
            answered = ask(own.peer(server.address)).kind is Kind.DONE
            own.close()
            client.close()
            return answered and "parent process" in str(error)
        return False

    assert in_child(child)
    for number in range(3):
        ask(peer, np.full(1 << 18, number))
    assert np.array_equal(value, np.arange(1 << 18))


PROGRAM = """
import numpy as np
from tests.cluster.transport.conftest import Recorder, ask
from thalweg.cluster.transport.endpoint import Endpoint

server, client = Endpoint(Recorder(), "127.0.0.1:0"), Endpoint(Recorder())
kept = [ask(client.peer(server.address), np.zeros(1 << 18)) for _ in range(3)]
client.peer("127.0.0.1:1")
print("end")
"""


def test_an_interpreter_ends_though_its_endpoints_are_open(endpoint: MakeEndpoint):
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")
