"""The edges of CUDA graphs: launches form a limited number of lanes."""

from __future__ import annotations

from thalweg.device.cuda.dependencies import limit_lanes


def test_independent_launches_are_distributed_over_lanes() -> None:
    actual = limit_lanes([()] * 10, most=3)
    assert actual == [(), (), (), (0,), (1,), (2,), (3,), (4,), (5,), (6,)]


def test_a_launch_continues_the_lane_of_a_dependency() -> None:
    assert limit_lanes([(), (), (1,), (0,), (2, 3)], most=2) == [(), (), (1,), (0,), (2, 3)]


def test_other_launches_continue_the_oldest_lane() -> None:
    assert limit_lanes([(), (), (0,), (0,)], most=2) == [(), (), (0,), (0, 1)]
