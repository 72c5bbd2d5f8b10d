"""Connections for large values: nobody without a ticket gets in, and what is sealed stays so."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from queue import SimpleQueue

import numpy as np
import pytest

from tests.cluster.transport.conftest import LONG, MakeEndpoint, ask
from thalweg import errors
from thalweg.cluster import wire
from thalweg.cluster.transport import handshake, sealing
from thalweg.cluster.transport.bulk import BulkSocket, Offer
from thalweg.cluster.transport.endpoint import Endpoint
from thalweg.cluster.transport.sealing import TAG, Keys, Seal
from thalweg.cluster.transport.security import Security
from thalweg.cluster.wire import Kind, Message, WireError

DATA = np.random.default_rng(0).bytes(1000)
SEALED = Keys("11" * 32, "22" * 32)
Tamper = Callable[[list[bytes]], list[bytes]]


@pytest.fixture
def tcp() -> Iterator[Callable[[], tuple[socket.socket, socket.socket]]]:
    """Makes both ends of connections."""
    with ExitStack() as stack:

        def make() -> tuple[socket.socket, socket.socket]:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                one = stack.enter_context(socket.create_connection(listener.getsockname()))
                other = stack.enter_context(listener.accept()[0])
            one.settimeout(LONG)
            other.settimeout(LONG)
            return one, other

        yield make


Tcp = Callable[[], tuple[socket.socket, socket.socket]]


def sent(tcp: Tcp, keys: Keys | None, count: int) -> list[bytes]:
    """The bytes of so many messages, each with the same frame and data."""
    one, other = tcp()
    bulk, size = BulkSocket(one, keys), 8 + 50 + len(DATA) + (2 * TAG if keys else 0)
    result = list[bytes]()
    for _ in range(count):
        bulk.send(bytearray(b"f" * 50), DATA)
        result.append(other.recv(size, socket.MSG_WAITALL))
    return result


def received(tcp: Tcp, keys: Keys | None, messages: list[bytes]) -> list[tuple[bytes, bytes]]:
    """What the other side makes of bytes."""
    one, other = tcp()
    bulk, result = BulkSocket(other, keys and keys.of_other_side), list[tuple[bytes, bytes]]()
    one.sendall(b"".join(messages))
    one.shutdown(socket.SHUT_WR)
    while True:
        try:
            frame, nbytes = bulk.receive()
        except EOFError:
            return result
        data = bytearray(nbytes)
        bulk.receive_into(memoryview(data))
        result.append((frame, bytes(data)))


@pytest.mark.parametrize("keys", [SEALED, None])
def test_messages_arrive_as_they_were_sent(tcp: Tcp, keys: Keys | None):
    messages = sent(tcp, keys, 3)
    assert received(tcp, keys, messages) == [(b"f" * 50, DATA)] * 3
    assert (DATA in messages[0]) == (keys is None)


def test_no_two_sealed_pieces_are_alike(tcp: Tcp):
    pieces = [m[start : start + 50] for m in sent(tcp, SEALED, 4) for start in (8, 8 + 50 + TAG)]
    assert len(set(pieces)) == len(pieces)


def changed(place: int) -> Tamper:
    def change(messages: list[bytes]) -> list[bytes]:
        second = bytearray(messages[1])
        second[place] ^= 1
        return [messages[0], bytes(second), *messages[2:]]

    return change


TAMPERING: dict[str, Tamper] = {
    "a changed frame": changed(8),
    "a changed tag of a frame": changed(8 + 50 + 3),
    "changed data": changed(8 + 50 + TAG),
    "a changed tag of data": changed(-1),
    "a shorter frame": changed(0),
    "less data": changed(4),
    "a repeated message": lambda m: [m[0], m[0], *m[1:]],
    "a missing message": lambda m: [m[0], m[2]],
    "another order": lambda m: [m[0], m[2], m[1]],
}


@pytest.mark.parametrize("how", TAMPERING)
def test_what_was_tampered_with_does_not_open(tcp: Tcp, how: str):
    messages = TAMPERING[how](sent(tcp, SEALED, 3))
    with pytest.raises((WireError, EOFError)):
        received(tcp, SEALED, messages)


def test_a_cut_message_is_none(tcp: Tcp):
    whole = sent(tcp, SEALED, 1)[0]
    one, other = tcp()
    one.sendall(whole[:-1])
    one.shutdown(socket.SHUT_WR)
    bulk = BulkSocket(other, SEALED.of_other_side)
    _, nbytes = bulk.receive()
    with pytest.raises(EOFError):
        bulk.receive_into(memoryview(bytearray(nbytes)))


def test_the_directions_have_different_keys(tcp: Tcp):
    with pytest.raises(WireError):
        received(tcp, SEALED.of_other_side, sent(tcp, SEALED, 1))  # reflected


def test_lengths_beyond_all_bounds_are_refused_before_memory_is_taken(tcp: Tcp):
    for prefix in (b"\xff" * 4 + bytes(4), bytes(4) + b"\xff" * 4):
        with pytest.raises(WireError, match="a frame of"):
            received(tcp, None, [prefix])


def test_a_seal_opens_nothing_of_another_key():
    sealed = bytearray(4 + TAG)
    Seal(SEALED.outgoing).close(b"text", b"", sealed)
    with pytest.raises(WireError):
        Seal(SEALED.incoming).open(sealed, b"", bytearray(4))


def congestion_control(connected: socket.socket) -> bytes:
    return connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def test_nothing_is_paced_within_a_host(tcp: Tcp):
    for end in tcp():
        BulkSocket(end, None)
        assert congestion_control(end) == b"reno"


def test_the_systems_congestion_control_is_kept_between_addresses():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), LONG, ("127.0.0.2", 0)) as one,
        listener.accept()[0] as other,
    ):
        for end in (one, other):
            before = congestion_control(end)
            BulkSocket(end, None)
            assert congestion_control(end) == before


def test_a_connection_that_has_ended_can_still_be_wrapped(tcp: Tcp):
    one, other = tcp()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()  # with a reset: the address of the other side is gone
    bulk = BulkSocket(other, None)
    with pytest.raises((OSError, EOFError)):
        bulk.receive()


# Endpoints


class Offers:
    """Notes the offers that are made, as one who reads along would without a key."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: SimpleQueue[Offer] = SimpleQueue()
        connect = Offer.connect

        def noted(offer: Offer, host: str) -> BulkSocket:
            self.made.put(offer)
            return connect(offer, host)

        monkeypatch.setattr(Offer, "connect", noted)


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch) -> Offers:
    return Offers(monkeypatch)


@pytest.mark.parametrize("security", [None, Security.none()])
def test_large_values_take_the_connection_both_ways(
    endpoint: MakeEndpoint, offers: Offers, security: Security | None
):
    server = endpoint("127.0.0.1:0", security, shares_memory=False)
    client = endpoint(None, security)
    peer = client.peer(server.address)
    large = np.arange(1 << 20)
    for _ in range(3):
        assert np.array_equal(ask(peer, large).values[0], large)
    offer = offers.made.get(timeout=LONG)
    assert (offer.keys is None) == (security is not None)
    assert peer._bulk is not None and peer._bulk.sent == 1 + 3 * (1 + large.nbytes // (1 << 20))


def test_strangers_on_the_port_are_refused_and_change_nothing(
    endpoint: MakeEndpoint, offers: Offers
):
    server, client = endpoint(shares_memory=False), endpoint(None)
    peer = client.peer(server.address)
    ask(peer, np.zeros(1 << 20))
    offer = offers.made.get(timeout=LONG)
    preamble = wire.MAGIC + wire.VERSION.to_bytes(2, "little") + bytes(2)
    for said in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        preamble + bytes(8),
        preamble + offer.ticket.to_bytes(8, "little") + bytes(100),  # it has been used
    ):
        assert is_cut(offer.port, said)
    assert ask(peer, np.zeros(1 << 20)).values[0].nbytes == 8 << 20
    assert sum(refused(server).values()) == 4


def refused(server: Endpoint) -> Counter[str]:
    """What was refused, once the I/O thread has counted all that it was told of."""
    counted = threading.Event()
    server.loop.call(counted.set)
    assert counted.wait(LONG)
    return server.refused


def is_cut(port: int, said: bytes) -> bool:
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.settimeout(LONG)
        try:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            return stranger.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:  # it was cut while this wrote
            return True


def test_a_ticket_without_its_key_is_refused(
    endpoint: MakeEndpoint, offers: Offers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(handshake, "Keys", lambda *_: Keys("33" * 32, "44" * 32))
    server, client = endpoint(shares_memory=False), endpoint(None)
    with pytest.raises(errors.UnavailableError):
        ask(client.peer(server.address), np.zeros(1 << 20))
    assert "a connection for chunks: sealed content was changed, or is out of its turn" in (
        refused(server)
    )


def test_a_peer_is_lost_with_its_connection_for_chunks(endpoint: MakeEndpoint, offers: Offers):
    server, client = endpoint(shares_memory=False), endpoint(None)
    peer = client.peer(server.address)
    ask(peer, np.zeros(1 << 20))
    assert peer._bulk_socket is not None
    peer._bulk_socket.close()
    for each in (server, client):
        assert isinstance(each.handler.losses.get(timeout=LONG)[1], errors.UnavailableError)


@pytest.mark.parametrize("side", ["server", "client"])
def test_values_arrive_where_one_side_has_no_cipher(
    endpoint: MakeEndpoint, monkeypatch: pytest.MonkeyPatch, side: str
):
    monkeypatch.setattr(sealing, "is_available", lambda: side != "server")
    server = endpoint(shares_memory=False)
    monkeypatch.setattr(sealing, "is_available", lambda: side != "client")
    assert_plain(server, endpoint(None))


def test_values_arrive_where_the_port_cannot_be_reached(
    endpoint: MakeEndpoint, monkeypatch: pytest.MonkeyPatch
):
    def refuse(offer: Offer, host: str) -> BulkSocket:
        raise ConnectionRefusedError

    monkeypatch.setattr(Offer, "connect", refuse)
    assert_plain(endpoint(shares_memory=False), endpoint(None))


def assert_plain(server: Endpoint, client: Endpoint) -> None:
    """Values go over the first connection."""
    peer = client.peer(server.address)
    assert ask(peer, np.ones(1 << 20)).values[0].all()
    assert peer._bulk is None


def test_a_cluster_with_a_key_takes_no_offer_without_keys():
    identity = handshake.Identity("", 1, None, is_secret=True, takes_bulk=True)
    fields = {"address": "a:1", "incarnation": 1, "bulk": [1, 2, None]}
    assert identity.read(decoded_message(fields)).bulk is None
    fields["bulk"] = [1, 2, [*SEALED]]
    assert identity.read(decoded_message(fields)).bulk == Offer(1, 2, SEALED)


def decoded_message(fields: dict[str, object]) -> wire.DecodedMessage:
    return wire.read(bytes(wire.write(Message(Kind.WELCOME, 0, fields))))
