"""A learner over in-memory logs: its real shell, and ranks that only count."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actors.followed_batches import FollowedBatches
from actors.learner import Learner
from actors.trainer import Trainer
from schemas.arrays import unpack
from schemas.runs import Branched, RunStarted
from schemas.weights import WeightsPublished
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.config.algorithm import AlgorithmSettings
from slime_events.learner.batches import Batches
from slime_events.learner.changes import Changes
from slime_events.worker import Worker
from storage.memory_log import MemoryLog
from storage.weights_store import WeightStore
from tests.simulation.parts import ScriptedRanks

DEADLINE_S = 20.0


def normalise(rewards: Any, sizes: Any) -> list[float]:
    """As GRPO does."""
    return normalize_rewards(rewards, sizes, AlgorithmSettings())


@dataclass
class Learning:
    """A learner of `parent` that begins with its version 0. log: its own."""

    parent: MemoryLog
    folder: Path
    changes: Changes = field(default_factory=Changes)
    judge: Any = None
    least: int = 1
    steps: int = 5
    checkpoint_every: int | None = None
    ranks: ScriptedRanks = field(default_factory=ScriptedRanks)
    log: Any = field(default_factory=lambda: MemoryLog("second"))

    def batches(self) -> Batches:
        """Its decisions."""
        return Batches(self.parent.run, normalise, changes=self.changes, judge=self.judge, least=self.least)

    async def begin(self) -> None:
        """Say run.started, and put the version that it begins with where the trainer finds it."""
        (zero,) = [r.envelope.event for r in self.parent.records if _is_first(r.envelope.event)]
        branched = Branched(
            run=self.parent.run,
            where="",
            position=3,
            version=0,
            weights_digest=zero.digest,
            optimizer_digest="",
            follows=True,
        )
        await Worker(self.log, "learner").say([RunStarted(settings={}, code_version="", branched=branched)])
        await self.ranks.save_checkpoint(str(self.folder / "checkpoints" / "v000000"))

    async def run(self, *, log: Any = None, ranks: Any = None) -> int:
        """One life of it, to its end. log: its way to its own log."""
        worker = Worker(log or self.log, "learner")
        rollouts = FollowedBatches(unpack, temperature=1.0, shared=0)
        trainer = Trainer(
            worker,
            ranks or self.ranks,
            WeightStore(str(self.folder / "weights"), durable=False),
            unpack,
            temperature=1.0,
            publish_every=1,
            checkpoint_every=self.checkpoint_every,
            checkpoints=str(self.folder / "checkpoints"),
            steps=self.steps,
            open_batches=rollouts,
        )
        async with asyncio.timeout(DEADLINE_S):
            return await Learner(
                worker,
                self.parent,
                self.batches(),
                rollouts,
                trainer,
                steps=self.steps,
                follow=True,
                checkpoint_every=self.checkpoint_every,
                deadline_s=5.0,
            ).run()

    def events(self, kind: type[Any]) -> list[Any]:
        """Those of its own log."""
        return [r.envelope.event for r in self.log.records if isinstance(r.envelope.event, kind)]


def _is_first(event: object) -> bool:
    return isinstance(event, WeightsPublished) and event.version == 0
