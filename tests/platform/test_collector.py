"""The collector pauses, goes on, and leaves alone what an import made."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from thalweg.platform.collector import gc_paused


class Made:
    """An object that the collector looks at."""


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Nothing is frozen, as in a program; the suite freezes what its tests share."""
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    gc.enable()
    if is_frozen:
        gc.freeze()


def is_old(value: object) -> bool:
    return any(each is value for each in gc.get_objects(generation=2))


def test_it_pauses_and_goes_on() -> None:
    with gc_paused():
        assert not gc.isenabled()
        made = Made()
    assert gc.isenabled()
    assert not is_old(made)


def test_one_that_is_off_stays_off() -> None:
    gc.disable()
    with gc_paused(are_kept=True):
        made = Made()
    assert not gc.isenabled()
    assert not is_old(made)


def test_what_is_kept_is_old_and_not_frozen() -> None:
    with gc_paused(are_kept=True):
        made = Made()
    assert is_old(made)
    assert gc.get_freeze_count() == 0


def test_what_a_program_froze_stays_frozen() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with gc_paused(are_kept=True):
        made = Made()
    assert gc.get_freeze_count() == count
    assert not is_old(made)
