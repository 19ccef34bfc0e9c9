"""Dispatcher that break, and the real pool."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from schemas.errors import PlugPointError
from schemas.groups import GroupRejected, RejectionCause
from schemas.rewards import RewardAssigned, RewardFailed, RewardFailureKind
from schemas.runs import RunFailed
from slime_events.core.config.reward import RewardSettings
from slime_events.core.state.run import RunPhase
from slime_events.model.rejections import Rejections
from slime_events.plugins.filters.decide import run_filter
from slime_events.plugins.rewards.dispatcher import Dispatcher
from slime_events.plugins.rewards.outcome import RewardFailure
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import group_samples
from tests.clock import Clock
from tests.replay.replayed import policy_for, replayed
from tests.scripted_engine import Script
from tests.simulation.parts import InstantPool, by_text
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_run import check_run

LIMIT_S = 30.0
"""Of a grading. It has passed when a test puts the clock forward."""

BROKEN = """
import pathlib, time

def grade(args, sample):
    number = int(sample.prompt.rpartition(" ")[2])
    if number == 0:
        pathlib.Path(f"stuck-{sample.session_id}").touch()
        time.sleep(600)
    if number == 1:
        return None
    if number == 2:
        return float("nan")
    if number == 3:
        raise ValueError("no")
    if number == 4:
        bytearray(10**10)
    return len(set(sample.response)) / 10
"""


async def pass_limits(folder: Path, clock: Clock, samples: int) -> None:
    """Whenever the only process is stuck on another sample, and what it did before has been heard of."""
    for stuck in range(1, samples + 1):
        while len(list(folder.glob("stuck-*"))) < stuck:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        clock.forward(LIMIT_S + 1.0)


async def test_the_real_pool_with_a_grader_that_breaks(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_grader.py").write_text(BROKEN)
    settings = RewardSettings(custom_rm_path="broken_grader:grade", rm_timeout=LIMIT_S, rm_memory_gb=2.0)
    plan = make_plan(steps=2, samples=2, max_staleness=2, in_prompt_order=False)
    async with Dispatcher(settings) as pool, Simulation(tmp_path, plan, pool=pool, deadline_s=120.0) as sim:
        sim.start_engine(Script(chunk=8))
        phase, _ = await asyncio.gather(sim.finish(), pass_limits(tmp_path, clock, samples=2))
        assert phase is RunPhase.FINISHED
    check_run(sim)
    kinds = {(event.group, event.kind) for event in sim.events(RewardFailed)}
    assert kinds == {
        ("train-0-000000", RewardFailureKind.TIMEOUT),
        ("train-0-000001", RewardFailureKind.NONE),
        ("train-0-000002", RewardFailureKind.NOT_A_NUMBER),
        ("train-0-000003", RewardFailureKind.RAISED),
        ("train-0-000004", RewardFailureKind.OUT_OF_MEMORY),
    }
    rejected = {event.group: event.cause for event in sim.events(GroupRejected)}
    assert rejected == {group: RejectionCause.REWARD_FAILED for group, _ in kinds}


async def test_a_slow_sample_holds_its_own_group_only(tmp_path: Path) -> None:
    slow = RewardFailure(kind=RewardFailureKind.TIMEOUT, message="slow")
    pool = InstantPool(lambda sample: slow if sample.prompt == "prompt 0" else by_text(sample))
    async with Simulation(tmp_path, pool=pool) as sim:
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    assert [event.group for event in sim.events(GroupRejected)] == ["train-0-000000"]


async def test_each_sample_is_graded_once_with_what_it_needs(tmp_path: Path) -> None:
    seen: list[Sample] = []

    def keep(sample: Sample) -> float:
        seen.append(sample)
        return math.pi

    pool = InstantPool(keep)
    async with Simulation(tmp_path, make_plan(steps=1), pool=pool) as sim:
        sim.start_engine(Script(chunk=8))
        await sim.finish()
    assert len(set(pool.graded)) == len(pool.graded) == len(sim.events(RewardAssigned)) == 6
    assert all(
        s.label == "1" and s.prompt.startswith("prompt ") and s.response and s.response_length == 24 for s in seen
    )


async def test_whole_groups_are_graded_at_once(tmp_path: Path) -> None:
    pool = InstantPool()
    async with Simulation(tmp_path, pool=pool, whole_groups=True) as sim:
        sim.start_engine(Script(chunk=8), room=1)
        await sim.finish()
    check_run(sim)
    assert set(pool.group_sizes) == {3}


async def test_whole_groups_with_a_rollout_that_failed_for_good(tmp_path: Path) -> None:
    plan = make_plan(max_attempts=1)
    async with Simulation(tmp_path, plan, whole_groups=True) as sim:
        sim.start_engine(Script(refused={"train-0-000001-s2-0-1": "no"}))
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    assert [event.group for event in sim.events(GroupRejected)] == ["train-0-000001"]


async def test_a_pool_that_ends_is_not_hidden(tmp_path: Path) -> None:
    def gone(sample: Sample) -> float:
        raise PlugPointError("grader processes can no longer be started")

    async with Simulation(tmp_path, pool=InstantPool(gone)) as sim:
        sim.start_engine(Script(chunk=8))
        with pytest.raises(PlugPointError, match="no longer"):
            await sim.finish()


async def test_a_filter_that_raises_fails_the_run_with_its_words(tmp_path: Path) -> None:
    def broken(args: object, samples: object) -> bool:
        raise KeyError("colour")

    judge = lambda group: run_filter(broken, None, group_samples(group))  # noqa: E731
    async with Simulation(tmp_path, judge=judge) as sim:
        sim.start_engine(Script(chunk=24))
        assert await sim.finish() is RunPhase.FAILED
    rejected = sim.events(GroupRejected)
    assert len(rejected) == sim.plan.broken_limit
    assert all(event.cause is RejectionCause.FILTER_RAISED and "KeyError" in event.reason for event in rejected)
    (failed,) = sim.events(RunFailed)
    assert "16 groups in a row" in failed.reason
    assert "filter_raised 16" in failed.reason
    rejections = Rejections()
    for event in rejected:
        rejections.apply(event)
    assert len(rejections.counts) == 1
    assert failed.reason.endswith(rejections.commonest())
    report = replayed(sim.log.records, policy_for(sim.plan, judge))
    assert not report.differences, "a reason that names the commonest is the same end"


async def test_each_prompt_with_the_grader_that_it_names(tmp_path: Path) -> None:
    instructions = {"rm_type": "ifbench", "instruction_id_list": ["count:numbers"]}
    rows = [
        {"input": "a", "label": "1", "metadata": {"rm_type": "boxed_math"}},
        {"input": "b", "label": "1", "metadata": {**instructions, "kwargs": [{"N": 0}]}},
        {"input": "c", "label": "1", "metadata": instructions},
        {"input": "d", "label": "1", "metadata": {"rm_type": "nobody"}},
        {"input": "e", "label": "1"},
    ]
    plan = make_plan(steps=2, samples=2, max_staleness=2, in_prompt_order=False)
    async with (
        Dispatcher(RewardSettings(rm_type="f1")) as pool,
        Simulation(tmp_path, plan, pool=pool, prompts=rows) as sim,
    ):
        sim.start_engine(Script(chunk=8))
        assert await sim.finish() is RunPhase.FINISHED
    check_run(sim)
    graders = {event.group[-1]: event.grader for event in sim.events(RewardAssigned)}
    assert graders.items() >= {"0": "boxed_math", "1": "ifbench", "4": "f1"}.items()
    assert {event.group[-1]: event.kind for event in sim.events(RewardFailed)}.items() >= {
        "2": RewardFailureKind.INVALID,
        "3": RewardFailureKind.INVALID,
    }.items()
