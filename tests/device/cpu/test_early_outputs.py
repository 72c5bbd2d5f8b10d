"""Early outputs are delivered once, in order, and not after a program has stopped."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.device.cpu.test_events import is_set
from thalweg.device.cpu.early_outputs import run_delivering
from thalweg.device.cpu.pool import Event, Pool


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(1)
    yield made
    made.close()


def signalled(early: dict[int, Event]) -> int:
    """A program that computes all outputs."""
    for event in early.values():
        event.signal()
    return 0


def test_outputs_are_delivered_in_the_order_of_their_signals(pool: Pool) -> None:
    early = {number: Event(pool) for number in (2, 0, 1)}
    results = [np.array(number) for number in range(3)]
    actual: list[tuple[int, int]] = []

    def deliver(number: int, value: int) -> None:
        actual.append((number, value))

    assert run_delivering(lambda: signalled(early), early, results, deliver) == 0
    assert actual == [(2, 2), (0, 0), (1, 1)]
    assert not any(map(is_set, early.values()))


def test_a_program_that_stops_delivers_nothing_more(pool: Pool) -> None:
    early = {number: Event(pool) for number in range(3)}
    actual: list[int] = []
    for _ in range(20):
        made, first = Event(pool), Event(pool)
        values = [np.zeros(3)] * 4

        def deliver(number: int, value: object, first: Event = first) -> None:
            actual.append(number)
            first.signal()

        def stop(made: Event = made, first: Event = first) -> int:
            made.signal()
            first.wait()
            return 7

        assert run_delivering(stop, {3: made} | early, values, deliver) == 7
    assert actual == [3] * 20
    assert not any(map(is_set, early.values()))


def test_an_error_of_a_delivery_is_the_caller_s(pool: Pool) -> None:
    early = {0: Event(pool), 1: Event(pool)}

    def refuse(number: int, value: object) -> None:
        raise ValueError("refused")

    for _ in range(3):
        with pytest.raises(ValueError, match="refused"):
            run_delivering(lambda: signalled(early), early, [np.zeros(1)] * 2, refuse)


def test_an_error_of_the_program_ends_the_delivery(pool: Pool) -> None:
    early = {0: Event(pool)}

    def fail() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_delivering(fail, early, [np.zeros(1)], pytest.fail)
    assert not is_set(early[0])
