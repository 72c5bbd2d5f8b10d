"""What strangers and broken programs send is refused and counted, and changes nothing."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from tests.cluster.transport.conftest import LONG, MakeEndpoint, ask
from thalweg import errors
from thalweg.cluster import wire
from thalweg.cluster.transport.endpoint import Endpoint
from thalweg.cluster.transport.security import Security, new_key
from thalweg.cluster.transport.shared_memory import Mapping, Pool
from thalweg.cluster.wire import Kind, Message, ValueHeader, ValueLocation, WireError
from thalweg.platform.private_files import UntrustedError

MESSAGES, CONNECTIONS = 10_000, 20


class Stranger:
    """Somebody who speaks ZeroMQ without being an endpoint."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self.socket: Any = self._context.socket(zmq.DEALER)
        self.socket.set(zmq.RCVTIMEO, LONG * 1000)
        self.socket.connect(f"tcp://{address}")

    def close(self) -> None:
        self._context.destroy(0)

    def greet(self, address: str = "stranger", **more: int) -> wire.DecodedMessage:
        """Say HELLO as an endpoint does, and be welcome."""
        fields = {"address": address, "incarnation": 1, "probe": None} | more
        self.socket.send(bytes(wire.write(Message(Kind.HELLO, 0, fields))))
        welcome = wire.read(self.socket.recv())
        self.send(Message(Kind.CONFIRM), welcome.session, 1)
        return welcome

    def barrier(self, session: int, sequence: int) -> None:
        """Return when all that was sent before is read: a STATUS is answered."""
        self.send(Message(Kind.STATUS, 0, {}, (), 1), session, sequence)
        while wire.read(self.socket.recv()).kind is not Kind.DONE:
            pass

    def await_refusal(self) -> None:
        """Return when all that was sent before is read, even if it got this one refused."""
        frame = wire.write(Message(Kind.HELLO))
        frame[4:6] = b"\x77\x77"
        self.socket.send(bytes(frame))
        while b"version 30583" not in self.socket.recv():
            pass

    def send(self, message: Message, session: int, sequence: int, *headers: ValueHeader) -> bytes:
        frame = wire.write(message, headers)
        wire.pack_stamp(frame, wire.STAMP_OFFSET, session, sequence)
        self.socket.send(bytes(frame))
        return bytes(frame)


@pytest.fixture
def server(endpoint: MakeEndpoint) -> Endpoint:
    return endpoint(security=Security.none())


@pytest.fixture
def stranger(server: Endpoint) -> Iterator[Stranger]:
    made = Stranger(server.address)
    yield made
    made.close()


def test_a_wrong_key_and_no_key_are_refused(endpoint: MakeEndpoint):
    server = endpoint(security=Security(new_key()))
    for security in (Security(new_key()), Security.none()) * 5:  # either side may notice first
        client = endpoint(None, security)
        with pytest.raises(errors.UnauthenticatedError, match="another key"):
            ask(client.peer(server.address, LONG))
        assert isinstance(client.handler.losses.get(timeout=LONG)[1], errors.UnauthenticatedError)
    assert server.handler.messages.empty() and server.handler.losses.empty()


def test_who_knows_only_the_public_half_of_the_key_is_refused(endpoint: MakeEndpoint):
    security = Security(new_key())
    server = endpoint(security=security)
    stranger = Stranger(server.address)
    public, secret = zmq.curve_keypair()
    other: Any = stranger._context.socket(zmq.DEALER)
    other.set(zmq.CURVE_PUBLICKEY, public)
    other.set(zmq.CURVE_SECRETKEY, secret)
    other.set(zmq.CURVE_SERVERKEY, zmq.curve_public(security.key.encode()))
    events = other.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    other.connect(f"tcp://{server.address}")
    assert events.poll(LONG * 1000)
    assert server.refused["a process with another key"] >= 1
    stranger.close()


def test_garbage_on_the_port_closes_that_connection_alone(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    host, port = server.address.split(":")
    random = np.random.default_rng(0)
    for size in (1, 64, 1000, 100_000):
        with socket.create_connection((host, int(port))) as connection:
            connection.settimeout(LONG)
            try:
                connection.sendall(random.bytes(size))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
            except OSError:
                pass  # it was closed while this wrote
        assert ask(peer).kind is Kind.DONE


def test_fuzzed_messages_are_refused_and_leave_nothing(server: Endpoint, stranger: Stranger):
    random = np.random.default_rng(2)
    before = resident_bytes()
    for _ in range(CONNECTIONS):
        each = Stranger(server.address)
        frames = list(sample_frames(each.greet().session))
        for number in range(MESSAGES // CONNECTIONS):
            each.socket.send(mutated(frames[number % len(frames)], random))
        each.await_refusal()
        each.close()
    assert sum(server.refused.values()) > MESSAGES // 2
    assert len(server.refused) <= 101
    assert resident_bytes() - before < 64 << 20
    assert stranger.greet().kind is Kind.WELCOME


def test_fuzzed_messages_within_the_host_are_refused(server: Endpoint, stranger: Stranger):
    random = np.random.default_rng(3)
    before = resident_bytes()
    for number in range(CONNECTIONS):
        each = Stranger(server.address)
        session = each.greet(f"stranger {number}").session
        with within_host(server) as connection:
            connection.send(attach_to(session))
            connection.send(attach_to(session))  # replayed
            frames = list(sample_frames(session))
            for sent in range(MESSAGES // CONNECTIONS):
                connection.send(mutated(frames[sent % len(frames)], random) or b"x")
            each.await_refusal()
        each.close()
    assert sum(server.refused.values()) > MESSAGES // 2
    assert len(server.refused) <= 101
    assert resident_bytes() - before < 64 << 20
    assert stranger.greet().kind is Kind.WELCOME


def test_who_guesses_a_session_within_the_host_is_cut_off(server: Endpoint, stranger: Stranger):
    session = stranger.greet().session
    for frame in (attach_to(session + 1), attach_to(0), b"garbage", attach_to(session)[:40]):
        with within_host(server) as connection:
            connection.send(frame)
            assert connection.recv(1) == b""
    stranger.barrier(session, 2)


def attach_to(session: int) -> bytes:
    frame = wire.write(Message(Kind.ATTACH))
    wire.pack_stamp(frame, wire.STAMP_OFFSET, session, 1)
    return bytes(frame)


def within_host(server: Endpoint) -> socket.socket:
    """A connection of a process of this user to the socket that an endpoint has for its host."""
    result = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    result.settimeout(LONG)
    assert server._listener is not None and server._listener._local is not None
    result.connect(f"\0{server._listener._local.name}")
    return result


def sample_frames(session: int) -> Iterator[bytes]:
    array = wire.content_of(np.arange(10))
    inline = ValueHeader(ValueLocation.INLINE, *array[:3])
    messages: list[tuple[Message, list[ValueHeader]]] = [
        (Message(Kind.TENSOR, 1, {"key": "a"}), []),
        (Message(Kind.TENSOR, 2), [ValueHeader(ValueLocation.STREAM, 4, (1 << 62,), 1 << 62, 1)]),
        (
            Message(Kind.TENSOR, 3),
            [ValueHeader(ValueLocation.SHARED, 4, (100,), 100, 1 << 32 | 5, 0)],
        ),
        (Message(Kind.CHUNK, 1), []),
        (Message(Kind.CREDIT, 0, {"bytes": 10}), []),
        (Message(Kind.FORGET, 0, {"segments": [1]}), []),
        (Message(Kind.HELLO, 0, {"address": "x", "incarnation": 1}), []),
        (Message(Kind.ATTACH), []),
    ]
    for sequence, (message, headers) in enumerate(messages):
        frame = wire.write(message, headers)
        wire.pack_stamp(frame, wire.STAMP_OFFSET, session, sequence + 2)
        yield bytes(frame)
    yield bytes(wire.write(Message(Kind.TENSOR, 9), [inline], [array]))


def mutated(frame: bytes, random: np.random.Generator) -> bytes:
    changed = bytearray(frame)
    for place in random.integers(4, len(frame), random.integers(0, 4)):
        changed[place] = random.integers(256)
    return bytes(changed[: random.integers(len(changed) + 1)] if random.random() < 0.3 else changed)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_replayed_message_is_refused(server: Endpoint, stranger: Stranger):
    session = stranger.greet().session
    frame = stranger.send(Message(Kind.RUN, 5), session, 2)
    stranger.socket.send(frame)
    stranger.barrier(session, 3)
    assert server.handler.messages.get(timeout=LONG)[1].step == 5
    assert server.handler.messages.empty()
    assert server.refused["a message that came before"] == 1
    again = Stranger(server.address)
    other = again.greet().session
    again.socket.send(frame)
    again.barrier(other, 2)
    again.close()
    assert server.handler.messages.empty()
    assert server.refused["a message of another connection"] == 1


def test_a_message_without_a_hello_is_told_that_the_task_is_another(
    server: Endpoint, stranger: Stranger
):
    stranger.send(Message(Kind.RUN, 5), 1234, 1)
    frame = stranger.socket.recv()
    decoded = wire.read(frame)
    assert decoded.kind is Kind.REFUSED
    assert decoded.fields["code"] == errors.ABORTED and "started again" in decoded.fields["reason"]
    assert server.handler.messages.empty()


def test_another_version_is_told_which_is_needed(server: Endpoint, stranger: Stranger):
    frame = wire.write(Message(Kind.HELLO))
    frame[4] = 9
    stranger.socket.send(bytes(frame))
    answer = stranger.socket.recv()
    reason = wire.read(answer).fields["reason"]
    assert "version 9" in reason and f"version {wire.VERSION}" in reason


def test_who_connects_to_another_version_raises_which(endpoint: MakeEndpoint):
    context = zmq.Context()
    old: Any = context.socket(zmq.ROUTER)
    old.set(zmq.RCVTIMEO, LONG * 1000)
    port = old.bind_to_random_port("tcp://127.0.0.1")
    client = endpoint(None, Security.none())
    peer = client.peer(f"127.0.0.1:{port}", LONG)
    route, _ = old.recv_multipart()
    answer = wire.write(Message(Kind.REFUSED))
    answer[4] = 9
    old.send_multipart([route, bytes(answer)])
    with pytest.raises(
        errors.FailedPreconditionError, match=rf"version 9 .* version {wire.VERSION}"
    ):
        ask(peer)
    context.destroy(0)


def test_a_frame_larger_than_any_message_closes_its_connection(
    server: Endpoint, stranger: Stranger
):
    stranger.greet()
    stranger.socket.send(bytes(wire.MAX_FRAME + 1))
    assert "broke" in str(server.handler.losses.get(timeout=LONG)[1])
    assert stranger.greet().kind is Kind.WELCOME  # on a new connection


def test_values_larger_than_all_memory_lose_the_peer(server: Endpoint, stranger: Stranger):
    session = stranger.greet().session
    huge = ValueHeader(ValueLocation.STREAM, 4, (1 << 46,), 1 << 46, 1)
    stranger.send(Message(Kind.TENSOR), session, 2, huge)
    assert isinstance(server.handler.losses.get(timeout=LONG)[1], errors.ResourceExhaustedError)


def test_only_sealed_memory_of_a_known_layout_is_mapped(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"\1" * 8192)
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "pipe", "missing"):
        with pytest.raises(WireError):
            Mapping(str(tmp_path / name))
    pool = Pool()
    slot = pool.allocate(100_000)
    assert slot is not None
    mapping = Mapping(f"/proc/self/fd/{slot.segment & 0xFFFFFFFF}")
    for offset, nbytes in ((1, 5), (0, 1 << 40), (1 << 40, 5), (slot.memory.nbytes * 64, 1)):
        with pytest.raises(WireError):
            mapping.memory(offset, nbytes)
    slot = None
    pool.close()


def test_the_key_of_a_user_is_private_and_shared_by_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "folder"))
    security = Security.of_user()
    assert security == Security.of_user() and security.key not in repr(security)
    file = tmp_path / "folder" / "cluster-key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.chmod(0o644)
    with pytest.raises(UntrustedError, match="read by others"):
        Security.of_user()


def test_a_port_without_a_key_is_warned_of_unless_it_is_local(caplog: pytest.LogCaptureFixture):
    for host in ("127.0.0.1", "::1", "localhost"):
        Security.none().warn_if_exposed(host)
    Security(new_key()).warn_if_exposed("0.0.0.0")
    assert not caplog.records
    Security.none().warn_if_exposed("0.0.0.0")
    assert "without a key" in caplog.text


def test_a_key_of_another_length_is_no_key():
    with pytest.raises(ValueError, match="40 letters"):
        Security("short")
