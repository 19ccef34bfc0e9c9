"""`Trainer`: takes sealed batches in order, trains each once, and commits step and weights in one append.

    batch.sealed -> the batch from the log -> every rank trains -> weights written
                 -> [step.committed + weights.published]

A trainer that takes over loads the newest checkpoint whose digests match the log and trains the later steps again from
the log, so checkpoints may be rare. It has the committed weights then (`Restoration`), and says in trainer.restored
whether the optimizer too is what was committed. With that, or else before its first own step, it appends step.claimed.
That moves the fence that an earlier trainer commits by: a late one gets `Conflict` and ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from actors.trainer.checkpoint_saver import CheckpointSaver
from actors.trainer.checkpoints import CheckpointFolders
from actors.trainer.past_weights import PastWeights
from actors.trainer.ranks import Ranks, train
from actors.trainer.restoration import Restoration
from actors.trainer.trainer_plan import TrainerPlan
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.errors import TrainerError, WeightsDamaged
from schemas.event import Event
from schemas.steps import StepClaimed, StepCommitted
from schemas.subjects import about
from schemas.weights import WeightsPublished
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.participant import Participant, subjects_of
from slime_events.core.run.run_address import RunAddress
from slime_events.core.train_batch import StepResult, StoredVersion
from slime_events.loop.training.pending_batches import PendingBatches
from slime_events.loop.training.training_state import Digests, TrainingState, digests_of, read_training_state
from storage.blobs import BlobStore
from storage.follow import Follower
from storage.log import Append, Fence, Recorded, once
from storage.payloads import fetch
from storage.weights.copies import copy_version
from storage.weights.store import WeightManifest, WeightStore, verify

log = logging.getLogger(__name__)


class Trainer:
    """The shell around the ranks. batches: sealed ones, with what they are made of. start_of: where in the log a
    trainer that goes on from a version has to begin to read.
    """

    def __init__(
        self,
        worker: Participant,
        ranks: Ranks,
        store: WeightStore,
        batches: PendingBatches,
        plan: TrainerPlan,
        *,
        start_of: Callable[[int], int] = lambda version: 1,
    ) -> None:
        self._worker, self._ranks, self._store, self._batches = worker, ranks, store, batches
        self.plan, self._start_of = plan, start_of
        self._folders = folders = CheckpointFolders(plan.checkpoints)
        self._saver = CheckpointSaver(ranks, folders, self._append_saved, plan.last_save, background=plan.async_save)
        self._trained = TrainingState()
        self._saved, self._kept = set[int](), set[int]()
        self._past = PastWeights(plan.past, 0, self._stored)
        self._to_write = -1
        self._shown: dict[str, str] = {}
        self._version = self._published = -1
        self._claim: tuple[int, int] | None = None
        self._over = False

    @classmethod
    def of_run(
        cls,
        address: RunAddress,
        settings: TrainSettings,
        worker: Participant,
        ranks: Ranks,
        plan: TrainerPlan,
        **more: Any,
    ) -> Trainer:
        """The trainer of a run whose batches are made of its own log. more: of its arguments."""
        read = partial(fetch, blobs=BlobStore(address.blob_url))
        batches = PendingBatches(read, temperature=settings.rollout.rollout_temperature)
        store = WeightStore(address.weights_url, base=settings.trainer.hf_checkpoint)
        return cls(worker, ranks, store, batches, plan, **more)

    async def run(self) -> int:
        """Train until the run is over; the version reached."""
        self._trained = await read_training_state(self._worker)
        self._saved = set(self._trained.saved)
        self._past = PastWeights(self.plan.past, self._trained.first, self._stored)
        if self._trained.over:
            return self._trained.version
        await self._begin()
        followed = subjects_of(self._worker.log.run, self._followed)
        async with Follower(self._worker.log, self._start_of(self._version), followed) as follower:
            while not (self._over and follower.caught_up):
                for recorded in await follower.next(wait_s=1.0):
                    await self.take_in(recorded)
                await self._saver.settle(self._version, self._trained.committed)
                if follower.caught_up and not self._over:
                    await self.go_on()
        await self._saver.settle(self._version, self._trained.committed, wait=True)
        return self._version

    @property
    def _followed(self) -> tuple[type[Event], ...]:
        """The events that it reads, beside the run's own."""
        return StepCommitted, StepClaimed, *self._batches.folded

    async def go_on(self) -> None:
        """Do what is due, with all of the log read so far."""
        if self._version in self._batches.sealed:
            await self._take_over()
            await self._step(self._batches.sealed[self._version])

    async def _with_step(self, sealed: BatchSealed, result: StepResult) -> list[Event]:
        """What else is said in the append of a step."""
        return []

    async def _begin(self) -> None:
        """Start from the newest checkpoint, or from the first version, which is published if it never was."""
        trained = self._trained
        self._published = trained.newest_published
        if self._published >= 0 and not await asyncio.to_thread(self._is_stored, trained.published[self._published]):
            self._to_write = self._published
        newest = trained.version if self._to_write < 0 else self._to_write
        needed = (trained.version, self._to_write)
        self._restoration = Restoration(self._ranks, self._store, trained, needed=needed, exact=self.plan.exact)
        most, lacks = self.plan.retrains if self._to_write < 0 else -1, self._past.lacking
        self._version = await self._restoration.begin(self._folders, newest=newest, lacks=lacks, most=most)
        first = trained.published.get(trained.first)
        if self._version > trained.first:
            if self._to_write == self._version:
                await self._write(self._version)
        elif first is None:
            self._published = trained.first
            published = self._as_published(await self._write(self._published))
            await self._worker.append([published])
            trained.apply(published)
        elif (weights := await self._digest(self._version)) != first.digest:
            raise TrainerError(
                f"the run began with weights {first.digest}, but the base checkpoint has {weights} now: give the "
                "one that it began with"
            )
        await self._keep_stored()
        if self._version == trained.version > trained.first:
            await self._restored()
            if self._restoration.skipped and self._version not in self._saved:
                await self._checkpoint(self._restoration.digests)

    async def _keep_stored(self) -> None:
        """Write the version of the ranks again where later steps need it and retention has removed it."""
        if self._past.to_store(self._version):
            await self._write(self._version)

    def _stored(self, version: int) -> StoredVersion | None:
        """A version of this run, where its files are there."""
        published, committed = self._trained.published.get(version), self._trained.committed.get(version)
        digest = published.digest if published else committed.weights if committed else ""
        try:
            saved = self._trained.saved.get(version)
            checkpoint = saved.url if saved and self._trained.matches(saved) and Path(saved.url).is_dir() else ""
            return StoredVersion(version, self._store.folder(version, digest), digest, checkpoint) if digest else None
        except WeightsDamaged:
            return None

    def _is_stored(self, published: WeightsPublished) -> bool:
        """Whether engines can load the version. Damaged files are removed, to be written again."""
        try:
            verify(self._store.folder(published.version, published.digest), published.digest)
        except WeightsDamaged as error:
            log.warning("weight version %d is written again: %s", published.version, error)
            self._store.remove([published.version])
            return False
        return True

    async def take_in(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        self._over = self._worker.is_over(self._over, event)
        if isinstance(event, StepCommitted):
            await self._take_step(event, recorded.envelope.producer)
        elif isinstance(event, StepClaimed):
            if self._claim is not None and recorded.position > self._claim[1]:
                raise TrainerError(f"{event.trainer} has taken over at step {event.step}: this trainer ends")
        else:
            self._batches.apply(event, recorded.position)

    async def _take_step(self, committed: StepCommitted, producer: str) -> None:
        """A committed step: this trainer's, or an earlier trainer's, trained again where the ranks lack it."""
        if committed.version > self._version:
            if committed.version not in self._trained.committed:
                raise TrainerError(
                    f"step {committed.step} was committed by {producer}, this trainer is at version {self._version}: "
                    "only one trainer may work on a run at a time"
                )
            await self._step_again(committed)
        self._batches.forget(committed.step)

    async def _restored(self) -> None:
        """Say what restoring has come to, and claim the next step: a late trainer can do neither."""
        event = self._restoration.event(self._worker.id)
        log.info("restored at version %d, optimizer %s", event.version, event.optimizer)
        await self._take_over(event)

    async def _take_over(self, *said: Event) -> None:
        """Claim the first own step. said: in the same append. Raises TrainerError where another trainer has committed
        the step meanwhile."""
        if self._claim is not None:
            return
        subject = self._about(self._version)
        last = await self._worker.log.last(subject)
        if last is not None and isinstance(last.envelope.event, StepCommitted):
            await self._take_step(last.envelope.event, last.envelope.producer)
        claimed = StepClaimed(step=self._version, trainer=self._worker.id)
        enclose, fence = self._worker.enclose, Fence(subject, last.position if last else 0)
        appends = [Append(enclose(claimed), fence), *(Append(enclose(event)) for event in said)]
        self._claim = self._version, (await self._worker.log.append(appends))[0]

    def _about(self, step: int) -> str:
        return about(self._worker.log.run, "step", str(step))

    async def _step_again(self, committed: StepCommitted) -> None:
        """Train a step that is in the log already; the ranks have its weights then."""
        if committed.step not in self._batches.sealed or committed.step != self._version:
            raise TrainerError(f"step {committed.step} was committed, but the log holds no batch or no step before it")
        await self._restoration.train(committed, self._past.given(await self._batches.made(committed.step)))
        self._version, digests = committed.version, self._restoration.digests
        if self._version == self._to_write:
            await self._write(self._version)
        await self._keep_stored()
        is_newest = self._version == self._trained.version
        if is_newest:
            await self._restored()
        # What was said of a checkpoint holds for ever: other digests would not be believed.
        if digests == self._trained.committed[self._version] or (
            is_newest and self._version not in self._trained.saved
        ):
            await self._checkpoint(digests)

    async def _digest(self, version: int) -> str:
        """Of the ranks' weights, which are written if version is one that was lost."""
        if version == self._to_write:
            return (await self._write(version)).digest
        return await self._ranks.weights_digest()

    async def _write(self, version: int) -> WeightManifest:
        """Write the ranks' weights. A version that engines are to load is shown to the user's function: at least once,
        since a trainer that is lost before it has said so writes it again.
        """
        manifest = await self._ranks.write_weights(self._store, version, version - 1 if version else None)
        if self.plan.shows and (version == self._trained.first or self.plan.publishes(version)):
            self._shown = await self._ranks.show_weights(self._store.folder(version, manifest.digest))
        return manifest

    def _as_published(self, manifest: WeightManifest) -> WeightsPublished:
        return WeightsPublished(
            version=manifest.version,
            parent=manifest.parent,
            url=self._store.folder(manifest.version, manifest.digest),
            digest=manifest.digest,
            bytes=manifest.bytes,
            functions=self._shown,
        )

    async def _step(self, sealed: BatchSealed) -> None:
        """Train a batch, and commit the step with its weights."""
        begun = time.perf_counter()
        batch = self._past.given(await self._batches.made(sealed.step))
        built = time.perf_counter()
        result = await train(self._ranks, batch)
        trained = time.perf_counter()
        manifest = await self._write(sealed.step + 1)
        written = time.perf_counter()
        seconds = {"batch": built - begun, "train": trained - built, "weights": written - trained}
        version, failed = sealed.step + 1, self._saver.failed
        committed = StepCommitted(
            step=sealed.step,
            batch_digest=sealed.digest,
            parent_version=sealed.step,
            version=version,
            weights_digest=manifest.digest,
            optimizer_digest=result.optimizer_digest,
            samples=batch.members,
            tokens=batch.tokens,
            metrics=result.metrics | ({"checkpoints_failed": float(failed)} if failed else {}),
            seconds=seconds,
            functions=result.functions,
            models=result.models,
            critic_digest=result.critic_digest,
        )
        due = self.plan.publishes(version)
        published = [self._as_published(manifest)] if due else []
        more = await self._with_step(sealed, result)
        first, position = self._claim or (-1, 0)
        fence = Fence(self._about(sealed.step), position if sealed.step == first else 0)
        enclose = self._worker.enclose
        await self._worker.log.append(
            [Append(enclose(committed), fence), *(once(enclose(one)) for one in (*published, *more))]
        )
        for event in (committed, *published):
            self._trained.apply(event)
        if due:
            self._published = version
        self._version = version
        self._batches.forget(sealed.step)
        await self._checkpoint(digests_of(committed))
        await asyncio.to_thread(self._remove_old)

    def _remove_old(self) -> None:
        """Delete what retention lets go of: checkpoints first, since weights of one that stays stay too."""
        weights, checkpoints = self.plan.retention, self.plan.checkpoint_retention
        if checkpoints is not None:
            gone = checkpoints.removable(self._saved, pinned=self._kept)
            self._folders.remove(gone)
            self._saved.difference_update(gone)
        if weights is not None:
            going_on = {self._version, *self._saved, *self._saver.pending}
            pinned = {self._published, *self._kept, *going_on}.union(*map(self._past.needed_at, going_on))
            self._store.remove(weights.removable(self._store.versions(), pinned=pinned))

    async def _checkpoint(self, digests: Digests) -> None:
        """Save the version that the ranks are at, if it is due. Saved again, it is the same event."""
        if self.plan.saves.due(self._version):
            await self._saver.save(self._version, digests)

    async def _append_saved(self, saved: CheckpointSaved) -> None:
        """Say that a checkpoint is on disk."""
        version = saved.version
        if self.plan.save_hf and version in self._store.versions():
            target = self.plan.save_hf.format(rollout_id=version - 1)
            await asyncio.to_thread(copy_version, self._store.folder(version, saved.weights_digest), target)
        await self._worker.append([saved])
        self._trained.apply(saved)
        self._saved.add(version)
