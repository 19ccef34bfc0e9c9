"""Rules in bulk, in a process of their own."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from schemas.arrays import pack_tokens
from schemas.prompts import Source
from schemas.rewards import RewardFailureKind
from slime_events.analysis.rescore import bulk_grading
from slime_events.analysis.rescore.bulk_grading import Task, grade_tasks
from slime_events.analysis.rescore.grade import Regrader
from slime_events.analysis.rescore.rule_process import RuleProcess
from slime_events.core.config.reward import RewardSettings
from slime_events.model.records import Entry, Group, Sample
from slime_events.plugins.rewards import registry
from slime_events.plugins.rewards.outcome import RewardFailure
from tests.made import completed, submitted


def task(response: str, grader: str = "exact", **metadata: Any) -> Task:
    return Task(grader, None, (None, 0, None), "2+2=", response, "4", metadata)


@pytest.fixture
def process() -> Iterator[RuleProcess]:
    rule_process = RuleProcess(RewardSettings(rm_timeout=5.0))
    yield rule_process
    rule_process.end()


def test_rewards_and_reasons(process: RuleProcess) -> None:
    outcomes = process.grade([task("4"), task("5"), task(r"\boxed{4}", "math"), task("4", "unheard_of")])
    assert outcomes is not None
    assert outcomes[:3] == [1.0, 0.0, 1.0]
    assert isinstance(outcomes[3], RewardFailure)
    assert outcomes[3].kind is RewardFailureKind.INVALID
    assert process.grade([task("4")]) == [1.0]


def test_a_lost_process_says_so(process: RuleProcess) -> None:
    os.kill(process._child.pid, signal.SIGKILL)
    assert process.grade([task("4")]) is None


def test_a_rule_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(response: str, sample: Any) -> float:
        while response != "4":
            pass
        return 1.0

    monkeypatch.setattr(registry, "GRADERS", MappingProxyType({"endless": endless}))
    before = signal.signal(signal.SIGALRM, bulk_grading._raise_time_limit)
    try:
        late, good = grade_tasks([task("5", "endless"), task("4", "endless")], 0.05)
    finally:
        signal.signal(signal.SIGALRM, before)
        registry.built_in.cache_clear()
    assert isinstance(late, RewardFailure)
    assert late.kind is RewardFailureKind.TIMEOUT
    assert good == 1.0


def test_a_rule_that_runs_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(response: str, sample: Any) -> float:
        if response == "4":
            return 1.0
        raise MemoryError

    monkeypatch.setattr(registry, "GRADERS", MappingProxyType({"hungry": hungry}))
    try:
        hungry_one, good = grade_tasks([task("5", "hungry"), task("4", "hungry")], 5.0)
    finally:
        registry.built_in.cache_clear()
    assert isinstance(hungry_one, RewardFailure)
    assert hungry_one.kind is RewardFailureKind.OUT_OF_MEMORY
    assert good == 1.0


def test_the_process_has_limits_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "planted")
    monkeypatch.setenv("HF_TOKEN", "passed")
    process = RuleProcess(RewardSettings(rm_memory_gb=8.0, rm_env=["HF_TOKEN"]))
    try:
        assert process.grade([task("4")]) == [1.0]
        child = process._child.pid
        assert resource.prlimit(child, resource.RLIMIT_DATA) == (8_000_000_000, 8_000_000_000)
        seen = Path(f"/proc/{child}/environ").read_text()
        assert "planted" not in seen
        assert "HF_TOKEN=passed" in seen
    finally:
        process.end()


def group(name: str, *responses: str, **metadata: Any) -> Group:
    source, tokens = Source(path="f"), pack_tokens([1])
    prompt = submitted(name, text="2+2=", label="4", metadata=metadata, tokens=tokens, source=source)
    built = Group(name, Entry(prompt, 1, 0, "p", "run"))
    for index, response in enumerate(responses):
        sample = f"{name}-s{index}"
        done = completed(sample, tokens, length=1, text=response)
        built.samples[sample] = Sample(sample, name, index, completed=Entry(done, 2, 0, "p", "run"))
    return built


async def test_what_a_lost_process_had_is_graded_by_the_pool() -> None:
    async with Regrader(RewardSettings(rm_type="exact"), {}, processes=1) as regrader:
        assert await regrader.grade([group("a", "4", "5"), group("b", "x")]) == [[1.0, 0.0], [0.0]]
        regrader._free.put_nowait(process := regrader._free.get_nowait())
        os.kill(process._child.pid, signal.SIGKILL)
        assert await regrader.grade([group("c", "4"), group("d", "5")]) == [[1.0], [0.0]]
        assert await regrader.grade([group("e", "4")]) == [[1.0]], "and the next by a new process"
    assert {(name, count) for (name, _), count in regrader.graders.items()} == {("exact", 6)}


async def test_a_sample_may_name_its_own_rule() -> None:
    async with Regrader(RewardSettings(rm_type="exact"), {}, processes=1) as regrader:
        rewards = await asyncio.wait_for(
            regrader.grade([group("a", r"\boxed{4}", rm_type="math"), group("b", "4")]), 30
        )
    assert rewards == [[1.0], [1.0]]
