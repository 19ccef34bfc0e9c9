"""A learner over in-memory logs: its real shell, and ranks that only count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from actors.learner.followed_batches import FollowedBatches
from actors.learner.learner import Learner, parent_records
from actors.offline.retrainer import ranks_at
from actors.trainer.checkpoints import CheckpointFolders
from actors.trainer.trainer import Trainer
from actors.trainer.trainer_plan import TrainerPlan
from schemas.arrays import unpack
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.save_steps import SaveSteps
from slime_events.core.config.toml import settings_from
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun
from slime_events.loop.learner.batches import Batches
from slime_events.loop.learner.overrides import Overrides
from slime_events.loop.learner.recredit import Recredit
from slime_events.model.branch_point import read_point
from storage.memory_log import MemoryLog
from storage.weights.store import WeightStore
from tests import made
from tests.simulation.parts import ScriptedRanks

DEADLINE_S = 60.0


def normalise(rewards: Any, sizes: Any) -> list[float]:
    """Normalise like GRPO."""
    return normalize_rewards(rewards, sizes, AlgorithmSettings())


@dataclass
class Learning:
    """A learner of `parent` that begins with its `version`. where: what the parent is opened with. log: its own."""

    parent: MemoryLog
    folder: Path
    changes: Overrides = field(default_factory=Overrides)
    judge: Any = None
    least: int = 1
    version: int = 0
    where: str = ""
    steps: int = 5
    checkpoint_every: int | None = None
    ranks: ScriptedRanks = field(default_factory=ScriptedRanks)
    log: Any = field(default_factory=lambda: MemoryLog("second"))

    def batches(self) -> Batches:
        """Its decisions."""
        return Batches(
            self.parent.run,
            normalise,
            overrides=self.changes,
            group_filter=self.judge,
            first=self.version,
            least=self.least,
            recredit=None if self.changes.credit is None else Recredit(self.changes.credit, unpack),
        )

    async def begin(self) -> None:
        """Say run.started, and put the version that it begins with where the trainer finds it."""
        point = await read_point(self.parent, self.version, self.where)
        branched = structs.replace(point, cursors={}, follows=True)
        await Participant(self.log, "learner").append([made.started(branched=branched)])
        parent = made.opened(self.parent, where=str(self.folder / "parent"))
        await ranks_at(parent, self.version, self.ranks)
        await self.ranks.save_checkpoint(CheckpointFolders(str(self.folder / "checkpoints")).of(self.version))
        self.ranks.trained.clear()

    async def run(self, *, log: Any = None, ranks: Any = None) -> int:
        """One life of it, to its end. log: its way to its own log."""
        worker = Participant(log or self.log, "learner")
        rollouts = FollowedBatches(unpack, temperature=1.0, shared=self.version)
        trainer = Trainer(
            worker,
            ranks or self.ranks,
            WeightStore(str(self.folder / "weights"), durable=False),
            rollouts,
            TrainerPlan(self.steps, str(self.folder / "checkpoints"), saves=SaveSteps(self.checkpoint_every)),
        )
        async with asyncio.timeout(DEADLINE_S):
            return await Learner(
                worker,
                parent_records("", deadline_s=DEADLINE_S, open_parent=self._open),
                self.batches(),
                rollouts,
                trainer,
            ).run()

    @asynccontextmanager
    async def _open(self, where: str) -> AsyncIterator[OpenedRun]:
        yield OpenedRun(self.parent, settings_from({}), unpack, RunFolder(self.folder, "parent"), where)

    def events(self, kind: type[Any]) -> list[Any]:
        """Return the events of its own log."""
        return [r.envelope.event for r in self.log.records if isinstance(r.envelope.event, kind)]
