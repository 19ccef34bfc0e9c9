"""Test the key by which an answer is read, and that a user's function sees the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards import messages
from slime_events.plugins.rewards.outcome import Graded, Outcome
from slime_events.plugins.rewards.worker import Worker
from slime_events.plugins.sample import Sample
from tests.rewards.jobs import job_of

OWN = """
def whole(args, sample):
    return {"acc": 0.25, "score": 0.75, "seen": args.reward_key}

async def waits(args, sample):
    return whole(args, sample)

def group(args, samples):
    return [whole(args, sample) for sample in samples]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def outcome(folder: Path, function: str, *, evaluation: bool, **settings: Any) -> Outcome:
    """Return the outcome of one job."""
    reward_settings = RewardSettings(custom_rm_path=f"own.py:{function}", group_rm=function == "group", **settings)
    worker = Worker(messages.Setup(reward_settings, {}, str(folder)), lambda job: None)
    done: list[messages.Done] = []
    worker.grade(
        [job_of(reward_settings, Sample(index=0), group=function == "group", evaluation=evaluation)], done.append
    )
    ((outcome_,),) = [job.outcomes for job in done]
    return outcome_


@pytest.mark.parametrize("function", ["whole", "waits", "group"])
@pytest.mark.parametrize(
    ("evaluation", "eval_key", "key", "value"),
    [(False, "score", "acc", 0.25), (True, "score", "score", 0.75), (True, None, "acc", 0.25)],
)
def test_a_function_sees_the_key_that_its_answer_is_read_by(
    folder: Path, function: str, evaluation: bool, eval_key: str | None, key: str, value: float
) -> None:
    result = outcome(folder, function, evaluation=evaluation, reward_key="acc", eval_reward_key=eval_key)
    assert isinstance(result, Graded)
    assert (result.value, result.detail["seen"]) == (value, key)
