"""Test what a branch's trainer begins with: built from the parent's archive, once, by ranks like the parent's."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from schemas.errors import InvalidValue, TrainerError
from schemas.event import Event
from schemas.runs import Branched
from slime_events.app.launch.branch_checkpoint import put_branch_checkpoint
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_reader import open_run
from slime_events.core.training.train_batch import StepResult, TrainBatch
from slime_events.model.branch_point import read_point
from storage.memory_log import MemoryLog
from storage.weights.stored_version import read
from tests import made
from tests.scripted_engine import Script
from tests.simulation.parts import ScriptedRanks
from tests.simulation.simulation import Simulation, make_plan

PLAN = make_plan(steps=3, groups=1, samples=2)


class OnDisk(ScriptedRanks):
    """Ranks whose checkpoints are folders."""

    async def save_checkpoint(self, folder: str) -> None:
        Path(folder).mkdir(parents=True)
        await super().save_checkpoint(folder)


@dataclass
class Ranks:
    """Makes ranks. built: the settings that each was built with; trained: its steps."""

    disk: dict[str, bytes] = field(default_factory=dict)
    built: list[TrainSettings] = field(default_factory=list)
    trained: list[list[int]] = field(default_factory=list)

    @asynccontextmanager
    async def __call__(self, settings: TrainSettings) -> AsyncIterator[ScriptedRanks]:
        ranks = OnDisk(disk=self.disk)
        if settings.trainer.load:
            ranks.weights = bytes(read(settings.trainer.load)[1]["w"].data)
        self.built.append(settings)
        yield ranks
        self.trained.append([batch.step for batch in ranks.trained])


async def archived(
    folder: Path,
    branched: Branched | None = None,
    disk: dict[str, bytes] | None = None,
    ranks: ScriptedRanks | None = None,
) -> str:
    """The URL of the archive of a finished run, which is all that is left of it."""
    base = folder / "base"
    base.mkdir(parents=True)
    (base / "config.json").write_text("{}")
    started = made.started({"trainer": {"hf_checkpoint": str(base)}}, branched=branched)
    async with Simulation(folder, PLAN, started=started, ranks=ranks or ScriptedRanks(disk=disk)) as sim:
        sim.start_engine(Script(chunk=8))
        await sim.finish()
    return made.archived(folder / "archive", sim.log.records)


async def point(where: str, version: int, *, fresh: bool = False) -> tuple[Branched, TrainSettings]:
    """Return where a branch of an archived run begins, and its settings."""
    async with open_run(where) as parent:
        return await read_point(parent.log, version, parent.where, fresh_optimizer=fresh), parent.settings


async def test_it_is_trained_from_the_archive_once(tmp_path: Path) -> None:
    branched, settings = await point(await archived(tmp_path / "parent"), 2)
    ranks, notes, checkpoints = Ranks(), list[str](), str(tmp_path / "checkpoints")
    for _ in range(2):
        await put_branch_checkpoint(branched, settings, checkpoints, note=notes.append, make_ranks=ranks)
    assert ranks.trained == [[0, 1]]
    assert {Path(folder).name: weights.hex() for folder, weights in ranks.disk.items()} == {
        "v000002": branched.optimizer_digest
    }
    assert [path.name for path in Path(checkpoints).iterdir()] == ["v000002"], "nothing else stays"
    assert notes[0] == "making version 2 of run sim, from which this run continues"


@pytest.mark.parametrize("stored", [True, False], ids=["from their files", "trained again"])
async def test_a_new_optimizer_gets_the_weights_alone(tmp_path: Path, *, stored: bool) -> None:
    branched, settings = await point(await archived(tmp_path / "parent"), 2, fresh=True)
    other = msgspec.structs.replace(settings, trainer=msgspec.structs.replace(settings.trainer, optimizer="sgd"))
    ranks = Ranks()
    if not stored:
        shutil.rmtree(tmp_path / "parent" / "weights")
    await put_branch_checkpoint(branched, other, str(tmp_path / "own"), note=lambda _: None, make_ranks=ranks)
    assert [rank.trainer.optimizer for rank in ranks.built] == (["sgd"] if stored else ["adam", "sgd"])
    assert ranks.trained == ([[]] if stored else [[0, 1], []])
    assert [Path(folder).name for folder in ranks.disk] == ["v000002"]
    assert branched.weights_digest[:12] in str(ranks.built[-1].trainer.load)


async def test_an_optimizer_without_a_digest_cannot_be_gone_on_from(tmp_path: Path) -> None:
    class Unhashed(ScriptedRanks):
        async def train(self, batch: TrainBatch) -> StepResult:
            return StepResult((await super().train(batch)).metrics, "")

    where = await archived(tmp_path / "parent", ranks=Unhashed())
    assert (await point(where, 0))[0].optimizer_digest == ""
    assert (await point(where, 1, fresh=True))[0].version == 1
    with pytest.raises(InvalidValue, match="no optimizer digest of version 1"):
        await point(where, 1)


async def test_the_archives_of_a_whole_line_are_enough(tmp_path: Path) -> None:
    first, settings = await point(await archived(tmp_path / "first"), 1)
    ranks, own = Ranks(), tmp_path / "second"
    await put_branch_checkpoint(first, settings, str(own / "checkpoints"), note=lambda _: None, make_ranks=ranks)
    second, settings = await point(await archived(own, first, ranks.disk), 2)
    ranks = Ranks()
    await put_branch_checkpoint(second, settings, str(tmp_path / "third"), note=lambda _: None, make_ranks=ranks)
    assert ranks.trained == [[0], [1]]
    assert ranks.disk[f"{tmp_path}/third/v000002"].hex() == second.optimizer_digest


async def test_what_has_become_another_run_is_named(tmp_path: Path) -> None:
    where = await archived(tmp_path / "parent")
    branched, settings = await point(where, 2)
    other = msgspec.structs.replace(branched, weights_digest="0" * 64)
    with pytest.raises(TrainerError, match="0000"):
        await put_branch_checkpoint(other, settings, str(tmp_path / "own"), note=lambda _: None, make_ranks=Ranks())
    (tmp_path / "parent" / "base" / "config.json").unlink()
    with pytest.raises(InvalidValue, match=r"that folder is not here\. Give the same checkpoint with --hf-checkpoint"):
        await put_branch_checkpoint(branched, settings, str(tmp_path / "own"), note=lambda _: None, make_ranks=Ranks())


async def test_a_learner_is_gone_on_from_with_the_prompts_of_the_run_that_it_follows(tmp_path: Path) -> None:
    where = await archived(tmp_path / "parent")
    (first, _), (second, _) = await point(where, 1), await point(where, 2)
    learner = MemoryLog("learner")
    events: list[Event] = [
        made.started(branched=msgspec.structs.replace(first, follows=True)),
        made.published(1, parent=0, url="", digest=first.weights_digest, bytes=0),
        made.committed(1, batch_digest="", weights_digest="w2", samples=0, tokens=0),
    ]
    await Participant(learner, "learner").append(events)
    point_ = await read_point(learner, 2, "x")
    assert (point_.cursors, point_.weights_digest, point_.optimizer_digest) == (second.cursors, "w2", "o2")
