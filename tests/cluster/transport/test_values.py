"""Values: small ones, through shared memory, and in chunks, from and to any thread."""

from __future__ import annotations

import gc
import mmap
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.cluster.transport.conftest import LONG, MakeEndpoint, ask
from thalweg import errors
from thalweg.cluster.transport import handshake, packing, streams
from thalweg.cluster.transport.bulk import BulkSocket
from thalweg.cluster.transport.peer import Peer
from thalweg.cluster.wire import Kind, Message

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
BOTH = pytest.mark.parametrize("shares_memory", [True, False], ids=["shared memory", "chunks"])


def values() -> list[Any]:
    numbers = np.random.default_rng(0).normal(size=(300, 1000))
    return [
        numbers,
        numbers[::2, ::3],
        numbers.astype(ml_dtypes.bfloat16),
        np.array([b"x" * 1000, b"", b"y" * 100_000], object),
        b"z" * 100_000,
        np.arange(4),
        np.zeros((0, 7)),
    ]


@BOTH
def test_values_of_all_sizes_come_back_as_they_went(endpoint: MakeEndpoint, shares_memory: bool):
    server, client = endpoint(shares_memory=shares_memory), endpoint(None)
    for _ in range(3):
        sent = values()
        answer = ask(client.peer(server.address), *sent).values
        assert len(answer) == len(sent)
        for expected, value in zip(sent, answer, strict=True):
            assert type(value) is type(expected)
            assert np.array_equal(value, expected)


@BOTH
def test_received_arrays_are_read_only_and_outlive_their_messages(
    endpoint: MakeEndpoint, shares_memory: bool
):
    server, client = endpoint(shares_memory=shares_memory), endpoint(None)
    peer = client.peer(server.address)
    kept = list[tuple[Any, Any]]()
    for number in range(6):
        sent = np.full(100_000, number, np.float32)
        view = ask(peer, sent).values[0][10:].reshape(-1, 2)  # which must keep all of it
        assert not view.flags.writeable
        kept.append((view, number))
    client.close()
    server.close()
    gc.collect()
    assert all((view == number).all() for view, number in kept)


def test_a_slot_serves_again_once_no_view_of_its_array_is_left(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    addresses = set[int]()
    for number in range(20):
        peer.send(Message(Kind.TENSOR, number, {}, [np.full(100_000, number, np.float32)]))
        _, message = server.handler.messages.get(timeout=LONG)
        view = message.values[0][5:]
        addresses.add(view.ctypes.data)
        del message
        assert (view == number).all()
        del view
        ask(peer)  # the server's I/O thread has let go of the message, too
    assert len(addresses) <= 2


def test_memory_of_chunks_serves_again_once_no_view_of_its_array_is_left():
    recycler = streams.Recycler()
    memory = recycler.allocate(1 << 20)
    array = np.frombuffer(memory, np.uint8)
    recycler.keep_after(array, memory)
    view = array[3:].reshape(-1, 1)
    del array
    assert recycler.allocate(1 << 20) is not memory
    del view
    assert recycler.allocate(1 << 20) is memory


def test_values_go_in_chunks_where_the_peer_keeps_all_shared_memory(
    endpoint: MakeEndpoint, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("thalweg.cluster.transport.shared_memory.default_limit", lambda: 1 << 20)
    server, client = endpoint(), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    kept = list[Any]()
    for number in range(8):
        peer.send(Message(Kind.TENSOR, 0, {}, [np.full(1 << 18, number, np.uint8)]))
        kept.append(server.handler.messages.get(timeout=LONG)[1].values[0])
    assert [int(value[-1]) for value in kept] == list(range(8))


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="the kernel has no huge pages")
def test_memory_of_large_values_is_in_huge_pages():
    recycler = streams.Recycler()
    small, large = (recycler.allocate(size) for size in (1 << 20, 64 << 20))
    assert "hg" in flags_of(large)
    assert "hg" not in flags_of(small)


def flags_of(memory: mmap.mmap) -> list[str]:
    """The flags of a mapping, as the kernel lists them."""
    address, is_inside = np.frombuffer(memory, np.uint8).ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            first, end = (int(each, 16) for each in bounds.groups())
            is_inside = first <= address < end
        elif is_inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("it is not mapped")


def test_memory_is_had_where_the_kernel_has_no_huge_pages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 1 << 20)  # as unknown to it
    memory = streams.Recycler().allocate(64 << 20)
    memory[-1] = 1
    assert len(memory) == 64 << 20


class Stalled:
    """A receiver that takes chunks late: over a connection of their own it does not read, and over
    that of messages the sender is not told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, has_bulk: bool) -> None:
        self.began, self._goes_on = threading.Event(), threading.Event()
        fill, add_credit = BulkSocket.receive_into, streams.Window.add

        def stall() -> None:
            self.began.set()
            self._goes_on.wait(LONG)

        def fill_late(bulk: BulkSocket, memory: memoryview) -> None:
            if memory.nbytes == streams.CHUNK:
                stall()
            fill(bulk, memory)

        def give_late(window: streams.Window, nbytes: int) -> None:
            threading.Thread(target=lambda: (stall(), add_credit(window, nbytes))).start()

        monkeypatch.setattr(handshake.Identity, "takes_bulk", has_bulk)
        monkeypatch.setattr(BulkSocket, "receive_into", fill_late)
        monkeypatch.setattr(streams.Window, "add", give_late)

    def go_on(self) -> None:
        self._goes_on.set()


@pytest.fixture(params=[True, False], ids=["bulk", "control"])
def stalled(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Stalled]:
    made = Stalled(monkeypatch, request.param)
    yield made
    made.go_on()


def test_small_messages_overtake_large_values_whose_receiver_is_slow(
    stalled: Stalled, endpoint: MakeEndpoint
):
    """The sender waits, but nothing else does."""
    server, client = endpoint(shares_memory=False), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    large = np.zeros(4 * streams.WINDOW, np.uint8)
    sender = threading.Thread(target=peer.send, args=(Message(Kind.TENSOR, 1, {}, [large]),))
    sender.start()
    assert stalled.began.wait(LONG)
    assert ask(peer).kind is Kind.DONE
    assert sender.is_alive() and server.handler.messages.empty()
    stalled.go_on()
    assert server.handler.messages.get(timeout=LONG)[1].values[0].nbytes == large.nbytes
    sender.join(LONG)


def test_who_waits_to_send_is_told_when_the_peer_goes(stalled: Stalled, endpoint: MakeEndpoint):
    server, client = endpoint(shares_memory=False), endpoint(None)
    peer = client.peer(server.address)
    ask(peer)
    outcome = list[Exception]()

    def send() -> None:
        try:
            peer.send(Message(Kind.TENSOR, 1, {}, [np.zeros(4 * streams.WINDOW, np.uint8)]))
        except errors.UnavailableError as error:
            outcome.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    assert stalled.began.wait(LONG)
    server.close()
    stalled.go_on()
    sender.join(LONG)
    assert len(outcome) == 1


def test_many_threads_send_large_values_at_once(endpoint: MakeEndpoint):
    server, client = endpoint(shares_memory=False), endpoint(None)
    peer = client.peer(server.address)

    def send(number: int) -> None:
        peer.send(Message(Kind.TENSOR, number, {}, [np.full(3 << 20, number, np.uint8)]))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for _ in threads:
        _, message = server.handler.messages.get(timeout=LONG)
        assert (message.values[0] == message.step).all()
    for thread in threads:
        thread.join()


def test_the_io_thread_sends_large_values_without_waiting(endpoint: MakeEndpoint):
    class Generous:
        def received(self, peer: Peer, message: Message) -> None:
            for _ in range(3):
                peer.send(Message(Kind.TENSOR, 1, {}, [np.ones(2 * streams.WINDOW, np.uint8)]))
            peer.reply(message, Message(Kind.DONE))

        def lost(self, peer: Peer, error: errors.OpError) -> None:
            pass

    server, client = endpoint(handler=Generous(), shares_memory=False), endpoint(None)
    assert ask(client.peer(server.address)).kind is Kind.DONE
    for _ in range(3):
        assert client.handler.messages.get(timeout=LONG)[1].values[0].all()


def test_a_message_of_many_small_values_stays_small(endpoint: MakeEndpoint):
    server, client = endpoint(), endpoint(None)
    sent = [np.full(packing.MAX_INLINE, number % 256, np.uint8) for number in range(100)]
    answer = ask(client.peer(server.address), *sent)
    assert all(np.array_equal(*pair) for pair in zip(answer.values, sent, strict=True))
