"""Test what a program's end means for its session."""

from __future__ import annotations

import pytest

from serve_apps.http.agent_command.outcome import NO_REWARD, Outcome, outcome_of


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("", Outcome(0)),
        ("done", Outcome(0)),
        ("[1]", Outcome(0)),
        ('{"score": 1}', Outcome(0)),
        ('{"reward": 1}', Outcome(0, 1)),
        ('{"reward": null}', Outcome(0)),
        ('{"reward": 0.5, "metadata": {"tests": 3}}', Outcome(0, 0.5, {}, {"tests": 3})),
        ('{"rewards": {"2": 1.0, "4": 0}}', Outcome(0, None, {"2": 1.0, "4": 0})),
    ],
)
def test_the_last_line(line: str, outcome: Outcome) -> None:
    assert outcome_of(0, line) == outcome


@pytest.mark.parametrize("reward", ['"1"', "true", "NaN", "Infinity", "[1]", "{}"])
def test_a_reward_that_is_none_is_not_trained_on(reward: str) -> None:
    outcome = outcome_of(0, f'{{"reward": {reward}}}')
    assert (outcome.exit_code, outcome.reward) == (NO_REWARD, None)
    assert outcome_of(0, f'{{"rewards": {{"1": {reward}}}}}').exit_code == NO_REWARD


def test_a_program_that_failed_says_so_whatever_its_output() -> None:
    assert outcome_of(3, '{"reward": 1}').exit_code == 3
    assert outcome_of(3, '{"reward": "1"}').exit_code == 3
