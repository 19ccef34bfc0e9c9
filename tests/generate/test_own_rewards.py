"""Rewards that a generate function gives itself, and the room that its samples have for what else it leaves on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from schemas.arrays import unpack
from schemas.errors import PlugPointError
from schemas.event import Purpose
from schemas.rewards import RewardAssigned, RewardFailed
from serve_apps.rollouts.generate.custom import ATTRIBUTES_BYTES, CustomGenerate, completions
from storage.memory_log import MemoryLog
from tests.generate.scene import setup
from tests.generate.test_completion import REQUEST, completed, context, left, sample_of
from tests.simulation.parts import Letters


def own(**args: Any) -> CustomGenerate:
    return CustomGenerate(setup("two_turns", **args), Letters(), MemoryLog("r"), unpack, 1)


@pytest.fixture
def graded() -> Iterator[Any]:
    """Return the rewards of some samples, by the arguments of the run."""
    opened: list[CustomGenerate] = []

    def rewards(samples: Any, purpose: Purpose = Purpose.TRAIN, **args: Any) -> list[Any]:
        opened.append(grader := own(**args))
        function = grader._function(grader._path)
        request = msgspec.structs.replace(REQUEST, purpose=purpose)
        return grader._rewards(function, samples, completions(samples, context()), request)

    yield rewards
    for grader in opened:
        grader.close()


def test_each_sample_has_its_own_in_the_order_of_the_events(graded: Any) -> None:
    samples = [sample_of(reward=1.0), sample_of(reward=2.0), sample_of(reward=3.0)]
    assert [(reward.sample, reward.value) for reward in graded(samples)] == [
        ("g-s0-1", 2.0),
        ("g-s0-2", 3.0),
        ("g-s0", 1.0),
    ]
    assert [reward.value for reward in graded(sample_of(reward=4.0))] == [4.0]
    some = [sample_of(), sample_of(reward=2.0)]
    assert [(reward.sample, reward.value) for reward in graded(some)] == [("g-s0-1", 2.0)]
    assert graded(sample_of()) == []


def test_they_are_signed_by_the_function(graded: Any) -> None:
    (event,) = graded(sample_of(reward=1.0))
    assert event.grader.endswith(":two_turns")
    assert len(event.grader_digest) == 64
    assert event.group == "g"


@pytest.mark.parametrize(
    ("purpose", "args", "value"),
    [
        (Purpose.TRAIN, {"reward_key": "a", "eval_reward_key": "b"}, 1.0),
        (Purpose.EVAL, {"reward_key": "a", "eval_reward_key": "b"}, 2.0),
        (Purpose.EVAL, {"reward_key": "a", "eval_reward_key": None}, 1.0),
    ],
)
def test_a_dict_s_key_is_that_of_the_purpose(graded: Any, purpose: Purpose, args: dict[str, Any], value: float) -> None:
    (event,) = graded(sample_of(reward={"a": 1.0, "b": 2.0}), purpose, **args)
    assert isinstance(event, RewardAssigned)
    assert event.value == value


def test_a_grader_of_groups_goes_before_them_and_what_is_none_fails(graded: Any) -> None:
    assert graded(sample_of(reward=1.0), group_rm=True) == []
    (failed,) = graded(sample_of(reward="x"))
    assert isinstance(failed, RewardFailed)


def test_what_is_left_on_a_sample_has_a_megabyte_of_room() -> None:
    header = 5  # of a text of that length
    whole = "x" * (ATTRIBUTES_BYTES - header)
    assert completed(left(state=whole)).attributes == {"state": whole}
    with pytest.raises(PlugPointError, match=r"sample\.state"):
        completed(left(state=whole + "x", first=1))
    with pytest.raises(PlugPointError, match=r"sample\.state"):
        completed(left(first=1, state=whole))
