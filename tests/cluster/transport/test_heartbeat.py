"""Silence at the other end of a connection, and time that does not count."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from tests.cluster.transport.conftest import LONG, MakeEndpoint, ask
from thalweg.cluster.transport.heartbeat import HeartbeatMonitor, bytes_received, is_counted
from thalweg.cluster.transport.loop import Loop
from thalweg.cluster.transport.sockets import ConnectionEvent, Socket

CHECKS = 6

pytestmark = pytest.mark.skipif(not is_counted(), reason="this system counts no bytes")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        yield one, other


def checks(monitor: HeartbeatMonitor) -> int:
    """How many looks find a connection alive; many at most."""
    return next(count for count in range(100) if count == 99 or monitor.is_silent())


def test_a_connection_is_silent_after_some_looks_without_a_byte(
    pair: tuple[socket.socket, socket.socket],
):
    one, other = pair
    monitor = HeartbeatMonitor(other.fileno())
    assert checks(monitor) == CHECKS  # after the first, which only reads the count
    one.sendall(b"12")
    assert other.recv(2) == b"12" and bytes_received(other.fileno()) == 2
    assert not monitor.is_silent()
    assert checks(monitor) == CHECKS - 1


def test_bytes_that_nobody_read_are_not_silence(pair: tuple[socket.socket, socket.socket]):
    one, other = pair
    monitor = HeartbeatMonitor(other.fileno())
    one.sendall(b"1")
    assert checks(monitor) == 99


def test_a_connection_that_is_cut_ends_at_both_sides(pair: tuple[socket.socket, socket.socket]):
    one, other = pair
    HeartbeatMonitor(other.fileno()).shut_down()
    assert one.recv(1) == other.recv(1) == b""


def test_a_closed_connection_is_not_judged(pair: tuple[socket.socket, socket.socket]):
    _, other = pair
    monitor = HeartbeatMonitor(other.fileno())
    other.close()
    assert checks(monitor) == 99
    monitor.shut_down()


def test_the_clock_of_a_loop_stands_still_while_the_process_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    loop, fired = Loop("stopped"), list[float]()
    loop.call_later(5, lambda: fired.append(now))
    loop._run_calls()
    now += 3600  # between two looks at the clock
    loop._run_due()
    assert not fired
    for _ in range(5):
        now += 1
        loop._run_due()
    assert len(fired) == 1


def test_zeromq_cuts_nobody_off_by_its_own_clock(endpoint: MakeEndpoint):
    """Its timers run out while a process is stopped, and it acts on them before it reads."""
    import zmq

    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    for socket_ in (server._listener._socket, peer._socket):
        assert socket_._socket.get(zmq.HEARTBEAT_IVL) > 0
        assert socket_._socket.get(zmq.HEARTBEAT_TIMEOUT) == 0
        assert socket_._socket.get(zmq.HEARTBEAT_TTL) == 0


def test_an_endpoint_looks_at_every_connection_and_cuts_the_silent(
    endpoint: MakeEndpoint, monkeypatch: pytest.MonkeyPatch
):
    server, client = endpoint(), endpoint(None)
    ask(client.peer(server.address))
    monkeypatch.setattr(HeartbeatMonitor, "is_silent", lambda _: True)
    for each in (server, client):
        assert "the connection broke" in str(each.handler.losses.get(timeout=LONG)[1])


def test_a_connection_that_is_being_opened_is_not_judged(endpoint: MakeEndpoint):
    """The other side's I/O thread must admit it first, and may be busy for long."""
    import zmq

    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    other = Socket(client.loop, client._context.socket(zmq.DEALER), print, peer._on_event)
    for event in (zmq.EVENT_CONNECTED, zmq.EVENT_DISCONNECTED):
        tracked = other._tracked(ConnectionEvent(event, 1 << 20))
        assert not other._monitors and not tracked.was_open
        peer._on_event(tracked)
    assert peer.is_alive
    for event in (zmq.EVENT_CONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED):
        other._tracked(ConnectionEvent(event, 1 << 20 if event == zmq.EVENT_CONNECTED else 0))
    assert list(other._monitors) == [1 << 20]
    assert other._tracked(ConnectionEvent(zmq.EVENT_DISCONNECTED, 1 << 20)).was_open
    other.close()
