"""`Trainer`: takes sealed batches in order, trains each once, and commits step and weights in one append.

    batch.sealed -> the batch from the log -> every rank trains -> weights written
                 -> [step.committed + weights.published]

A trainer that takes over loads the newest checkpoint whose digests match the log and retrains the later steps from the
log, so that checkpoints can be rare. Then it has the committed weights (`Restoration`), and trainer.restored records
whether the optimizer is also as committed. In the same append, or else before its own first step, it appends
step.claimed. This event moves the fence of an earlier trainer's commits, so that an earlier trainer that is still
running gets `Conflict` and ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from actors.trainer.checkpoint_saver import CheckpointSaver
from actors.trainer.checkpoints import CheckpointFolders
from actors.trainer.offerings import offering_of
from actors.trainer.past_weights import PastWeights
from actors.trainer.ranks import Ranks, train
from actors.trainer.restoration import Restoration
from actors.trainer.trainer_plan import TrainerPlan
from actors.trainer.version_files import VersionFiles, Written
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.errors import TrainerError, WeightsDamaged
from schemas.event import Event
from schemas.steps import StepClaimed, StepCommitted
from schemas.subjects import about
from schemas.weights import WeightsStored
from slime_events.core.config.settings import TrainSettings
from slime_events.core.devices.device_share import DeviceShare
from slime_events.core.run.participant import Participant, subjects_of
from slime_events.core.run.run_address import RunAddress
from slime_events.core.telemetry.current_span import in_span
from slime_events.core.telemetry.span_place import train_place
from slime_events.core.training.train_batch import StepResult, StoredVersion
from slime_events.loop.training.pending_batches import PendingBatches
from slime_events.loop.training.training_state import Digests, TrainingState, digests_of, read_training_state
from storage.blobs import BlobStore
from storage.follow import Follower
from storage.log import Append, Fence, Recorded, once
from storage.payloads import fetch
from storage.weights.copies import copy_version
from storage.weights.manifest import WeightManifest
from storage.weights.store import WeightStore
from storage.weights.whole_copies import whole_folder

log = logging.getLogger(__name__)


class Trainer:
    """Feeds sealed batches to the ranks and commits the results.

    batches: folds sealed batches and their rollouts. start_of: returns the log position from which a trainer that
    continues from a version must read. share: devices that engines use too, which the trainer holds when it begins.
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
        share: DeviceShare | None = None,
    ) -> None:
        self._worker, self._ranks, self._store, self._batches = worker, ranks, store, batches
        self.plan, self._start_of, self._share = plan, start_of, share
        self._folders = folders = CheckpointFolders(plan.checkpoints)
        self._saver = CheckpointSaver(ranks, folders, self._append_saved, plan.last_save, background=plan.async_save)
        self._files = VersionFiles(ranks, store, plan.memory, self._append_stored)
        self._trained = TrainingState()
        self._saved, self._kept = set[int](), set[int]()
        self._past = PastWeights(plan.past, 0, self._stored)
        self._to_write = set[int]()
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
        **options: Any,
    ) -> Self:
        """Return the trainer of a run that makes batches from its own log. options: further arguments of the class."""
        read = partial(fetch, blobs=BlobStore(address.blob_url))
        batches = PendingBatches(read, temperature=settings.rollout.rollout_temperature)
        trainer = settings.trainer
        store = WeightStore(
            address.weights_url,
            base=trainer.hf_checkpoint,
            deltas=trainer.delta_rule,
            offering=offering_of(trainer.update_weight_transport, address.run, plan.publishes),
        )
        return cls(worker, ranks, store, batches, plan, **options)

    async def run(self) -> int:
        """Train until the run is over; return the last version."""
        try:
            return await self._run()
        finally:
            await self._files.stop()

    async def _run(self) -> int:
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
                    await self.observe(recorded)
                await self._saver.settle(self._version, self._trained.committed)
                await self._files.settle()
                if follower.caught_up and not self._over:
                    await self.work()
                    await self._release()
        await self._saver.settle(self._version, self._trained.committed, wait=True)
        await self._files.end()
        return self._version

    @property
    def _followed(self) -> tuple[type[Event], ...]:
        """The types of events to read, besides the run's own events."""
        return StepCommitted, StepClaimed, *self._batches.folded

    async def work(self) -> None:
        """Train the next step if its batch is sealed. Called when the whole log is read."""
        if self._version in self._batches.sealed and (self._share is None or await self._share.take()):
            await self._take_over()
            with in_span(self._worker.log.run, train_place(self._version)):
                await self._step(self._batches.sealed[self._version])

    async def _release(self) -> None:
        """Leave shared devices to the engines until the next batch is sealed."""
        if self._share is not None and self._version not in self._batches.sealed:
            await self._share.release()

    async def _with_step(self, sealed: BatchSealed, result: StepResult) -> list[Event]:
        """Return further events for the append of a step."""
        return []

    async def _begin(self) -> None:
        """Start from the newest checkpoint or from the first version. Publish the first version if it is not yet."""
        trained = self._trained
        self._published = trained.newest_published
        self._to_write = await self._files.take_over(trained)
        newest = min(self._to_write, default=trained.version)
        needed = {trained.version, *self._to_write}
        self._restoration = Restoration(self._ranks, self._store, trained, needed=needed, exact=self.plan.exact)
        most, lacks = -1 if self._to_write else self.plan.retrains, self._past.lacking
        self._version = await self._restoration.begin(self._folders, newest=newest, lacks=lacks, most=most)
        first = trained.published.get(trained.first)
        if self._version > trained.first:
            await self._write_missing()
        elif first is None:
            self._published = trained.first
            published = self._files.published(Written(await self._write(self._published), True), self._shown)
            await self._worker.append([published])
            trained.apply(published)
        elif (weights := await self._digest(self._version)) != first.digest:
            raise TrainerError(
                f"the run began with weights {first.digest}, but the base checkpoint has {weights} now: give the "
                "original base checkpoint"
            )
        await self._keep_stored()
        if self._version == trained.version > trained.first:
            await self._restored()
            if self._restoration.skipped and self._version not in self._saved:
                await self._checkpoint(self._restoration.digests)

    async def _write_missing(self) -> None:
        """Write the ranks' version if its files were lost, or never stored."""
        if self._version in self._to_write:
            manifest = await self._write(self._version)
            if self._version in self._trained.unstored:
                await self._files.stored_again(manifest)

    async def _keep_stored(self) -> None:
        """Write the ranks' version again if later steps need it and retention has removed it."""
        if self._past.to_store(self._version):
            await self._write(self._version)

    def _stored(self, version: int) -> StoredVersion | None:
        """Return a version of this run if its files exist."""
        published, committed = self._trained.published.get(version), self._trained.committed.get(version)
        digest = published.digest if published else committed.weights if committed else ""
        try:
            saved = self._trained.saved.get(version)
            is_there = saved and self._trained.matches(saved) and self._folders.has(version, saved.url)
            checkpoint = saved.url if saved and is_there else ""
            return StoredVersion(version, self._store.folder(version, digest), digest, checkpoint) if digest else None
        except WeightsDamaged:
            return None

    async def observe(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        self._over = self._worker.is_over(self._over, event)
        if isinstance(event, StepCommitted):
            await self._take_step(event, recorded.envelope.producer)
        elif isinstance(event, StepClaimed):
            if self._claim is not None and recorded.position > self._claim[1]:
                raise TrainerError(f"trainer {event.trainer} has taken over at step {event.step}: this trainer ends")
        else:
            self._batches.apply(event, recorded.position)

    async def _take_step(self, committed: StepCommitted, producer: str) -> None:
        """Process a committed step. If an earlier trainer committed it and the ranks lack it, retrain it."""
        if committed.version > self._version:
            if committed.version not in self._trained.committed:
                raise TrainerError(
                    f"step {committed.step} was committed by {producer}, but this trainer is at version "
                    f"{self._version}: only one trainer may work on a run at a time"
                )
            with in_span(self._worker.log.run, train_place(committed.step)):
                await self._step_again(committed)
        self._batches.forget(committed.step)

    async def _restored(self) -> None:
        """Append the result of the restoration and claim the next step; a superseded trainer gets `Conflict`."""
        event = self._restoration.event(self._worker.id)
        log.info("restored at version %d, optimizer %s", event.version, event.optimizer)
        await self._take_over(event)

    async def _take_over(self, *more: Event) -> None:
        """Claim the first own step, in one append with `more`. Raises TrainerError if another trainer has committed
        the step meanwhile."""
        if self._claim is not None:
            return
        subject = self._about(self._version)
        last = await self._worker.log.last(subject)
        if last is not None and isinstance(last.envelope.event, StepCommitted):
            await self._take_step(last.envelope.event, last.envelope.producer)
        claimed = StepClaimed(step=self._version, trainer=self._worker.id)
        enclose, fence = self._worker.enclose, Fence(subject, last.position if last else 0)
        appends = [Append(enclose(claimed), fence), *(Append(enclose(event)) for event in more)]
        self._claim = self._version, (await self._worker.log.append(appends))[0]

    def _about(self, step: int) -> str:
        return about(self._worker.log.run, "step", str(step))

    async def _step_again(self, committed: StepCommitted) -> None:
        """Retrain a committed step; afterwards the ranks have its weights."""
        if committed.step not in self._batches.sealed or committed.step != self._version:
            raise TrainerError(f"step {committed.step} is committed, but the log lacks its batch or the step before it")
        await self._restoration.train(committed, self._past.fill(await self._batches.when_ready(committed.step)))
        self._version, digests = committed.version, self._restoration.digests
        await self._write_missing()
        await self._keep_stored()
        is_newest = self._version == self._trained.version
        if is_newest:
            await self._restored()
        # A recorded checkpoint keeps its digests: a later one with different digests would be refused.
        if digests == self._trained.committed[self._version] or (
            is_newest and self._version not in self._trained.saved
        ):
            await self._checkpoint(digests)

    async def _digest(self, version: int) -> str:
        """Return the digest of the ranks' weights. If the version's files were lost, write them."""
        if version in self._to_write:
            return (await self._write(version)).digest
        return await self._ranks.weights_digest()

    async def _write(self, version: int) -> WeightManifest:
        """Write the ranks' weights and, if engines will load the version, call the user's function with it.

        The call happens at least once: if a trainer is lost before it publishes the version, the next trainer writes
        it again.
        """
        manifest = await self._files.write(version)
        if self.plan.shows and (version == self._trained.first or self.plan.publishes(version)):
            self._shown = await self._ranks.show_weights(self._store.folder(version, manifest.digest))
        return manifest

    async def _keep(self, version: int) -> Written:
        """Store the ranks' weights, or hold them in memory, as the plan says."""
        if self.plan.memory is None:
            return Written(await self._write(version), True)
        return await self._files.hold_or_write(version)

    async def _step(self, sealed: BatchSealed) -> None:
        """Train a batch and commit the step with its weights."""
        begun = time.perf_counter()
        if self._past.is_needed:
            await self._files.settle(most=0)
        batch = await asyncio.to_thread(self._past.fill, await self._batches.when_ready(sealed.step))
        built = time.perf_counter()
        result = await train(self._ranks, batch)
        trained = time.perf_counter()
        kept = await self._keep(sealed.step + 1)
        written = time.perf_counter()
        seconds = {"batch": built - begun, "train": trained - built, "weights": written - trained}
        version, failed = sealed.step + 1, self._saver.failed
        committed = StepCommitted(
            step=sealed.step,
            batch_digest=sealed.digest,
            parent_version=sealed.step,
            version=version,
            weights_digest=kept.manifest.digest,
            optimizer_digest=result.optimizer_digest,
            samples=batch.members,
            tokens=batch.tokens,
            metrics=result.metrics | ({"checkpoints_failed": float(failed)} if failed else {}),
            seconds=seconds,
            functions=result.functions,
            models=result.models,
            critic_digest=result.critic_digest,
            stored=kept.is_stored,
        )
        due = self.plan.publishes(version)
        published = [self._files.published(kept, self._shown)] if due else []
        more = await self._with_step(sealed, result)
        first, position = self._claim or (-1, 0)
        fence = Fence(self._about(sealed.step), position if sealed.step == first else 0)
        enclose = self._worker.enclose
        await self._worker.log.append(
            [Append(enclose(committed), fence), *(once(enclose(event)) for event in (*published, *more))]
        )
        for event in (committed, *published):
            self._trained.apply(event)
        if due:
            self._published = version
        self._version = version
        if not kept.is_stored:
            self._files.store_later(kept.manifest)
        self._batches.forget(sealed.step)
        await self._checkpoint(digests_of(committed))
        await asyncio.to_thread(self._remove_old)

    def _remove_old(self) -> None:
        """Delete checkpoints, then weights that retention does not keep; weights of kept checkpoints stay.

        Offer no version before the published one any more.
        """
        weights, checkpoints = self.plan.retention, self.plan.checkpoint_retention
        if checkpoints is not None:
            gone = checkpoints.removable(self._saved, pinned=self._kept)
            self._folders.remove(gone)
            self._saved.difference_update(gone)
        self._files.retire(self._published)
        if weights is not None:
            going_on = {self._version, *self._saved, *self._saver.pending}
            pinned = {self._published, *self._kept, *going_on}.union(*map(self._past.needed_at, going_on))
            self._store.remove(weights.removable(self._store.versions(), pinned=pinned))

    async def _checkpoint(self, digests: Digests) -> None:
        """Save the ranks' version if it is due. A repeated save gives the same event."""
        if self.plan.saves.due(self._version):
            await self._saver.save(self._version, digests)

    async def _append_saved(self, saved: CheckpointSaved) -> None:
        """Append that a checkpoint is on disk, and copy its weights if `save_hf` is set."""
        version = saved.version
        if self.plan.save_hf:
            await self._files.settle(most=0)
        if self.plan.save_hf and version in self._store.versions():
            target = self.plan.save_hf.format(rollout_id=version - 1)
            whole = await asyncio.to_thread(whole_folder, self._store.folder(version, saved.weights_digest))
            await asyncio.to_thread(copy_version, whole, target)
        await self._worker.append([saved])
        self._trained.apply(saved)
        self._saved.add(version)

    async def _append_stored(self, stored: WeightsStored) -> None:
        """Append that the files of a version are complete, which was committed before."""
        await self._worker.append([stored])
        self._trained.apply(stored)
