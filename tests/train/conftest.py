"""A clock that tests turn by hand, in place of the one that hooks and session managers go by."""

import pytest

from thalweg.train import clock


class HandClock:
    """Time passes when somebody waits, or when a test says so."""

    def __init__(self):
        self.time = 1000.0
        self.waits = []

    def now(self):
        return self.time

    def wait(self, seconds):
        self.waits.append(seconds)
        self.pass_time(seconds)

    def pass_time(self, seconds):
        self.time += seconds


@pytest.fixture
def hand_clock(monkeypatch):
    made = HandClock()
    monkeypatch.setattr(clock, "now", made.now)
    monkeypatch.setattr(clock, "wait", made.wait)
    return made
