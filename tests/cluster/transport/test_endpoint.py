"""Endpoints: messages arrive, in order and answered; who is lost is told once."""

from __future__ import annotations

import socket
import threading
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from tests.cluster.transport.conftest import LONG, MakeEndpoint, Recorder, ask
from thalweg import errors
from thalweg.cluster.transport.peer import Peer
from thalweg.cluster.wire import Kind, Message


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def test_a_request_is_answered(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    answer = ask(client.peer(server.address), np.arange(3), b"raw", name="x")
    assert answer.kind is Kind.DONE and answer.fields == {"name": "x"}
    assert answer.values[0].tolist() == [0, 1, 2] and answer.values[1] == b"raw"


def test_a_server_can_send_to_a_client_that_does_not_listen(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    client.peer(server.address).send(Message(Kind.RUN, 7))
    back, message = server.handler.messages.get(timeout=LONG)
    assert message.step == 7 and back.incarnation == client.incarnation
    back.send(Message(Kind.ABORT, 8))
    peer, message = client.handler.messages.get(timeout=LONG)
    assert peer is client.peer(server.address) and message.step == 8
    assert ask(back).kind is Kind.DONE


def test_a_peer_is_the_same_while_it_lives(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    assert client.peer(server.address) is peer and peer.is_alive
    assert peer.incarnation == server.incarnation


def test_messages_of_a_thread_arrive_in_their_order(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)

    def send(thread: int) -> None:
        for number in range(200):
            peer.send(Message(Kind.TENSOR, number, {"thread": thread}))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    seen: dict[int, list[int]] = {number: [] for number in range(4)}
    for _ in range(800):
        _, message = server.handler.messages.get(timeout=LONG)
        seen[message.fields["thread"]].append(message.step)
    assert all(steps == list(range(200)) for steps in seen.values())
    for thread in threads:
        thread.join()


def test_what_is_sent_before_anybody_listens_arrives_later(endpoint: MakeEndpoint):
    address, client = free_address(), endpoint(None)
    peer = client.peer(address, LONG)
    for step in range(3):
        peer.send(Message(Kind.RUN, step))
    server = endpoint(address)
    steps = [server.handler.messages.get(timeout=LONG)[1].step for _ in range(3)]
    assert steps == [0, 1, 2]


def test_a_thread_waits_once_much_is_held_back(endpoint: MakeEndpoint):
    address, client = free_address(), endpoint(None)
    peer = client.peer(address, LONG)
    for step in range(1000):
        peer.send(Message(Kind.RUN, step))
    last = threading.Thread(target=peer.send, args=(Message(Kind.RUN, 1000),))
    last.start()
    server = endpoint(address)
    steps = [server.handler.messages.get(timeout=LONG)[1].step for _ in range(1001)]
    assert steps == list(range(1001))
    last.join(LONG)


def test_a_large_message_of_the_io_thread_does_not_go_past_small_ones(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    large = np.zeros(3 << 20, np.uint8)  # for which the thread has a send thread
    arrived: SimpleQueue[int] = SimpleQueue()

    def send() -> None:
        peer.send(Message(Kind.TENSOR, 1))
        peer.send(Message(Kind.TENSOR, 2, {}, [large]))
        # Before the thread is done: what it holds leaves at the latest then.
        arrived.put(server.handler.messages.get(timeout=LONG)[1].step)

    client.loop.call(send)
    assert arrived.get(timeout=2 * LONG) == 1
    assert server.handler.messages.get(timeout=LONG)[1].step == 2


def test_nobody_at_an_address_is_unavailable_after_the_patience(endpoint: MakeEndpoint):
    client = endpoint(None)
    peer = client.peer(free_address(), patience=0.05)
    with pytest.raises(errors.UnavailableError, match=r"nobody answered for 0\.05 s"):
        ask(peer)
    assert client.handler.losses.get(timeout=LONG)[0] is peer
    with pytest.raises(errors.UnavailableError):
        peer.send(Message(Kind.RUN))
    assert not peer.is_alive and client.peer(peer.address, 0.05) is not peer


def test_who_closes_is_lost_at_the_other_end_once(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    server.close()
    lost, error = client.handler.losses.get(timeout=LONG)
    assert lost is peer and isinstance(error, errors.UnavailableError)
    with pytest.raises(errors.UnavailableError):
        ask(peer)
    client.close()
    assert client.handler.losses.empty()


def test_requests_that_wait_are_told_when_the_peer_goes(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    outcomes = SimpleQueue[Exception | None]()
    for _ in range(3):
        message = Message(Kind.RUN)  # which the server keeps to itself
        client.peer(server.address).request(message, lambda _, error: outcomes.put(error))
    for _ in range(3):
        server.handler.messages.get(timeout=LONG)
    server.close()
    for _ in range(3):
        assert isinstance(outcomes.get(timeout=LONG), errors.UnavailableError)


def test_who_starts_again_at_an_address_is_another_incarnation(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    before = client.peer(server.address)
    ask(before)
    server.close()
    client.handler.losses.get(timeout=LONG)
    again = endpoint(server.address)
    after = client.peer(again.address)
    ask(after)
    assert after.incarnation == again.incarnation != before.incarnation
    with pytest.raises(errors.UnavailableError):
        before.send(Message(Kind.RUN))


def test_a_handler_that_raises_stops_nothing(endpoint: MakeEndpoint):
    class Clumsy(Recorder):
        def received(self, peer: Peer, message: Message) -> None:
            if message.kind is Kind.RUN:
                raise RuntimeError("a bug")
            super().received(peer, message)

    server, client = endpoint(handler=Clumsy()), endpoint(None)
    peer = client.peer(server.address)
    for _ in range(3):
        peer.send(Message(Kind.RUN))
    assert ask(peer).kind is Kind.DONE


def test_an_endpoint_can_be_closed_by_its_handler(endpoint: MakeEndpoint):
    class Leaving(Recorder):
        def received(self, peer: Peer, message: Message) -> None:
            server.close()

    server, client = endpoint(handler=Leaving()), endpoint(None)
    with pytest.raises(errors.UnavailableError):
        ask(client.peer(server.address))


def test_a_closed_endpoint_has_no_peers(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    client.close()
    client.close()
    with pytest.raises(errors.UnavailableError, match="closed"):
        client.peer(server.address)
    with pytest.raises(errors.UnavailableError, match="closed"):
        peer.send(Message(Kind.RUN))


def test_what_cannot_be_sent_is_told_to_who_sends_it(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    with pytest.raises(TypeError, match="cannot be sent"):
        ask(client.peer(server.address), object())
    values: list[Any] = [object()]
    with pytest.raises(TypeError, match="cannot be sent"):
        client.peer(server.address).send(Message(Kind.RUN, 0, {}, values))


def test_an_address_that_is_taken_is_an_error_that_leaves_nothing(endpoint: MakeEndpoint):
    server = endpoint("localhost:0")
    assert server.address.startswith("localhost:")
    with pytest.raises(errors.UnknownError, match=f"Cannot listen at {server.address}"):
        endpoint(server.address)
    assert ask(endpoint(None).peer(server.address)).kind is Kind.DONE


@pytest.mark.parametrize("address", ["", "host", "127.0.0.1:port"])
def test_what_is_no_address_is_said_so(endpoint: MakeEndpoint, address: str):
    with pytest.raises(errors.InvalidArgumentError, match="not an address like host:port"):
        endpoint(None).peer(address)
