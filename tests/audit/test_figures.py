"""A group's figures are computed anew for rewards of any size, also those that a log of an earlier version has."""

from __future__ import annotations

import math

import pytest

from schemas.rewards import MOST_REWARD, is_reward
from slime_events.analysis.audit.groups import figures


@pytest.mark.parametrize("rewards", [[1e308, -1e308], [1e308, 1e308, 1e308], [1.7e308, 0.0]])
def test_rewards_beyond_all_bounds_end_no_audit(rewards: list[float]) -> None:
    assert figures(rewards)["std"] in (0.0, math.inf)


def test_a_reward_that_may_be_trained_on_has_figures() -> None:
    largest = figures([MOST_REWARD, -MOST_REWARD])
    assert (largest["mean"], largest["std"]) == (0.0, pytest.approx(MOST_REWARD * math.sqrt(2)))


def test_what_is_a_reward() -> None:
    assert all(map(is_reward, (0, -1.5, True, MOST_REWARD, -MOST_REWARD)))
    assert not any(map(is_reward, (math.nan, math.inf, -math.inf, 1.01 * MOST_REWARD, 1e308, 10**400)))
