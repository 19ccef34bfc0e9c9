"""A run whose every answer earns nothing says so, once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from slime_events.app.launch.zero_rewards import STEPS, ZeroRewardWatch
from slime_events.core.config.settings import TrainSettings
from tests import made

NOTHING, SOMETHING = (0.0, 0.0), (0.0, -1.0)


def said_at(steps: Sequence[tuple[float, ...]], settings: TrainSettings | None = None) -> list[int]:
    """The steps after which there is news."""
    watch = ZeroRewardWatch(settings or TrainSettings(), "r")
    batches = (made.sealed(step, raw_rewards=raw, digest="") for step, raw in enumerate(steps))
    return [batch.step for batch in batches if watch.apply(batch)]


def test_it_is_said_once() -> None:
    assert said_at([NOTHING] * (4 * STEPS)) == [STEPS - 1]
    assert said_at([SOMETHING, *[NOTHING] * STEPS, SOMETHING, *[NOTHING] * STEPS]) == [STEPS]


def test_a_reward_between_them_counts() -> None:
    assert said_at(([NOTHING] * (STEPS - 1) + [SOMETHING]) * 4) == []
    assert said_at([()] * (2 * STEPS)) == [], "no rewards at all are no zeros"


@pytest.mark.parametrize("group", ["algorithm", "data"])
def test_where_others_teach_zeros_are_no_news(group: str) -> None:
    settings = TrainSettings()
    changed = {"algorithm": {"use_opd": True}, "data": {"supervised": True}}[group]
    part = msgspec.structs.replace(getattr(settings, group), **changed)
    assert said_at([NOTHING] * STEPS, msgspec.structs.replace(settings, **{group: part})) == []
