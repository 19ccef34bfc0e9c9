"""Machines of ranks on CPUs."""

from __future__ import annotations

import pytest

from slime_events.core.planning.rank_homes import rank_homes


@pytest.mark.parametrize(
    ("ranks", "nodes", "expected"),
    [
        (1, "abc", "a"),
        (2, "abc", "ab"),
        (3, "abc", "abc"),
        (4, "ab", "aabb"),
        (5, "abc", "aabbc"),
        (2, "a", "aa"),
        (0, "ab", ""),
    ],
)
def test_ranks_are_spread_over_machines_with_neighbours_together(ranks: int, nodes: str, expected: str) -> None:
    assert "".join(rank_homes(ranks, list(nodes))) == expected
