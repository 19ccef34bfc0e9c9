"""Finished groups and rewards from outside: what is taken, what is refused by which field, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas.arrays import unpack
from schemas.groups import GroupRejected, RejectionCause
from schemas.outside import OutsideGroup, OutsideSample
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import Maker, RolloutCompleted, RolloutOffered, RolloutRequested
from slime_events.analysis.audit.audit import Audit, audit
from slime_events.analysis.lineage.lineage import Kind, LineageQuery
from slime_events.analysis.lineage.resolve import lineage
from slime_events.app.cli.render.audit_text import report_text
from slime_events.app.cli.render.lineage_text import lineage_text
from slime_events.core.state.run import RunPhase, RunState
from slime_events.core.tokens.trajectory import read_trajectory
from slime_events.loop.conductor.outside_rollouts import Limits, OutsideRollouts
from slime_events.loop.prompts.inbox_message import WrongField
from slime_events.plugins.rewards.outcome import Outcome
from slime_events.plugins.sample import Sample
from storage.follow import Follower
from tests import made
from tests.gateway.test_gateway import Gateway
from tests.scripted_engine import Script
from tests.simulation.parts import InstantPool
from tests.simulation.roles import make_outside
from tests.simulation.simulation import DEADLINE_S, Simulation, make_plan

GROUPS, REWARDS = "/v1/runs/sim/trajectories", "/v1/runs/sim/rewards"
SAMPLES: list[dict[str, Any]] = [
    {"tokens": [65, 66, 67], "log_probs": [-0.1, -0.2, -0.3], "loss_mask": [1, 0, 1], "version": 0, "reward": 1.0},
    {"text": "no", "reward": 0.0, "truncated": True},
    {"text": "maybe"},
]


async def holds(simulation: Simulation, condition: Callable[[RunState], bool]) -> None:
    """Wait for a state of the run."""
    async with asyncio.timeout(DEADLINE_S), Follower(simulation.log) as follower:
        while not condition(simulation.conductor.state):
            await follower.next(0.01)


def group(key: str = "g", **changes: Any) -> dict[str, Any]:
    return {"key": key, "prompt": "1+1", "label": "2", "samples": SAMPLES} | changes


def with_sample(**changes: Any) -> dict[str, Any]:
    return group(samples=[{"text": "a"}, {"text": "b"}, changes])


@pytest.fixture
async def simulation(tmp_path: Path) -> AsyncIterator[Simulation]:
    async with Simulation(tmp_path, make_plan(max_staleness=1, in_prompt_order=False)) as simulation:
        await holds(simulation, lambda state: state.published == 0)
        yield simulation


async def test_a_finished_group_is_trained_on_as_it_was_sent(simulation: Simulation, tmp_path: Path) -> None:
    gateway = Gateway(simulation, tmp_path / "gateway")
    answers = [await gateway.quiz.post(GROUPS, json=group()) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    (name,) = {answer.json()["groups"][0]["group"] for answer in answers}
    simulation.start_engine(Script(chunk=8))
    assert await simulation.finish() is RunPhase.FINISHED
    (prompt,) = simulation.events(PromptSubmitted, dataset="inbox")
    assert (prompt.group, prompt.source.sender, prompt.recalled is not None) == (name, "quiz", True)
    assert len(simulation.events(RolloutOffered)) == len(SAMPLES), "sent twice, taken once"
    completed = {event.sample: event for event in simulation.events(RolloutCompleted) if event.group == name}
    first = await read_trajectory(simulation.log, f"{name}-s0", unpack)
    assert first.tokens.tolist() == [65, 66, 67]
    assert [(span.start, span.end, span.version) for span in first.spans] == [(0, 1, 0), (2, 3, 0)]
    assert completed[f"{name}-s1"].spans == (), "nobody knows its log-probs"
    assert completed[f"{name}-s1"].stop.value == "length"
    rewards = {event.sample: event for event in simulation.events(RewardAssigned) if event.group == name}
    assert [rewards[f"{name}-s{index}"].value for index in (0, 1)] == [1.0, 0.0]
    assert rewards[f"{name}-s0"].grader == "outside:quiz"
    assert rewards[f"{name}-s2"].grader != "outside:quiz", "the run graded what had no reward"
    body = (await gateway.quiz.get(f"/v1/runs/sim/groups/{name}")).json()
    assert body["fate"] == "trained"
    assert all(
        event.maker is Maker.OUTSIDE and event.recalls
        for event in simulation.events(RolloutRequested)
        if event.group == name
    )
    report = await audit(simulation.log.read_records(), Audit("sim", fetch=unpack, files=False))
    assert report.clean, report_text(report, 0)
    run = made.opened(simulation.log)
    for index in range(2):
        told_of = await lineage(run, LineageQuery(kind=Kind.SAMPLE, value=f"{name}-s{index}"))
        assert "a producer outside (quiz)" in lineage_text(told_of)
        assert told_of.samples[0].reward is not None
        assert (told_of.groups[0].source.sender, told_of.samples[0].reward.grader) == ("quiz", "outside:quiz")


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (group(samples=[{"text": "a"}]), "samples"),
        (group(prompt=""), "prompt"),
        (with_sample(text="a", tokens=[1]), "samples[2].text"),
        (with_sample(), "samples[2].tokens"),
        (with_sample(tokens=[300]), "samples[2].tokens"),
        (with_sample(tokens=[-1]), "samples[2].tokens[0]"),
        (with_sample(text="x" * 25), "samples[2].text"),
        (with_sample(messages=[{"role": "assistant", "content": "a"}]), "samples[2].messages"),
        (with_sample(messages=[{"role": "assistant", "content": None}]), "samples[2].messages[0].content"),
        (
            with_sample(messages=[{"role": "tool", "content": [{"type": "image"}]}]),
            "samples[2].messages[0].content[0].type",
        ),
        (with_sample(tokens=[65], loss_mask=[1, 1]), "samples[2].loss_mask"),
        (with_sample(tokens=[65], loss_mask=[0]), "samples[2].loss_mask"),
        (with_sample(tokens=[65], loss_mask=[2]), "samples[2].loss_mask[0]"),
        (with_sample(tokens=[65], log_probs=[]), "samples[2].log_probs"),
        (with_sample(tokens=[65], log_probs=[0.5]), "samples[2].log_probs"),
        (with_sample(text="a", log_probs=[-1.0]), "samples[2].log_probs"),
        (with_sample(text="a", version=7), "samples[2].version"),
        (with_sample(text="a", rewards=1.0), "samples[2]"),
        (with_sample(text="a", metadata={"rm_type": "maths"}), "samples[2].metadata.rm_type"),
        (group(metadata={"rm_type": "maths"}), "metadata.rm_type"),
    ],
)
async def test_a_wrong_group_is_refused_by_field(
    simulation: Simulation, tmp_path: Path, item: dict[str, Any], field: str
) -> None:
    gateway = Gateway(simulation, tmp_path / "gateway")
    answer = await gateway.quiz.post(GROUPS, json=item)
    assert answer.status_code == 422, answer.text
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert simulation.events(RolloutOffered) == simulation.events(PromptSubmitted, dataset="inbox") == []


async def test_a_chat_s_answers_are_trained_on_and_what_others_say_is_not(
    simulation: Simulation, tmp_path: Path
) -> None:
    gateway = Gateway(simulation, tmp_path / "gateway")
    samples = [
        {"role": "assistant", "content": "a"},
        {"role": "tool", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    chat = group(prompt=[{"role": "user", "content": "q"}], samples=[{"messages": samples[:1]}] * 3)
    assert (await gateway.quiz.post(GROUPS, json=chat)).status_code == 202
    long = chat | {"key": "tools", "samples": [{"messages": samples[1:2]}] * 3}
    assert (await gateway.quiz.post(GROUPS, json=long)).json()["errors"][0]["field"] == "samples[0].loss_mask"
    (offer, *_) = simulation.events(RolloutOffered)
    assert (offer.text, offer.loss_mask) == ("<assistant>a", None)


async def test_what_is_too_old_is_rejected_with_its_age(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(steps=24, groups=1, max_staleness=0)) as simulation:
        simulation.start_engine(Script(chunk=8))
        await holds(simulation, lambda state: state.published >= 10)
        gateway = Gateway(simulation, tmp_path / "gateway")
        old = {"tokens": [65], "log_probs": [-0.1], "version": 0, "reward": 1.0}
        assert (await gateway.quiz.post(GROUPS, json=group(samples=[old] * 3))).status_code == 202
        await simulation.finish()
        rejected = [event for event in simulation.events(GroupRejected) if event.group.startswith("inbox-")]
        assert [event.cause for event in rejected] == [RejectionCause.STALE]


class NobodyGrades(InstantPool):
    """Never answer a request for grades."""

    async def grade(self, samples: Sequence[Sample], *, evaluation: bool = False) -> list[Outcome]:
        await asyncio.Event().wait()
        return []


async def test_a_sample_waits_for_the_reward_that_its_source_sends(tmp_path: Path) -> None:
    plan = make_plan(steps=1, groups=1)
    async with Simulation(tmp_path, plan, pool=NobodyGrades(), prompts=[]) as simulation:
        gateway = Gateway(simulation, tmp_path / "gateway")
        answer = await gateway.quiz.post("/v1/runs/sim/prompts", json={"key": "k", "prompt": "1+1"})
        name = answer.json()["groups"][0]["group"]
        rewards = [{"sample": f"{name}-s{index}", "reward": float(index)} for index in range(plan.samples)]
        early = await gateway.quiz.post(REWARDS, json=rewards[0])
        assert early.status_code in (422, 503), "it is not even requested"
        simulation.start_engine(Script(chunk=8))
        await holds(simulation, lambda state: state.counts.samples_completed == plan.samples)
        assert (await gateway.other.post(REWARDS, json=rewards[0])).status_code == 422, "another source's"
        assert (await gateway.quiz.post(REWARDS, json=rewards)).status_code == 202
        assert await simulation.finish() is RunPhase.FINISHED
        assert {event.sample: event.value for event in simulation.events(RewardAssigned)} == {
            reward["sample"]: reward["reward"] for reward in rewards
        }


async def test_a_reward_is_given_once_and_by_whom_the_run_allows(tmp_path: Path) -> None:
    plan = make_plan(steps=1, groups=1)
    async with Simulation(tmp_path, plan, pool=NobodyGrades()) as simulation:
        gateway = Gateway(simulation, tmp_path / "gateway")
        raters = gateway.client("raters")
        simulation.start_engine(Script(chunk=8))
        await holds(simulation, lambda state: state.counts.samples_completed == plan.samples)
        (sample, *others) = [event.sample for event in simulation.events(RolloutCompleted)]
        assert (await gateway.quiz.post(REWARDS, json={"sample": sample, "reward": 1})).status_code == 422
        codes = [
            (await raters.post(REWARDS, json={"sample": sample, "reward": value})).status_code for value in (1, 1, 0.5)
        ]
        assert codes[0] == 202
        await holds(simulation, lambda state: any(s.reward for g in state.groups.values() for s in g.samples.values()))
        codes = [
            (await raters.post(REWARDS, json={"sample": sample, "reward": value})).status_code for value in (1, 0.5)
        ]
        assert codes == [202, 422]
        wrong = await raters.post(
            REWARDS, content='{"sample": "x", "reward": NaN}', headers={"content-type": "application/json"}
        )
        assert wrong.status_code in (400, 422)
        assert len(simulation.events(RewardAssigned)) == 1
        assert (
            await raters.post(REWARDS, json=[{"sample": other, "reward": 0} for other in others])
        ).status_code == 202
        assert await simulation.finish() is RunPhase.FINISHED


def test_ids_of_a_trajectory_are_read_before_they_are_decoded() -> None:
    """An id above 32 bits is no reason for a tokenizer to raise; a prompt may have a token that the model has not."""
    outside = OutsideRollouts(make_outside(), Limits(1, 16, None, bound=8, vocabulary=256), {})
    for tokens, prompt, field in (
        ([2**40], "a", "samples[0].tokens"),
        ([2**70], "a", "samples[0].tokens"),
        ([256], "a", "samples[0].tokens"),
        ([65], "\u0416", "prompt"),
    ):
        group = OutsideGroup(key="k", prompt=prompt, samples=[OutsideSample(tokens=tokens, reward=1.0)])
        with pytest.raises(WrongField) as refused:
            outside.events(group, "team", "sim", 0)
        assert refused.value.field == field
