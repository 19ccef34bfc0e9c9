"""Test classes as reward functions: built once, called with lists, recorded with their own name and source."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from schemas.errors import PlugPointError
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import load_function
from slime_events.plugins.rewards import messages
from slime_events.plugins.rewards.choice import choose
from slime_events.plugins.rewards.outcome import Graded, Outcome
from slime_events.plugins.rewards.registry import load_own
from slime_events.plugins.rewards.reward_model import by_class, check_arguments
from slime_events.plugins.rewards.worker import Worker
from slime_events.plugins.sample import Sample

OWN = """
MADE = []


class CustomRewardModel:
    def __init__(self, model_path, scale=2.0):
        MADE.append(model_path)
        self.scale = scale

    def compute_reward(self, prompts, responses):
        return [self.scale * len(prompt + response) for prompt, response in zip(prompts, responses)]


class Other:
    pass


class Wrong:
    def compute_reward(self, prompts): ...
"""
ANSWERS = [Sample(prompt="1+1", response="2"), Sample(prompt="1+1", response="two")]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "custom_rm.py"
    file.write_text(OWN)
    return file


def graded(own: Path, *, group: bool) -> list[Outcome]:
    """Grade the two answers in one process."""
    outcomes: list[Outcome] = []
    settings = RewardSettings(custom_rm_path=str(own), group_rm=group)
    function = choose(settings, Sample())
    worker = Worker(messages.Setup(settings, {"model_path": "judge"}, str(own.parent), function), lambda number: None)
    assert worker.prepare().grader.endswith(":CustomRewardModel")
    jobs = [
        messages.Job(samples, function, group) for samples in ([ANSWERS] if group else [[answer] for answer in ANSWERS])
    ]
    worker.grade(jobs, lambda done: outcomes.extend(done.outcomes))
    return outcomes


@pytest.mark.parametrize("group", [False, True])
def test_it_is_made_once_and_grades_samples_and_groups(own: Path, group: bool) -> None:
    outcomes = graded(own, group=group)
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Graded)] == [8.0, 12.0]
    assert load_function(f"{own}:MADE.count")("judge") == 1


def test_its_digest_is_that_of_its_source(own: Path) -> None:
    digest = hashlib.sha256(own.read_bytes() + b"\0CustomRewardModel").hexdigest()
    assert load_own(str(own), None, None).digest == digest


def test_what_its_constructor_needs_has_to_be_on_args(own: Path) -> None:
    function = load_own(str(own), None, None).function
    check_arguments(function, ArgsView({"model_path": "judge"}))
    with pytest.raises(PlugPointError, match=r"CustomRewardModel .*custom_rm\.py:5.* model_path"):
        check_arguments(function, ArgsView({}))


def test_a_class_without_the_method_is_no_reward(own: Path) -> None:
    other = load_function(f"{own}:Other")
    assert by_class(other) is other
    with pytest.raises(PlugPointError, match="is called with"):
        by_class(load_function(f"{own}:Wrong"))
