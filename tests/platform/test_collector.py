"""Pauses of the garbage collector, and objects that join the oldest generation."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from thalweg.platform.collector import gc_paused


class Made:
    """An object that the collector tracks."""


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Unfreeze all objects, as in a program; the suite freezes shared ones."""
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    gc.enable()
    if is_frozen:
        gc.freeze()


def is_old(value: object) -> bool:
    return any(each is value for each in gc.get_objects(generation=2))


def test_pauses_and_resumes() -> None:
    with gc_paused():
        assert not gc.isenabled()
        made = Made()
    assert gc.isenabled()
    assert not is_old(made)


def test_a_disabled_collector_stays_disabled() -> None:
    gc.disable()
    with gc_paused(are_kept=True):
        made = Made()
    assert not gc.isenabled()
    assert not is_old(made)


def test_kept_objects_are_old_and_not_frozen() -> None:
    with gc_paused(are_kept=True):
        made = Made()
    assert is_old(made)
    assert gc.get_freeze_count() == 0


def test_frozen_objects_of_the_program_stay_frozen() -> None:
    before = Made()
    gc.freeze()
    with gc_paused(are_kept=True):
        made = Made()
    assert not any(each is before for each in gc.get_objects())  # of any generation: it is frozen
    assert not is_old(made)
