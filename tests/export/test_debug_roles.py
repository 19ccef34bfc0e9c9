"""Rollouts out of dumps into a run, no trainer, and dumps while a run is on."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from actors.debug.debug_processes import Loader, UntrainedRanks, dump_rollouts
from schemas.arrays import pack_log_probs, unpack
from schemas.batches import BatchSealed
from schemas.errors import DataError
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.analysis.export.dump import load_dump, save_dump
from slime_events.analysis.export.export import Layout, make_writer
from slime_events.analysis.export.loaded import LoadedStep
from slime_events.analysis.export.samples import Samples
from slime_events.core.run.participant import Participant
from slime_events.core.state.run import RunPhase
from tests.harness.history.checker import check
from tests.replay.golden import golden
from tests.replay.replayed import policy_for, replayed
from tests.simulation.roles import inline
from tests.simulation.simulation import Simulation, make_plan

PLAN = make_plan(steps=3, groups=2, samples=2)


def dumps(folder: Path, *, taught: bool = False) -> str:
    """The batches of a golden run as dumps; their template. taught: with log-probs of a teacher."""
    samples, lengths = Samples("sim", unpack), dict[str, int]()
    for recorded in golden("resting"):
        event = recorded.envelope.event
        if isinstance(event, RolloutCompleted):
            lengths[event.sample] = event.length
        elif isinstance(event, RewardAssigned) and taught:
            event = replace(event, teacher_log_probs=pack_log_probs(-np.arange(lengths[event.sample]) / 8))
        exported = samples.apply(event, recorded.position)
        if exported and exported[0].step is not None:
            save_dump(f"{folder}/{exported[0].step}.pt", exported[0].step, exported)
    return f"{folder}/{{rollout_id}}.pt"


async def loaded(folder: Path, template: str) -> Simulation:
    """A run without engines, of loaded rollouts."""
    async with Simulation(folder, PLAN, prompts=[]) as sim:
        load = partial(LoadedStep.load, template, groups=PLAN.groups, samples=PLAN.samples)
        loader = asyncio.create_task(Loader(Participant(sim.log, "loader"), load, inline, steps=PLAN.steps).run())
        waiting = asyncio.create_task(sim.finish())
        await asyncio.wait({loader, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if loader.done():
            waiting.cancel() if loader.exception() else None
            loader.result()
        assert await waiting is RunPhase.FINISHED
        await loader
    return sim


async def test_a_run_trains_on_exactly_what_was_loaded(tmp_path: Path) -> None:
    template = dumps(tmp_path / "dumps")
    sim = await loaded(tmp_path, template)
    recorded = [r.envelope.event for r in golden("resting") if isinstance(r.envelope.event, BatchSealed)]
    batches = sim.events(BatchSealed)
    assert [batch.raw_rewards for batch in batches] == [batch.raw_rewards for batch in recorded[: PLAN.steps]]
    for step, trained in enumerate(sim.ranks.trained):
        _, dumped = load_dump(template.format(rollout_id=step))
        assert [sample.tokens.tolist() for sample in trained.samples] == [sample.tokens for sample in dumped]
        assert [sample.loss_mask.tolist() for sample in trained.samples] == [sample.loss_mask for sample in dumped]
        for sample, dumped_sample in zip(trained.samples, dumped, strict=True):
            assert sample.rollout_log_probs.tolist() == dumped_sample.rollout_log_probs
    producers = {r.envelope.producer for r in sim.log.records if isinstance(r.envelope.event, RolloutCompleted)}
    assert len(producers) == 1
    assert producers.pop().startswith("loader-")
    assert {event.grader for event in sim.events(RewardAssigned)} == {"recorded"}
    raw = [(r.position, r.subject, r.data) for r in sim.log.records]
    assert check(raw, bound=PLAN.staleness_bound) == []
    again = replayed(sim.log.records, policy_for(PLAN))
    assert again.is_equal, again.differences[0]


async def test_what_is_dumped_of_it_is_what_was_loaded(tmp_path: Path) -> None:
    template = dumps(tmp_path / "dumps")
    sim = await loaded(tmp_path, template)
    files = await dump_rollouts(Participant(sim.log, "dumper"), unpack, f"{tmp_path}/again/{{rollout_id}}.pt")
    assert files == [f"{tmp_path}/again/{step}.pt" for step in range(PLAN.steps)]
    for step, path in enumerate(files):
        before, after = load_dump(template.format(rollout_id=step))[1], load_dump(path)[1]
        for sample, other in zip(before, after, strict=True):
            same = ("tokens", "rollout_log_probs", "loss_mask", "reward", "response", "prompt", "label", "status")
            assert {name: getattr(sample, name) for name in same} == {name: getattr(other, name) for name in same}


@pytest.mark.parametrize("layout", [Layout.JSONL, Layout.PARQUET])
async def test_exported_rows_are_loaded_as_dumps_are(tmp_path: Path, layout: Layout) -> None:
    writer, samples = make_writer(layout, f"{tmp_path}/all.{layout}"), Samples("sim", unpack)
    for recorded in golden("resting"):
        if exported := samples.apply(recorded.envelope.event, recorded.position):
            writer.write(exported)
    writer.close()
    template = dumps(tmp_path / "dumps")
    for step in range(PLAN.steps):
        loaded = [LoadedStep.load(file, step, groups=2, samples=2).groups for file in (writer.files[0], template)]
        assert loaded[0] == loaded[1]
    (tmp_path / "bad.jsonl").write_text('{"run": "x"}\n')
    with pytest.raises(DataError, match="does not hold exported samples"):
        LoadedStep.load(f"{tmp_path}/bad.jsonl", 0, groups=2, samples=2)


def test_a_part_of_a_dump_is_its_first_and_its_last_groups(tmp_path: Path) -> None:
    samples = Samples("sim", unpack)
    exported = [samples.apply(r.envelope.event, r.position) for r in golden("resting")]
    trained = [sample for many in exported for sample in many if sample.step is not None]
    save_dump(f"{tmp_path}/0.pt", 0, trained)
    whole = LoadedStep.load(f"{tmp_path}/0.pt", 0, groups=len(trained) // 2, samples=2).groups
    for part, kept in ((0.5, len(whole) // 2), (1.0, len(whole)), (1.01 / len(whole), 1)):
        groups = LoadedStep.load(f"{tmp_path}/0.pt", 0, groups=kept, samples=2, part=part).groups
        assert groups == [*whole[: kept // 2], *whole[len(whole) - (kept - kept // 2) :]]
    with pytest.raises(DataError, match=rf"0.5 of its {len(whole)} groups .* --rollout-batch-size {len(whole) // 2},"):
        LoadedStep.load(f"{tmp_path}/0.pt", 0, groups=len(whole), samples=2, part=0.5)


async def test_a_teacher_s_log_probs_come_out_of_a_dump(tmp_path: Path) -> None:
    """Dump our own log-probs and slime's, whose rewards are the answers of a teacher's server; they reach the
    trainer.
    """
    template = dumps(tmp_path / "dumps", taught=True)
    pack = torch.load(template.format(rollout_id=0), weights_only=True)
    first = pack["samples"][0]
    assert len(first["teacher_log_probs"]) == first["response_length"]
    scored = [[None, first["tokens"][0], None], *([-0.25, token, None] for token in first["tokens"][1:])]
    first |= {"reward": {"text": "", "meta_info": {"input_token_logprobs": scored}}, "teacher_log_probs": None}
    torch.save(pack, template.format(rollout_id=0))
    sim = await loaded(tmp_path, template)
    for step, batch in enumerate(sim.ranks.trained):
        for place, sample in enumerate(batch.samples):
            assert sample.teacher_log_probs is not None
            expected = np.full(sample.response_length, -0.25) if (step, place) == (0, 0) else None
            expected = -np.arange(sample.response_length) / 8 if expected is None else expected
            np.testing.assert_array_equal(sample.teacher_log_probs, np.float32(expected))
    assert len(sim.ranks.trained) == PLAN.steps


async def test_a_dump_that_does_not_fit(tmp_path: Path) -> None:
    template = dumps(tmp_path / "dumps")
    with pytest.raises(DataError, match="holds 4 samples, and a step of this run has 3 groups of 2"):
        LoadedStep.load(template, 0, groups=3, samples=2)
    with pytest.raises(DataError, match="holds 4 samples, not groups of 3"):
        LoadedStep.load(template, 0, groups=2, samples=3)
    pack = torch.load(template.format(rollout_id=1), weights_only=True)
    pack["samples"][0]["reward"] = {"accuracy": 1.0}
    torch.save(pack, template.format(rollout_id=1))
    with pytest.raises(DataError, match=r"1\.pt: the reward of sample 0 .* set --reward-key"):
        await loaded(tmp_path, template)


async def test_without_a_trainer_steps_are_committed_with_the_weights_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_file({"w": torch.ones(4), "b": torch.zeros(2)}, tmp_path / "model" / "model.safetensors")
    ranks = UntrainedRanks(str(tmp_path / "model"))
    plan = make_plan(steps=3, groups=1, samples=1, publish_every=3)
    async with Simulation(tmp_path, plan, ranks=ranks) as sim:
        sim.start_engine()
        assert await sim.finish() is RunPhase.FINISHED
    published, committed = sim.events(WeightsPublished), sim.events(StepCommitted)
    assert [event.version for event in published] == [0, 3]
    assert {event.digest for event in published} == {event.weights_digest for event in committed}
    assert all(event.metrics["samples"] == 1 for event in committed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"tokens": [1, 2, 999]},
            "sample 1 cannot be trained on: tokens: token 999 is not in the model's vocabulary of 256",
        ),
        ({"tokens": [1, -2, 3]}, "token -2 is below 0"),
        ({"tokens": [1, 2.5, 3]}, "a token id must be a whole number"),
        ({"tokens": [1, 2, 3], "response_length": 3}, "response_length is 3 of 3 tokens"),
        ({"response_length": 0}, "response_length is 0"),
        ({"loss_mask": [1, 1]}, "loss_mask has 2 entries"),
        ({"rollout_log_probs": [-1.0, -1.0]}, "rollout_log_probs has 2 entries"),
    ],
)
def test_a_sample_that_nobody_can_train_on_is_named_before_anything_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], reason: str
) -> None:
    def changed(path: str) -> object:
        step, samples = load_dump(path)
        vars(samples[1]).update({"response_length": 1, "loss_mask": None, "rollout_log_probs": None} | change)
        return step, samples

    template = dumps(tmp_path)
    LoadedStep.load(template, 0, groups=2, samples=2, vocabulary=256)
    monkeypatch.setattr("slime_events.analysis.export.loaded.load_dump", changed)
    with pytest.raises(DataError, match=reason):
        LoadedStep.load(template, 0, groups=2, samples=2, vocabulary=256)
