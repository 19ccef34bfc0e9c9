"""A filter's and a post-processing's samples are those that the generate function and the grader left."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from schemas.groups import GroupAccepted
from schemas.rewards import RewardAssigned
from slime_events.core.config.reward import RewardSettings
from slime_events.core.state.apply import apply
from slime_events.core.state.group import GroupState
from slime_events.core.state.run import RunState, state_digest
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.filters.decide import FilterDecision
from slime_events.plugins.post_process import PostProcess
from slime_events.plugins.rewards.dispatcher import Dispatcher
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import group_samples
from slime_events.plugins.texts import Texts
from tests.generate.scene import a_run, check_log, events, setup
from tests.simulation import crash
from tests.simulation.crash import Crashed
from tests.simulation.roles import keep_all
from tests.simulation.simulation import make_plan

PLAN = make_plan(steps=1, groups=2, samples=2)
OWN = """
async def generate(args, sample, sampling_params, *, session):
    sample.tokens = session.tokenize(sample.prompt)
    (await session.generate(sample.tokens)).add_to(sample)
    sample.tool_call_count = 2 + sample.index
    sample.metadata["seen"] = {"turns": [1, 2]}
    return sample


def reward_func(args, sample):
    sample.metadata["raw_reward"] = sample.index
    return float(sample.index)


def post_process(args, samples):
    assert all(sample.metadata["seen"] and sample.tool_call_count for sample in samples)
    raw = [float(sample.metadata["raw_reward"]) for sample in samples]
    return raw, [-one for one in raw]
"""


async def crashed_run(folder: Path, monkeypatch: pytest.MonkeyPatch, shown: dict[str, Sample], texts: Texts) -> Crashed:
    """A run whose filter notes what it is shown, by sample."""

    def judge(group: GroupState) -> FilterDecision:
        samples = [sample for sample in group_samples(texts.with_texts(group)) if isinstance(sample, Sample)]
        shown.update(zip(group.samples, samples, strict=True))
        return keep_all(group)

    file = folder / "own.py"
    file.write_text(OWN)
    async with Dispatcher(RewardSettings(custom_rm_path=f"{file}:reward_func"), args={}) as pool:
        monkeypatch.setattr(crash, "InstantPool", lambda: pool)
        run = a_run(folder / "run", setup(f"{file}:generate"), PLAN, judge=judge, texts=texts)
        await run.run()
    check_log(run)
    return run


async def test_a_filter_sees_what_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[str, Sample] = {}
    run = await crashed_run(tmp_path, monkeypatch, shown, Texts())
    rewards = {event.sample: event.value for event in events(run, RewardAssigned)}
    assert len(rewards) == len(shown) == 4
    for name, sample in shown.items():
        assert sample.metadata["seen"] == {"turns": [1, 2]}
        assert sample.metadata["raw_reward"] == sample.reward == rewards[name]
        assert sample.tool_call_count == 2 + rewards[name]  # type: ignore[attr-defined]


async def test_after_a_restart_too_and_no_state_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await crashed_run(tmp_path, monkeypatch, {}, Texts())
    state, texts, compared = RunState(run=run.log.run), Texts(until_trained=True), 0
    for recorded in run.log.records:
        event = recorded.envelope.event
        if isinstance(event, GroupAccepted):
            again = Texts(until_trained=True)
            await again.restore(run.log, state)
            texts_of_group = texts.with_texts(state.groups[event.group])
            assert texts_of_group == again.with_texts(state.groups[event.group])
            assert all(sample.left for sample in texts_of_group.samples.values())
            compared += 1
        apply(state, recorded)
        texts.apply(event, state)
        assert all(s.left is msgspec.UNSET for group in state.groups.values() for s in group.samples.values())
    assert compared == 2
    assert "left" not in msgspec.json.encode(state).decode()
    assert state_digest(state)


async def test_a_post_processing_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[GroupState] = []
    texts = Texts(until_trained=True)
    run = await crashed_run(tmp_path, monkeypatch, {}, texts)
    state = RunState(run=run.log.run)
    for recorded in run.log.records:
        apply(state, recorded)
        texts.apply(recorded.envelope.event, state)
        if isinstance(recorded.envelope.event, GroupAccepted):
            groups.append(texts.with_texts(state.groups[recorded.envelope.event.group]))
    processed = PostProcess(f"{tmp_path}/own.py:post_process", ArgsView({}))(groups)
    assert sorted(processed.raw) == [0.0, 1.0, 2.0, 3.0]
    assert processed.rewards == tuple(-reward for reward in processed.raw)
