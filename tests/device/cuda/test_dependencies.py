"""The edges of CUDA graphs: a few lanes, whatever the launches need."""

from __future__ import annotations

from thalweg.device.cuda.dependencies import in_lanes


def test_launches_that_need_nothing_are_on_a_few_lanes() -> None:
    actual = in_lanes([()] * 10, most=3)
    assert actual == [(), (), (), (0,), (1,), (2,), (3,), (4,), (5,), (6,)]


def test_a_launch_continues_the_lane_of_what_it_needs() -> None:
    assert in_lanes([(), (), (1,), (0,), (2, 3)], most=2) == [(), (), (1,), (0,), (2, 3)]


def test_one_that_continues_no_lane_comes_after_the_oldest() -> None:
    assert in_lanes([(), (), (0,), (0,)], most=2) == [(), (), (0,), (0, 1)]
