"""Who reads messages: the I/O thread, or one that waits for what they bring."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.transport.conftest import LONG
from thalweg.cluster.transport.loop import Loop, Waiter


class Pipe:
    """Calls back with each byte that is sent."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.ends = os.pipe()
        self.threads = list[int]()  # that called back
        self.act: Callable[[bytes], None] = lambda _: None
        loop.watch(self.ends[0], self._read)

    def _read(self) -> None:
        byte = os.read(self.ends[0], 1)
        self.threads.append(threading.get_ident())
        self.act(byte)

    def send(self, byte: bytes = b"x") -> None:
        os.write(self.ends[1], byte)


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop("thalweg-cluster-test")
    loop.start()
    yield loop
    loop.stop()


@pytest.fixture
def pipe(loop: Loop) -> Iterator[Pipe]:
    pipe = Pipe(loop)
    yield pipe
    loop.stop()
    for end in pipe.ends:
        os.close(end)


@pytest.fixture
def leader(loop: Loop, pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> Waiter:
    """Of this thread, which is the I/O thread when it waits next."""
    monkeypatch.setattr("thalweg.cluster.transport.loop._STAND_BY", LONG)
    return led(loop, pipe)


def led(loop: Loop, pipe: Pipe) -> Waiter:
    """A waiter of this thread, which was the I/O thread just now."""
    waiter = Waiter(loop)
    pipe.act = waiter.put
    while threading.get_ident() not in pipe.threads:
        pipe.send()
        assert waiter.get() == b"x"
    return waiter


def test_the_io_thread_goes_on_when_nobody_waits(pipe: Pipe, loop: Loop) -> None:
    led(loop, pipe)
    called = threading.Event()
    pipe.act = lambda _: called.set()
    pipe.send()
    assert called.wait(LONG)
    assert pipe.threads[-1] != threading.get_ident()


@pytest.mark.usefixtures("leader")
def test_calls_do_not_wait_for_the_io_thread_to_find_out(loop: Loop) -> None:
    called = threading.Event()
    loop.call(called.set)
    assert called.wait(LONG)


@pytest.mark.usefixtures("leader")
def test_a_loop_ends_though_its_thread_stands_by(loop: Loop) -> None:
    loop.stop()
    names = [thread.name for thread in threading.enumerate()]
    assert "thalweg-cluster-test" not in names


def test_who_waits_hears_of_what_other_threads_put(leader: Waiter) -> None:
    other = threading.Timer(0.0, leader.put, ["from another thread"])
    other.start()
    assert leader.get() == "from another thread"
    other.join()


def test_who_waits_hears_of_the_end_of_the_loop(leader: Waiter, loop: Loop) -> None:
    def end() -> None:
        loop.stop()
        leader.put("over")

    other = threading.Thread(target=end)
    other.start()
    assert leader.get() == "over"
    other.join()


def test_several_that_wait_get_what_is_theirs(pipe: Pipe, loop: Loop) -> None:
    count, rounds = 4, 50
    waiters, actual = dict[int, Waiter](), [list[Any]() for _ in range(count)]
    begun = threading.Barrier(count)
    pipe.act = lambda byte: waiters[byte[0]].put(byte[0])

    def wait(number: int) -> None:
        waiters[number] = Waiter(loop)
        begun.wait(LONG)
        for _ in range(rounds):
            pipe.send(bytes([number]))
            actual[number].append(waiters[number].get())

    threads = [threading.Thread(target=wait, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert actual == [[number] * rounds for number in range(count)]


def test_an_interrupt_waits_for_the_end_of_a_callback(leader: Waiter, pipe: Pipe) -> None:
    def interrupted(byte: bytes) -> None:
        signal.raise_signal(signal.SIGINT)
        leader.put(byte)

    pipe.act = interrupted
    pipe.send(b"y")
    with pytest.raises(KeyboardInterrupt):
        leader.get()
    assert leader.get_elsewhere() == b"y"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGTERM, signal.SIGPROF, signal.SIGCHLD])
def test_the_handler_of_a_signal_raises_where_a_thread_waits(
    number: int, leader: Waiter, pipe: Pipe
) -> None:
    def late(*_: object) -> None:
        raise TimeoutError

    def alarmed(byte: bytes) -> None:
        signal.raise_signal(number)
        leader.put(byte)

    before = signal.signal(number, late)
    try:
        pipe.act = alarmed
        pipe.send(b"y")
        with pytest.raises(TimeoutError):
            leader.get()
    finally:
        signal.signal(number, before)
    assert leader.get_elsewhere() == b"y"


def test_an_interrupt_ends_a_wait(leader: Waiter) -> None:
    other = threading.Timer(0.01, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
    other.start()
    with pytest.raises(KeyboardInterrupt):
        leader.get()
    other.join()


def test_an_interrupt_that_raises_nothing_does_not_end_a_wait(leader: Waiter, pipe: Pipe) -> None:
    heard = list[int]()

    def interrupted(byte: bytes) -> None:
        signal.raise_signal(signal.SIGINT)
        leader.put(byte)

    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        pipe.act = interrupted
        pipe.send(b"y")
        assert leader.get() == b"y"
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]
