"""A grader's sample is the one that the generate function left; its args are the function's."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.arrays import unpack
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutRequested
from slime_events.analysis.rescore.change import make_change
from slime_events.analysis.rescore.rescore import rescore
from slime_events.core.config.reward import RewardSettings
from slime_events.core.tokens.trajectory import read_trajectory
from slime_events.plugins.rewards.dispatcher import Dispatcher
from slime_events.plugins.sample import Sample
from tests import made
from tests.generate.scene import a_run, check_log, events, run_until, setup
from tests.rescore.recorded import settings as run_settings
from tests.scripted_engine import Script
from tests.simulation import crash
from tests.simulation.parts import InstantPool
from tests.simulation.simulation import Simulation, make_plan

PLAN = make_plan(steps=1, groups=2, samples=2)

OWN = """
async def generate(args, sample, sampling_params, *, session):
    sample.tokens = session.tokenize(sample.prompt)
    (await session.generate(sample.tokens)).add_to(sample)
    args.max_turns = None  # seen by nobody else
    sample.tool_call_count = 2 + sample.index
    sample.metadata["seen"] = {"turns": [1, 2]}
    return sample


def reward_func(args, sample):
    assert args.max_turns == 3, args
    args.max_turns = 0
    assert len(sample.tokens) == len(sample.prompt) + sample.response_length
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
    assert sample.metadata["seen"] == {"turns": [1, 2]}
    return float(sample.tool_call_count * 100 + sample.group_index * 10 + sample.index)
"""


async def test_live_and_in_a_rescore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    reward = RewardSettings(custom_rm_path=f"{file}:reward_func")
    async with Dispatcher(reward, args={"max_turns": 3}) as pool:
        monkeypatch.setattr(crash, "InstantPool", lambda: pool)
        run = a_run(tmp_path / "run", setup(f"{file}:generate"), PLAN)
        await run.run()
    check_log(run)
    assert not events(run, RewardFailed)
    rewards = {f"train-0-00000{g}-s{s}": (2 + 2 * g + s) * 100 + g * 10 + 2 * g + s for g in (0, 1) for s in (0, 1)}
    assert {event.sample: event.value for event in events(run, RewardAssigned)} == rewards
    change = make_change(run_settings(max_turns=3), ["--custom-rm-path", reward.custom_rm_path or ""])
    report = await rescore(made.opened(run.log, change.before, "sim"), change)
    assert (report.samples.graded, report.samples.changed, report.samples.failed) == (4, 0, {})


async def test_tokens_of_a_plain_rollout_are_those_of_its_chunks(tmp_path: Path) -> None:
    seen: list[Sample] = []
    pool = InstantPool(lambda sample: seen.append(sample) or 1.0)  # type: ignore[func-returns-value]
    async with Simulation(tmp_path, PLAN, pool=pool) as sim:
        sim.start_engine(Script(chunk=4))
        await sim.finish()
        assert sim.events(RolloutProgressed)
        assert len(seen) == 4
        for sample in seen:
            trajectory = await read_trajectory(sim.log, str(sample.session_id), unpack)
            assert sample.tokens == [*unpack(trajectory.prompt).tolist(), *trajectory.tokens.tolist()]
            assert sample.rollout_log_probs == trajectory.log_probs.tolist()
            assert sample.loss_mask == [1] * trajectory.length


async def test_numbers_are_the_run_s(tmp_path: Path) -> None:
    plan = make_plan(steps=3, groups=2, samples=2, max_staleness=1)
    async with Simulation(tmp_path, plan) as sim:
        sim.start_engine(Script(chunk=4))
        await sim.finish()
    order = {name: number for number, name in enumerate(dict.fromkeys(e.group for e in sim.events(RolloutRequested)))}
    places = {event.sample: event.place for event in sim.events(RolloutRequested)}
    training = {name: place for name, place in places.items() if name.startswith("train")}
    groups = list(dict.fromkeys(event.group for event in sim.events(RolloutRequested) if event.sample in training))
    assert order
    assert [(place.index, place.group_index) for place in training.values() if place] == [
        (2 * number + index, number) for number in range(len(groups)) for index in (0, 1)
    ]
    evaluated = [place for name, place in places.items() if name not in training]
    assert all(place is not None and place.group_index is None for place in evaluated)
    assert all(event.place == places[event.sample] for event in sim.events(RolloutCompleted))


async def test_what_cannot_be_carried_fails_its_rollout(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN.replace("2 + sample.index", "object()"))
    run = a_run(tmp_path / "run", setup(f"{file}:generate"))
    await run_until(run, RolloutFailed)
    (failed, *_) = events(run, RolloutFailed)
    assert failed.kind is FailureKind.INVALID
    assert "sample.tool_call_count is object" in failed.message
    assert not events(run, RolloutCompleted)
