"""The rendezvous: who comes first, what is copied, and how an abort answers everyone."""

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
    """What came of a receive."""

    def __call__(self, value: Any, error: BaseException | None) -> None:
        self.append((value, error))


@pytest.mark.parametrize("sends_first", [True, False])
def test_the_object_that_was_sent_is_received(sends_first: bool):
    meeting, answers, value = Rendezvous(), Answers(), np.zeros(3)
    if sends_first:
        meeting.send(KEY, value)
        meeting.receive(KEY, answers)
    else:
        meeting.receive(KEY, answers)
        assert not answers
        meeting.send(KEY, value)
    ((received, error),) = answers
    assert received is value and error is None


def test_keys_keep_values_apart():
    meeting, one, two = Rendezvous(), Answers(), Answers()
    other = KEY._replace(destination="/cpu:2")
    meeting.send(other, 2)
    meeting.send(KEY, 1)
    meeting.receive(KEY, one)
    meeting.receive(other, two)
    assert [one, two] == [[(1, None)], [(2, None)]]
    assert str(KEY) == "/cpu:0;/cpu:1;x:0"


def test_an_abort_answers_who_waits_and_who_comes_later():
    meeting, waiting, late = Rendezvous(), Answers(), Answers()
    meeting.receive(KEY, waiting)
    meeting.abort(ERROR)
    meeting.abort(errors.CancelledError(None, None, "a later reason"))
    meeting.receive(KEY._replace(tensor="y:0"), late)
    assert waiting == late == [(None, ERROR)]
    with pytest.raises(errors.AbortedError, match="stopped"):
        meeting.send(KEY, 1)


@pytest.mark.parametrize("sends_first", [True, False])
def test_what_is_expected_arrives_once_and_is_told_apart(sends_first: bool):
    meeting, arrived, other = Rendezvous(), list[Any](), KEY._replace(tensor="y:0")

    def send() -> None:
        meeting.send(KEY, 1)
        meeting.send(other, 2)

    if sends_first:
        send()
    there = meeting.expect({KEY: "x", other: "y"}, lambda *each: arrived.append(each))
    if not sends_first:
        send()
    meeting.send(KEY, 3)  # comes again: of no concern to who expected one
    assert there == ([("x", 1), ("y", 2)] if sends_first else [])
    assert arrived == ([] if sends_first else [("x", 1, None), ("y", 2, None)])


@pytest.mark.parametrize("aborts_first", [True, False])
def test_an_abort_answers_who_expects_something_once(aborts_first: bool):
    meeting, arrived = Rendezvous(), list[Any]()
    if aborts_first:
        meeting.abort(ERROR)
    meeting.expect({KEY: "x", KEY._replace(tensor="y:0"): "y"}, lambda *e: arrived.append(e))
    meeting.abort(ERROR)
    assert arrived == [(None, None, ERROR)]


def test_every_receive_is_answered_once_whatever_comes_first():
    for _ in range(200):
        meeting, answers, start = Rendezvous(), Answers(), threading.Barrier(3)

        def send(meeting: Rendezvous = meeting, start: threading.Barrier = start) -> None:
            start.wait()
            with suppress(errors.AbortedError):
                meeting.send(KEY, 1)

        def abort(meeting: Rendezvous = meeting, start: threading.Barrier = start) -> None:
            start.wait()
            meeting.abort(ERROR)

        threads = [threading.Thread(target=target) for target in (send, abort)]
        for thread in threads:
            thread.start()
        start.wait()
        meeting.receive(KEY, answers)
        for thread in threads:
            thread.join()
        assert answers in ([(1, None)], [(None, ERROR)])
