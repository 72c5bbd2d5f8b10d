"""Hash rings: even shares, few moves, and key ranges that are a partition of the keys."""

import collections
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.cluster.hash_ring import HashRing

KEYS = [f"key{i}" for i in range(3000)]

members = st.lists(st.integers(0, 50), min_size=1, max_size=6, unique=True)


def test_shares_are_about_even():
    ring = HashRing(["a", "b", "c", "d"], virtual_nodes=256)
    shares = collections.Counter(map(ring.owner, KEYS))
    assert set(shares) == {"a", "b", "c", "d"}
    assert all(0.75 < 4 * count / len(KEYS) < 1.25 for count in shares.values())


def test_a_new_member_takes_its_share_and_moves_nothing_else():
    few, more = HashRing(range(4)), HashRing(range(5))
    moved = [key for key in KEYS if few.owner(key) != more.owner(key)]
    assert {more.owner(key) for key in moved} == {4}
    assert 0.1 < len(moved) / len(KEYS) < 0.3


def test_the_order_of_members_does_not_matter():
    one, other = HashRing(["a", "b", "c"]), HashRing(["c", "a", "b"])
    assert all(one.owner(key) == other.owner(key) for key in KEYS)


@settings(deadline=None)
@given(members, st.integers(1, 9), st.integers(0, 500))
def test_ranges_hold_every_key_once_and_alternate(names, virtual_nodes, num_keys):
    ranges = HashRing(names, virtual_nodes).key_ranges(num_keys)
    held = [key for each in ranges for key in range(each.start, each.stop)]
    assert held == list(range(num_keys))
    assert all(one.owner != other.owner for one, other in itertools.pairwise(ranges))
    assert {each.owner for each in ranges} <= set(names)


@settings(deadline=None)
@given(members, st.integers(1, 500))
def test_ranges_move_to_the_new_member_alone(names, num_keys):
    def owners(ring):
        return [each.owner for each in ring.key_ranges(num_keys) for _ in range(*each[:2])]

    before, after = owners(HashRing(names, 8)), owners(HashRing([*names, 99], 8))
    assert all(new in (old, 99) for old, new in zip(before, after, strict=True))


def test_rings_without_members_or_points():
    for wrong in ([], ["a", "a"]):
        with pytest.raises(ValueError, match="each of them once"):
            HashRing(wrong)
    with pytest.raises(ValueError, match="virtual node"):
        HashRing(["a"], 0)
