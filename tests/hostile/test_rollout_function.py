"""Whatever a rollout function leaves on a sample costs that sample's group, and the step has the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from schemas.codec import encode_event
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutRequested
from serve_apps.rollouts.rollout_function.outcome import OutcomeContext, groups_of, outcome_of
from serve_apps.rollouts.rollout_function.recorded_turns import MadeTurns
from serve_apps.rollouts.rollout_function.runner import _numbers
from slime_events.plugins.sample import Sample, Status
from storage.log import MAX_EVENT_BYTES
from tests.hostile.deeds import RETURNS
from tests.simulation.parts import Letters
from tests.simulation.simulation import make_plan

FIELDS = (
    "response", "response_length", "tokens", "loss_mask", "rollout_log_probs", "status", "reward", "label", "metadata",
    "prompt", "index", "group_index", "session_id", "custom_rm_path", "attribute", "spec_info", "remove_sample",
)  # fmt: skip


def _making() -> OutcomeContext:
    function: Any = SimpleNamespace(name="mine:generate_rollout", digest="d")
    return OutcomeContext(function, make_plan(), MadeTurns(2), Letters(), "function-1", 0, 0, 0, "score")


def _sample() -> Sample:
    return Sample(
        prompt="ab", tokens=[97, 98, 99], response="c", response_length=1, rollout_log_probs=[-0.5], loss_mask=[1],
        reward=1.0, status=Status.COMPLETED, metadata={},
    )  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_anything_costs_its_own_group(field: str) -> None:
    for deed, value in RETURNS.items():
        broken, good = _sample(), _sample()
        setattr(broken, field, value())
        groups = groups_of([[broken], [good]])
        assert groups is not None
        outcome = outcome_of(groups, {}, {}, _making())
        events = [event for some in outcome.events for event in some]
        for event in events:
            assert len(encode_event(event)) < MAX_EVENT_BYTES, deed
        requested = [event.sample for event in events if isinstance(event, RolloutRequested)]
        ended = [event.sample for event in events if isinstance(event, RolloutCompleted | RolloutFailed)]
        assert requested == ended, f"{deed}: each has one end"
        assert len(outcome.groups) == 2
        assert isinstance(events[-2], RolloutCompleted), deed
        assert isinstance(events[-1], RewardAssigned), f"{deed}: the other group is as it was"
        for event in events:
            if isinstance(event, RolloutFailed | RewardFailed):
                assert 0 < len(event.message) <= 2_000


@pytest.mark.parametrize("deed", RETURNS)
def test_metrics_of_anything_are_numbers_or_none(deed: str) -> None:
    assert all(isinstance(value, float) for value in _numbers(RETURNS[deed]()).values())
    assert groups_of(RETURNS[deed]()) is None or RETURNS[deed]() == []
