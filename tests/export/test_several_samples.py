"""Dumps of runs whose rollouts became several samples: what is loaded is trained as it was."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.errors import DataError
from schemas.rollouts import RolloutCompleted
from slime_events.analysis.export.dump import load_dump, save_dump
from slime_events.analysis.export.export import Layout, make_writer
from slime_events.analysis.export.loaded import LoadedStep
from slime_events.analysis.export.samples import Samples
from slime_events.core.tokens.trajectory import Trajectories
from slime_events.core.training.train_batch import TrainBatch
from slime_events.loop.training.pending_batches import build_batch
from storage.memory_log import MemoryLog
from tests.export.test_debug_roles import loaded
from tests.generate.scene import a_run, check_log
from tests.simulation.simulation import Simulation, make_plan

PLAN = make_plan(steps=3, groups=2, samples=2)
OURS = "slime_events"


async def recorded(folder: Path, function: str = "fan_out") -> MemoryLog:
    """The log of a run with three samples of each rollout."""
    run = a_run(folder / "run", function, PLAN)
    await run.run()
    check_log(run)
    return run.log


def write(log: MemoryLog, folder: Path, layout: Layout = Layout.DUMP) -> str:
    """All steps in a layout; the template to load."""
    template = f"{folder}/{{rollout_id}}.pt" if layout is Layout.DUMP else f"{folder}/all.{layout}"
    writer, samples = make_writer(layout, template), Samples("sim", unpack)
    for record in log.records:
        if rows := samples.apply(record.envelope.event, record.position):
            writer.write(rows)
    writer.close()
    return template


def batches(log: MemoryLog) -> list[TrainBatch]:
    """Return the batches that the trainer builds from the log."""
    trajectories = Trajectories(unpack)
    for exported_row in log.records:
        trajectories.apply(exported_row.envelope.event, exported_row.position)
    sealed = [record.envelope.event for record in log.records if isinstance(record.envelope.event, BatchSealed)]
    return [build_batch(batch, trajectories.by_sample, unpack, temperature=1.0) for batch in sealed]


def content(batch: TrainBatch) -> list[Any]:
    """All that training hangs on; rollouts by their place, since a loaded one has another name."""
    places = {name: place for place, name in enumerate(dict.fromkeys(sample.rollout for sample in batch.samples))}
    return [
        (
            places[sample.rollout],
            sample.tokens.tolist(),
            sample.response_length,
            sample.loss_mask.tolist(),
            sample.rollout_log_probs.tolist(),
            sample.reward,
            sample.raw_reward,
        )
        for sample in batch.samples
    ]


async def load(folder: Path, template: str) -> Simulation:
    folder.mkdir()
    return await loaded(folder, template)


@pytest.mark.parametrize("layout", [Layout.DUMP, Layout.JSONL, Layout.PARQUET])
async def test_what_is_loaded_is_trained_as_it_was(tmp_path: Path, layout: Layout) -> None:
    log = await recorded(tmp_path)
    sim = await load(tmp_path / "loaded", write(log, tmp_path, layout))
    before, after = batches(log), batches(sim.log)
    assert [len(batch.samples) for batch in before] == [12] * PLAN.steps
    assert [content(batch) for batch in after] == [content(batch) for batch in before]


async def test_prompts_and_metadata_of_each_sample_come_back(tmp_path: Path) -> None:
    log = await recorded(tmp_path, "fan_in")
    sim = await load(tmp_path / "loaded", write(log, tmp_path))
    again = write(sim.log, tmp_path / "again")
    for step in range(PLAN.steps):
        before, after = (
            load_dump(template.format(rollout_id=step))[1] for template in (f"{tmp_path}/{step}.pt", again)
        )
        assert [row.prompt for row in after] == [row.prompt for row in before]
        assert [row.rollout_id for row in after] == [row.rollout_id for row in before] == sorted([0, 1, 2, 3] * 3)
        for exported_row in (*before, *after):
            assert "".join(map(chr, exported_row.tokens[: -exported_row.response_length])) == exported_row.prompt
            del exported_row.metadata[OURS]
        assert [row.metadata for row in after] == [row.metadata for row in before]
    assert any(event.prompt_text for event in sim.events(RolloutCompleted))


def as_slime_writes(path: str, *, numbered: bool) -> None:
    """Nothing of ours in it; rollouts numbered, or not."""
    pack = torch.load(path, weights_only=True)
    for sample in pack["samples"]:
        sample["metadata"].pop(OURS, None)
        sample["rollout_id"] = sample["rollout_id"] if numbered else None
    torch.save(pack, path)


def sizes(step: LoadedStep) -> list[list[int]]:
    """Samples of each rollout of each group."""
    return [[len(rollout) for rollout in group] for group in step.groups]


async def test_slime_s_own_dumps_have_rollouts_by_their_number(tmp_path: Path) -> None:
    template = write(await recorded(tmp_path), tmp_path)
    load_step = partial(LoadedStep.load, template, 0, groups=2)
    as_slime_writes(template.format(rollout_id=0), numbered=True)
    assert sizes(load_step(samples=2)) == [[3, 3], [3, 3]]
    as_slime_writes(template.format(rollout_id=0), numbered=False)
    assert sizes(load_step(samples=6)) == [[1] * 6] * 2
    with pytest.raises(DataError):
        load_step(samples=2)


async def test_a_dump_of_before_rollouts_were_in_it_is_read_by_the_samples_names(tmp_path: Path) -> None:
    log = await recorded(tmp_path)
    samples = Samples("sim", unpack)
    dumps = [rows for r in log.records if (rows := samples.apply(r.envelope.event, r.position))]
    save_dump(f"{tmp_path}/0.pt", 0, dumps[0])
    pack = torch.load(tmp_path / "0.pt", weights_only=True)
    for sample in pack["samples"]:
        sample["rollout_id"] = 0  # it said the step
        ours = sample["metadata"][OURS]
        ours["text"], sample["prompt"] = sample["prompt"], [{"role": "user", "content": "?"}]
        del ours["rollout"], ours["messages"]
    torch.save(pack, tmp_path / "0.pt")
    step = LoadedStep.load(f"{tmp_path}/{{rollout_id}}.pt", 0, groups=2, samples=2)
    assert sizes(step) == [[3, 3], [3, 3]]
    (first, _) = step.prompts()
    assert (first.text, first.messages) == (dumps[0][0].prompt, [{"role": "user", "content": "?"}])
