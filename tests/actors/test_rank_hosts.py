"""Ranks of a trainer on other machines than planned."""

from __future__ import annotations

from typing import Any

import pytest

from actors.trainer.rank_hosts import moved_ranks
from schemas.errors import EngineError, RankLost
from serve_apps.deployment import moved_here
from slime_events.core.planning.homes import MOVED, Home

FIRST, SECOND, THIRD = (Home(name, f"10.0.0.{number}") for number, name in enumerate("abc", 1))


def rows(*alive: str) -> list[dict[str, Any]]:
    return [{"NodeID": name, "Alive": name in alive} for name in "abc"]


def test_ranks_at_home_are_not_named() -> None:
    assert moved_ranks([FIRST, SECOND], [FIRST, SECOND], rows("a", "b", "c")) == ""
    assert moved_here(THIRD, THIRD, rows("a")) == {}


def test_a_rank_or_an_engine_whose_machine_is_lost_is_named_with_both_addresses() -> None:
    moved = moved_ranks([FIRST, SECOND], [FIRST, THIRD], rows("a", "c"))
    assert "rank 1" in moved
    assert SECOND.address in moved
    assert THIRD.address in moved
    assert SECOND.address in moved_here(SECOND, THIRD, rows("a", "c"))[MOVED]


def test_a_rank_or_an_engine_on_another_machine_than_planned_never_passes() -> None:
    with pytest.raises(RankLost, match=SECOND.address):
        moved_ranks([FIRST, SECOND], [FIRST, FIRST], rows("a", "b", "c"))
    with pytest.raises(EngineError, match=THIRD.address):
        moved_here(THIRD, FIRST, rows("a", "b", "c"))
