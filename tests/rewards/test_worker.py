"""Test what a grader process does with its jobs, in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from schemas.rewards import RewardFailureKind as Kind
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards import messages
from slime_events.plugins.rewards.choice import Choice, reward_key
from slime_events.plugins.rewards.outcome import Graded, Outcome, RewardFailure
from slime_events.plugins.rewards.pool import PendingJob, slim
from slime_events.plugins.rewards.registry import resolve
from slime_events.plugins.rewards.worker import OverLimit, Worker, with_timeout
from slime_events.plugins.sample import Sample
from tests.rewards.jobs import job_of

OWN = """
def by_key(args, sample, **kwargs):
    return {"train": 1.0, "eval": 2.0, "seen": args.reward_key}

def other(args, sample, **kwargs):
    return 3.0

def group(args, samples, **kwargs):
    return [1.0] * (len(samples) + 1)

def chatty(args, sample, **kwargs):
    raise ValueError("x" * 5000)

def changes(args, sample, **kwargs):
    sample.metadata["known"] = "new"
    sample.metadata["more"] = 1
    return 0.0

async def late(args, sample, **kwargs):
    raise TimeoutError("its own")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(OWN)
    return tmp_path


def graded(
    folder: Path, function: str, *samples: Sample, evaluation: bool = False, **settings: Any
) -> tuple[list[Outcome], list[int]]:
    """The outcomes of one job, and what was written into the shared page meanwhile."""
    marks: list[int] = []
    outcomes: list[Outcome] = []
    reward_settings = RewardSettings(custom_rm_path=f"mine.py:{function}", **settings)
    worker = Worker(messages.Setup(reward_settings, {}, str(folder)), marks.append)
    job = job_of(reward_settings, *samples, group="group_rm" in settings, evaluation=evaluation)
    worker.grade([job], lambda done: outcomes.extend(done.outcomes))
    return outcomes, marks


@pytest.mark.parametrize(("evaluation", "value", "seen"), [(False, 1.0, "train"), (True, 2.0, "eval")])
def test_an_evaluation_has_a_reward_key_of_its_own(folder: Path, evaluation: bool, value: float, seen: str) -> None:
    """It is what counts, and what the function sees as its args' reward key."""
    keys = {"reward_key": "train", "eval_reward_key": "eval"}
    ((outcome,), _) = graded(folder, "by_key", Sample(), evaluation=evaluation, **keys)
    assert isinstance(outcome, Graded)
    assert (outcome.value, outcome.detail["seen"]) == (value, seen)
    assert reward_key(RewardSettings(**keys), evaluation=evaluation) == seen
    assert reward_key(RewardSettings(reward_key="train"), evaluation=True) == "train"


def test_a_sample_s_own_grader_goes_before_the_run_s(folder: Path) -> None:
    settings = RewardSettings(custom_rm_path="mine.py:by_key", rm_type="exact")
    theirs = Sample(custom_rm_path="mine.py:other", metadata={"rm_type": "math"})
    assert resolve(settings, theirs, user_dir=folder).name.endswith(":other")
    assert resolve(settings, Sample(), user_dir=folder).name.endswith(":by_key")
    assert resolve(RewardSettings(rm_type="exact"), Sample(metadata={"rm_type": "math"})).name == "math"


def test_a_group_grader_gives_as_many_values_as_there_are_samples(folder: Path) -> None:
    outcomes, _ = graded(folder, "group", Sample(), Sample(), group_rm=True)
    assert [isinstance(outcome, RewardFailure) and outcome.kind for outcome in outcomes] == [Kind.WRONG_TYPE] * 2


def test_a_message_is_cut(folder: Path) -> None:
    ((outcome,), marks) = graded(folder, "chatty", Sample())
    assert isinstance(outcome, RewardFailure)
    assert (outcome.kind, len(outcome.message)) == (Kind.RAISED, 2000)
    assert marks == [0, messages.IDLE]


def test_what_a_grader_changed_or_added_in_the_metadata_is_kept(folder: Path) -> None:
    sample = Sample(metadata={"known": "old", "left": 1})
    ((outcome,), _) = graded(folder, "changes", sample)
    assert isinstance(outcome, Graded)
    assert outcome.detail == {"metadata": {"known": "new", "more": 1}}


def test_a_grader_s_own_timeout_is_not_over_the_limit(folder: Path) -> None:
    ((outcome,), marks) = graded(folder, "late", Sample())
    assert isinstance(outcome, RewardFailure)
    assert outcome.kind is Kind.RAISED
    assert marks == [0, messages.IDLE]


async def test_over_the_limit_is_said_as_such() -> None:
    with pytest.raises(OverLimit):
        await with_timeout(asyncio.sleep(60), 0.0)


def test_only_own_graders_are_sent_the_arrays() -> None:
    sample = Sample(tokens=[1, 2], loss_mask=[1])
    assert slim(sample, Choice("exact")).tokens == []
    assert slim(sample, Choice("mine.py", is_own=True)) is sample


async def test_a_group_that_fails_has_an_outcome_for_each_sample() -> None:
    job = PendingJob(b"", 3)
    job.fail(Kind.WORKER_DIED, "gone", messages.Loaded(Choice(), "g", "d"))
    assert [isinstance(failure, RewardFailure) and failure.grader for failure in await job.future] == ["g"] * 3
