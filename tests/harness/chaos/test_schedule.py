"""The schedule of kills."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.harness.chaos.schedule import LONGEST_DELAY_S, LONGEST_IN_TURN_S, USUAL, Kind, schedule


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_every_kind_comes_about_as_often_and_half_of_the_steps_are_left_for_kills_that_are_late(seed: int) -> None:
    strikes = schedule(30, seed, steps=20)
    counted = Counter(strike.kind for strike in strikes)
    assert set(counted) == set(USUAL)
    assert max(counted.values()) - min(counted.values()) <= 1
    assert [strike.number for strike in strikes] == list(range(30))
    versions = [strike.after_version for strike in strikes]
    assert versions == sorted(versions)
    assert versions[0] == -1
    assert versions[-1] < 10
    assert all(0 <= strike.delay_s <= LONGEST_DELAY_S for strike in strikes)
    assert strikes[0].waits


def test_the_seed_decides() -> None:
    assert schedule(12, 3, steps=12) == schedule(12, 3, steps=12)
    assert schedule(12, 3, steps=12) != schedule(12, 4, steps=12)


def test_only_what_is_asked_for_is_struck() -> None:
    assert {strike.kind for strike in schedule(5, 1, steps=4, kinds=[Kind.NATS])} == {Kind.NATS}


def test_a_turn_is_struck_soon_after_its_begin() -> None:
    strikes = schedule(9, 1, steps=6, kinds=[Kind.GATEWAY, Kind.ENGINE], in_turn=True)
    assert all(strike.in_turn and strike.delay_s <= LONGEST_IN_TURN_S for strike in strikes)
    assert not any(strike.in_turn for strike in schedule(9, 1, steps=6))
