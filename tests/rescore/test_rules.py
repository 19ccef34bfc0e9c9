"""Rules in bulk, in a process of their own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest

from schemas.rewards import RewardFailureKind
from schemas.rollouts import StopReason
from slime_events.analysis.rescore import bulk_grading
from slime_events.analysis.rescore.bulk_grading import Missing, RuleProcess, Task, grade_tasks
from slime_events.analysis.rescore.collect import Group, Rollout
from slime_events.analysis.rescore.grade import Regrader
from slime_events.analysis.rescore.partial_events import CompletedFields, PromptFields
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards import dispatch


def task(response: str, grader: str = "exact", **metadata: Any) -> Task:
    return Task(grader, None, 0, "2+2=", response, "4", metadata)


@pytest.fixture
def process() -> Iterator[RuleProcess]:
    one = RuleProcess(5.0)
    yield one
    one.end()


def test_rewards_and_reasons(process: RuleProcess) -> None:
    given = process.grade([task("4"), task("5"), task(r"\boxed{4}", "math"), task("4", "unheard_of")])
    assert given is not None
    assert given[:3] == [1.0, 0.0, 1.0]
    assert isinstance(given[3], Missing)
    assert given[3].kind is RewardFailureKind.RAISED
    assert process.grade([task("4")]) == [1.0]


def test_a_lost_process_says_so(process: RuleProcess) -> None:
    os.kill(process._child.pid, signal.SIGKILL)
    assert process.grade([task("4")]) is None


def test_a_rule_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(response: str, sample: Any) -> float:
        while response != "4":
            pass
        return 1.0

    monkeypatch.setattr(dispatch, "GRADERS", MappingProxyType({"endless": endless}))
    before = signal.signal(signal.SIGALRM, bulk_grading._late)
    try:
        late, good = grade_tasks([task("5", "endless"), task("4", "endless")], 0.05)
    finally:
        signal.signal(signal.SIGALRM, before)
        dispatch.built_in.cache_clear()
    assert isinstance(late, Missing)
    assert late.kind is RewardFailureKind.TIMEOUT
    assert good == 1.0


def group(name: str, *responses: str, **metadata: Any) -> Group:
    made = Group(PromptFields(group=name, text="2+2=", label="4", metadata=metadata))
    for index, response in enumerate(responses):
        sample = f"{name}-s{index}"
        done = CompletedFields(sample=sample, group=name, length=1, stop=StopReason.STOP, text=response, spans=())
        made.rollouts[sample] = Rollout(done, (index, 0))
    return made


async def test_what_a_lost_process_had_is_graded_by_the_pool() -> None:
    async with Regrader(RewardSettings(rm_type="exact"), {}, processes=1) as regrader:
        assert await regrader.grade([group("a", "4", "5"), group("b", "x")]) == [[1.0, 0.0], [0.0]]
        os.kill(regrader._started[0]._child.pid, signal.SIGKILL)
        assert await regrader.grade([group("c", "4"), group("d", "5")]) == [[1.0], [0.0]]
        assert await regrader.grade([group("e", "4")]) == [[1.0]], "and the next by a new process"
    assert {(name, count) for (name, _), count in regrader.graders.items()} == {("exact", 6)}


async def test_a_sample_may_name_its_own_rule() -> None:
    async with Regrader(RewardSettings(rm_type="exact"), {}, processes=1) as regrader:
        given = await asyncio.wait_for(regrader.grade([group("a", r"\boxed{4}", rm_type="math"), group("b", "4")]), 30)
    assert given == [[1.0], [1.0]]
