"""Messages within a host: past ZeroMQ where that can be, and in the same order as ever."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.cluster.transport.conftest import LONG, MakeEndpoint, Recorder, ask
from thalweg import errors
from thalweg.cluster import wire
from thalweg.cluster.transport import local, outbound
from thalweg.cluster.transport.loop import Loop
from thalweg.cluster.transport.outbox import BatchedSends
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


def packets(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of messages in each packet that leaves for a peer from now on."""
    result, channel = list[int](), peer._local
    assert channel is not None
    put, put_batch = channel.put, channel.put_batch
    monkeypatch.setattr(channel, "put", lambda frame: result.append(1) or put(frame))
    monkeypatch.setattr(
        channel, "put_batch", lambda frames: result.append(len(frames)) or put_batch(frames)
    )
    return result


def test_what_is_sent_together_leaves_in_one_packet_and_in_order(
    endpoint: MakeEndpoint, monkeypatch: pytest.MonkeyPatch
):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    sizes = packets(peer, monkeypatch)
    with BatchedSends(client.loop.outboxes):
        for step in range(3):
            peer.send(Message(Kind.RUN, step, wire.FixedFields()))
        assert not sizes
    peer.send(Message(Kind.RUN, 3, wire.FixedFields()))
    assert sizes == [3, 1]
    steps = [server.handler.messages.get(timeout=LONG)[1].step for _ in range(4)]
    assert steps == [0, 1, 2, 3]


def test_no_packet_has_more_messages_or_bytes_than_it_may(
    endpoint: MakeEndpoint, monkeypatch: pytest.MonkeyPatch
):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    sizes = packets(peer, monkeypatch)
    large = np.zeros(30_000, np.uint8)
    with BatchedSends(client.loop.outboxes):
        for step in range(wire.MAX_BUNDLE + 1):
            peer.send(Message(Kind.RUN, step, wire.FixedFields()))
        for step in range(6):
            peer.send(Message(Kind.RUN, step, wire.FixedFields(), [large]))
    assert sizes[0] == wire.MAX_BUNDLE and sum(sizes) == wire.MAX_BUNDLE + 7
    for _ in range(sum(sizes)):
        server.handler.messages.get(timeout=LONG)


def test_what_one_callback_answers_leaves_in_one_packet(endpoint: MakeEndpoint):
    class Twice(Recorder):
        def received(self, peer: Peer, message: Message) -> None:
            if message.kind is Kind.STATUS:
                peer.send(Message(Kind.RUN, 1, wire.FixedFields()))
                peer.reply(message, Message(Kind.DONE, 2, wire.FixedFields()))
                held = server.loop.outboxes[threading.get_ident()].pending[peer]
                self.pending = len(held)

    handler = Twice()
    server, client = endpoint(handler=handler), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    ask(peer)
    assert handler.pending == 2
    assert [client.handler.messages.get(timeout=LONG)[1].step for _ in range(2)] == [1, 1]


def test_a_bad_message_in_a_packet_does_not_lose_the_others(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    good = [wire.write(Message(Kind.RUN, step)) for step in (1, 2)]
    bad = wire.write(Message(Kind.RUN, 3))
    bad[6] = 99  # of no kind
    assert peer._local is not None and peer._local.put_batch([good[0], bad, good[1]])
    steps = [server.handler.messages.get(timeout=LONG)[1].step for _ in range(2)]
    assert steps == [1, 2] and sum(server.refused.values()) == 1


def test_who_is_lost_takes_nothing_that_was_held(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    answers = list[Exception | None]()
    with BatchedSends(client.loop.outboxes):
        peer.request(Message(Kind.STATUS), lambda _, error: answers.append(error))
        server.close()
        client.handler.losses.get(timeout=LONG)
    (error,) = answers
    assert isinstance(error, errors.UnavailableError)


def test_packets_for_which_there_is_no_room_leave_later_and_in_order(
    endpoint: MakeEndpoint, monkeypatch: pytest.MonkeyPatch
):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    channel, room, tried = peer._local, threading.Event(), threading.Event()
    assert channel is not None
    write = channel._write

    def write_if_there_is_room(*frames: bytearray) -> bool:
        tried.set()
        return room.is_set() and write(*frames)

    monkeypatch.setattr(channel, "_write", write_if_there_is_room)
    for step in range(5):
        message = Message(Kind.RUN, step, wire.FixedFields())
        client.loop.call(lambda message=message: peer.send(message))
    assert tried.wait(LONG)
    room.set()
    steps = [server.handler.messages.get(timeout=LONG)[1].step for _ in range(5)]
    assert steps == [0, 1, 2, 3, 4]
