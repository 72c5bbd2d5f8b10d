"""The rendezvous: sends and receives in either order, without copies, and aborts."""

import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from thalweg import errors
from thalweg.partition.rendezvous import Key, Rendezvous

KEY = Key("x:0", "/cpu:0", "/cpu:1")
ERROR = errors.AbortedError(None, None, "stopped")


class Answers(list[Any]):
    """The calls of a receiver's callback."""

    def __call__(self, value: Any, error: BaseException | None) -> None:
        self.append((value, error))


@pytest.mark.parametrize("sends_first", [True, False])
def test_the_object_that_was_sent_is_received(sends_first: bool):
    rendezvous, answers, value = Rendezvous(), Answers(), np.zeros(3)
    if sends_first:
        rendezvous.send(KEY, value)
        rendezvous.receive(KEY, answers)
    else:
        rendezvous.receive(KEY, answers)
        assert not answers
        rendezvous.send(KEY, value)
    ((received, error),) = answers
    assert received is value and error is None


def test_keys_keep_values_apart():
    rendezvous, one, two = Rendezvous(), Answers(), Answers()
    other = KEY._replace(recv_device="/cpu:2")
    rendezvous.send(other, 2)
    rendezvous.send(KEY, 1)
    rendezvous.receive(KEY, one)
    rendezvous.receive(other, two)
    assert [one, two] == [[(1, None)], [(2, None)]]


def test_an_abort_fails_pending_and_later_receives():
    rendezvous, waiting, late = Rendezvous(), Answers(), Answers()
    rendezvous.receive(KEY, waiting)
    rendezvous.abort(ERROR)
    rendezvous.abort(errors.CancelledError(None, None, "a later reason"))
    rendezvous.receive(KEY._replace(tensor_name="y:0"), late)
    assert waiting == late == [(None, ERROR)]
    with pytest.raises(errors.AbortedError, match="stopped"):
        rendezvous.send(KEY, 1)


def test_every_receive_is_answered_once_whatever_comes_first():
    for _ in range(200):
        rendezvous, answers, start = Rendezvous(), Answers(), threading.Barrier(3)

        def send(rendezvous: Rendezvous = rendezvous, start: threading.Barrier = start) -> None:
            start.wait()
            with suppress(errors.AbortedError):
                rendezvous.send(KEY, 1)

        def abort(rendezvous: Rendezvous = rendezvous, start: threading.Barrier = start) -> None:
            start.wait()
            rendezvous.abort(ERROR)

        threads = [threading.Thread(target=target) for target in (send, abort)]
        for thread in threads:
            thread.start()
        start.wait()
        rendezvous.receive(KEY, answers)
        for thread in threads:
            thread.join()
        assert answers in ([(1, None)], [(None, ERROR)])
