"""Test results of a rollout function with tokens of no model: its sample alone fails, with the token in the message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from schemas.prompts import PromptSubmitted
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed
from serve_apps.rollouts.rollout_function.outcome import OutcomeContext, outcome_of
from serve_apps.rollouts.rollout_function.recorded_turns import MadeTurns
from slime_events.plugins.sample import Sample, Status
from tests.simulation.parts import Letters
from tests.simulation.simulation import make_plan


def making() -> OutcomeContext:
    function: Any = SimpleNamespace(name="own.function", digest="d")
    return OutcomeContext(function, make_plan(), MadeTurns(2), Letters(), "w", 0, order=0, offset=0, vocabulary=256)


def sample(tokens: Any) -> Sample:
    return Sample(tokens=tokens, response_length=1, status=Status.COMPLETED, reward=1.0, response="c")


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([97, 256], "token 256 is not in the model's vocabulary of 256"),
        ([99999, 98], "token 99999"),
        ([97, -1], "token -1 is below 0"),
        ([97, 2**31], "token 2147483648"),
        ([97, 2**80], "bits"),
        ([97, 98.0], "not float"),
        ([97, "b"], "not str"),
        ([97, True], "not bool"),
        ("ab", "not str"),
    ],
)
def test_a_sample_with_a_foreign_id_fails_alone(tokens: Any, reason: str) -> None:
    groups: Any = [[sample(tokens), sample([97, 98])]]
    events = [event for together in outcome_of(groups, {}, {}, making()).events for event in together]
    (failed,) = [event for event in events if isinstance(event, RolloutFailed)]
    assert failed.kind is FailureKind.INVALID
    assert reason in failed.message
    assert len([event for event in events if isinstance(event, RolloutCompleted)]) == 1
    assert len([event for event in events if isinstance(event, PromptSubmitted)]) == 1
