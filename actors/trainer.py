"""`Trainer`: takes sealed batches in order, trains each once, and commits step and weights in one append.

    batch.sealed -> the batch from the log -> every rank trains -> weights written
                 -> [step.committed + weights.published]

The commit is fenced on its step's subject: of two trainers only one commits a step, the other gets `Conflict` and ends.
A trainer starts at version 0; on a log that has gone further without it it ends with a TrainerError.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.errors import TrainerError
from schemas.event import Purpose
from schemas.groups import GroupRejected
from schemas.rollouts import RolloutRequested
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.batch import TrainBatch
from slime_events.log_batch import make_batch
from slime_events.trajectory import Fetch, Trajectories
from slime_events.worker import Worker, is_over
from storage.follow import Follower
from storage.log import Recorded
from storage.weights_retention import Retention
from storage.weights_store import TensorBytes, WeightManifest, WeightStore


class Result(Protocol):
    """What a rank gives back for one step."""

    @property
    def metrics(self) -> dict[str, float]:
        """By name."""

    @property
    def optimizer_digest(self) -> str:
        """sha256 hex over the optimizer's state."""


class Ranks(Protocol):
    """All Megatron ranks as one: calls go to every rank, answers are rank 0's."""

    async def train(self, batch: TrainBatch) -> Result:
        """One rollout step: all its optimizer steps."""

    async def export_weights(self) -> list[TensorBytes]:
        """HF-named tensors."""

    async def save_checkpoint(self, folder: str) -> None:
        """Model, optimizer, scheduler."""


class Trainer:
    """The shell around the ranks. temperature: the rollout's, which log-probs are taken at."""

    def __init__(
        self,
        worker: Worker,
        ranks: Ranks,
        store: WeightStore,
        fetch: Fetch,
        *,
        temperature: float,
        publish_every: int,
        checkpoint_every: int | None,
        checkpoints: str,
        steps: int,
        retention: Retention | None = None,
    ) -> None:
        self._worker, self._ranks, self._store, self._fetch = worker, ranks, store, fetch
        self._temperature, self._steps = temperature, steps
        self._publish_every, self._checkpoint_every, self._checkpoints = publish_every, checkpoint_every, checkpoints
        self._retention = retention
        self._trajectories = Trajectories(fetch)
        self._sealed: dict[int, BatchSealed] = {}
        self._version = -1
        self._over = False

    async def run(self) -> int:
        """Train until the run is over; the version reached."""
        await self._publish_first()
        async with Follower(self._worker.log) as follower:
            while not (self._over and follower.caught_up):
                for recorded in await follower.next(wait_s=1.0):
                    self._fold(recorded)
                    self._over = is_over(self._over, recorded.envelope.event)
                if follower.caught_up and self._version in self._sealed and not self._over:
                    await self._step(self._sealed[self._version])
        return self._version

    def _fold(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        if isinstance(event, RolloutRequested) and event.purpose is Purpose.EVAL:
            return
        if isinstance(event, BatchSealed):
            self._sealed[event.step] = event
        elif isinstance(event, StepCommitted):
            if event.version > self._version:
                raise TrainerError(
                    f"step {event.step} was committed by {recorded.envelope.producer}, this trainer is at version "
                    f"{self._version}: only one trainer may work on a run, from its beginning"
                )
            done = self._sealed.pop(event.step, None)
            self._trajectories.forget(done.samples if done else ())
        elif isinstance(event, GroupRejected):
            self._trajectories.forget(event.samples)
        else:
            self._trajectories.apply(event, recorded.position)

    async def _publish_first(self) -> None:
        manifest = await self._write(0, parent=None)
        await self._worker.say([self._published(manifest, parent=None)])
        self._version = 0

    async def _write(self, version: int, parent: int | None) -> WeightManifest:
        tensors = await self._ranks.export_weights()
        return await asyncio.to_thread(self._store.write, version, tensors, parent=parent)

    def _published(self, manifest: WeightManifest, parent: int | None) -> WeightsPublished:
        return WeightsPublished(
            version=manifest.version,
            parent=parent,
            url=self._store.folder(manifest.version, manifest.digest),
            digest=manifest.digest,
            bytes=manifest.bytes,
        )

    async def _step(self, sealed: BatchSealed) -> None:
        begun = time.perf_counter()
        batch = make_batch(sealed, self._trajectories.by_sample, self._fetch, temperature=self._temperature)
        built = time.perf_counter()
        result = await self._ranks.train(batch)
        trained = time.perf_counter()
        manifest = await self._write(sealed.step + 1, parent=sealed.step)
        written = time.perf_counter()
        seconds = {"batch": built - begun, "train": trained - built, "weights": written - trained}
        await self._commit(sealed, batch, result, manifest, seconds)
        self._version = sealed.step + 1
        del self._sealed[sealed.step]
        self._trajectories.forget(sealed.samples)
        await self._checkpoint(manifest, result)
        retention = self._retention
        if retention is not None:
            await asyncio.to_thread(lambda: self._store.remove(retention.removable(self._store.versions())))

    async def _commit(
        self,
        sealed: BatchSealed,
        batch: TrainBatch,
        result: Result,
        manifest: WeightManifest,
        seconds: dict[str, float],
    ) -> None:
        version = sealed.step + 1
        committed = StepCommitted(
            step=sealed.step,
            batch_digest=sealed.digest,
            parent_version=sealed.step,
            version=version,
            weights_digest=manifest.digest,
            optimizer_digest=result.optimizer_digest,
            samples=len(batch.samples),
            tokens=sum(sample.total_length for sample in batch.samples),
            metrics=result.metrics,
            seconds=seconds,
        )
        due = version % self._publish_every == 0 or version == self._steps
        published = [self._published(manifest, parent=sealed.step)] if due else []
        await self._worker.say([committed, *published])

    async def _checkpoint(self, manifest: WeightManifest, result: Result) -> None:
        if not self._checkpoint_every or manifest.version % self._checkpoint_every:
            return
        begun = time.perf_counter()
        folder = f"{self._checkpoints}/v{manifest.version:06d}"
        await self._ranks.save_checkpoint(folder)
        saved = CheckpointSaved(
            version=manifest.version,
            url=folder,
            weights_digest=manifest.digest,
            optimizer_digest=result.optimizer_digest,
            seconds=time.perf_counter() - begun,
        )
        await self._worker.say([saved])
