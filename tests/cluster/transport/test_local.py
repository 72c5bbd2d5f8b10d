"""Messages within a host: past ZeroMQ where that can be, and in the same order as ever."""

from __future__ import annotations

import threading

import pytest

from tests.cluster.transport.conftest import LONG, MakeEndpoint, Recorder, ask
from thalweg import errors
from thalweg.cluster import wire
from thalweg.cluster.transport import local, outbound
from thalweg.cluster.transport.loop import Loop
from thalweg.cluster.transport.peer import Peer
from thalweg.cluster.wire import Kind, Message

MANY = 100_000


def test_messages_within_a_host_take_the_local_connection(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    peer.send(Message(Kind.RUN))
    back, _ = server.handler.messages.get(timeout=LONG)
    for each in (peer, back):
        control = each._control.sent
        ask(each)
        assert each._control.sent == control


@pytest.mark.parametrize("names", [(True, False), (False, True)], ids=["client", "server"])
def test_who_does_not_want_it_goes_over_the_network(
    endpoint: MakeEndpoint, names: tuple[bool, bool]
):
    server, client = endpoint(shares_memory=names[0]), endpoint(None, shares_memory=names[1])
    peer = client.peer(server.address)
    assert ask(peer).kind is Kind.DONE and peer._local is None


def test_a_host_without_a_common_namespace_goes_over_the_network(
    endpoint: MakeEndpoint, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outbound, "connect", lambda loop, name: local.connect(loop, "nobody"))
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    assert ask(peer).kind is Kind.DONE and peer._local is None


def test_a_process_of_another_user_is_not_let_in(
    endpoint: MakeEndpoint, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(local, "_user", lambda connected: -1)
    server, client = endpoint(), endpoint(None)
    client.peer(server.address).send(Message(Kind.RUN))
    lost, error = client.handler.losses.get(timeout=LONG)
    assert lost.address == server.address and isinstance(error, errors.UnavailableError)
    assert "is lost" in str(error)


def test_a_connection_of_no_session_is_closed(endpoint: MakeEndpoint):
    server = endpoint()
    loop = Loop("thalweg-cluster-test")
    loop.start()
    name = server._listener._local.name
    for message in (Message(Kind.ATTACH), Message(Kind.RUN)):
        ended = threading.Event()  # one each: an end may be told of again until it is closed
        stranger = local.connect(loop, name)
        assert stranger is not None
        stranger.watch(lambda _: None, ended.set)
        frame = wire.write(message)
        assert stranger.send(frame)
        assert ended.wait(LONG)
        stranger.close()
    loop.stop()
    assert server.refused["a connection within the host of no session"] == 2


def test_fields_too_large_for_the_local_connection_arrive(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    text = "x" * (1 << 20)
    assert ask(client.peer(server.address), text=text).fields == {"text": text}


@pytest.mark.parametrize("shares_memory", [True, False], ids=["local", "ZeroMQ"])
def test_a_sender_waits_for_a_receiver_that_does_not_read(
    endpoint: MakeEndpoint, shares_memory: bool
):
    class Slow(Recorder):
        def received(self, peer: Peer, message: Message) -> None:
            if message.kind is Kind.TENSOR and not message.step:
                busy.set()
                resume.wait(LONG)
            super().received(peer, message)

    busy, resume = threading.Event(), threading.Event()
    server, client = endpoint(handler=Slow(), shares_memory=shares_memory), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    peer.send(Message(Kind.TENSOR))
    assert busy.wait(LONG)
    room = 0
    while room < MANY and put(peer, room + 1):
        room += 1
    assert room < MANY  # which are neither taken nor kept

    def send() -> None:
        for step in range(room + 1, room + 100):
            peer.send(Message(Kind.TENSOR, step))

    sender = threading.Thread(target=send)
    sender.start()
    resume.set()
    steps = [server.handler.messages.get(timeout=LONG)[1].step for _ in range(room + 100)]
    assert steps == list(range(room + 100))
    sender.join(LONG)


def put(peer: Peer, step: int) -> bool:
    """Send a message if there is room for it now."""
    frame = wire.write(Message(Kind.TENSOR, step, {"padding": "x" * 1000}))
    return peer._attempt(peer._channel(frame), frame)
