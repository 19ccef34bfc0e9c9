"""`Restoration`: brings the ranks of a trainer that takes over to the newest committed version.

    checkpoint -> [retrain a step -> compare -> if digests differ: load the committed weights]* -> newest

The restored weights equal the committed weights bit for bit. If retraining gives the same digests, as it does on equal
hardware and versions, the optimizer is equal too. If not, its moments, step count and schedule come from the
retrained steps, each of which starts from the committed weights of the step before if their files exist, and float32
main weights follow the loaded weights (`TrainerRank.load_weights`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from actors.trainer.checkpoints import CheckpointFolders, restore
from actors.trainer.ranks import Ranks, train
from schemas.errors import CheckpointMismatch, TrainerError, WeightsDamaged
from schemas.steps import StepCommitted
from schemas.trainers import Fidelity, TrainerRestored, WeightsDistance
from slime_events.core.training.train_batch import TrainBatch
from slime_events.loop.training.difference import Distance, training_differences
from slime_events.loop.training.training_state import Digests, TrainingState
from storage.weights.store import WeightStore
from storage.weights.stored_version import read
from storage.weights.whole_copies import whole_folder

log = logging.getLogger(__name__)


class Restoration:
    """Restores ranks step by step.

    trained: the committed state. needed: versions whose weights must be exact, so that a difference without weight
    files is an error. exact: make any difference an error. `digests` are the ranks' after each step; `skipped` counts
    steps that were not retrained.
    """

    def __init__(
        self, ranks: Ranks, store: WeightStore, trained: TrainingState, *, needed: Collection[int], exact: bool
    ) -> None:
        self._ranks, self._store, self._trained = ranks, store, trained
        self._needed, self._exact = needed, exact
        self._begun, self._first = time.perf_counter(), trained.first
        self._retrained = self._differing = 0
        self.skipped = 0
        self._furthest: Distance | None = None
        self.digests = Digests("", "")

    async def begin(
        self,
        folders: CheckpointFolders,
        *,
        newest: int,
        lacks: Callable[[int], str | None] = lambda version: None,
        most: int = -1,
    ) -> int:
        """Load a checkpoint of version `newest` or earlier, or start from the beginning; return the ranks' version.

        If more than `most` steps (-1 is no limit) remain to `newest`, load the weights of `newest` at once. For the
        other arguments, see `restore`.
        """
        self._first = await restore(self._ranks, self._trained, folders, newest=newest, lacks=lacks)
        saved, committed = self._trained.saved.get(self._first), self._trained.committed.get(self._first)
        self.digests = committed or self.digests
        if saved is not None and committed is not None:
            self.digests = Digests(committed.weights, saved.optimizer_digest, saved.critic_digest)
        is_far = 0 <= most < newest - self._first
        return newest if is_far and lacks(newest) is None and await self._skip(newest) else self._first

    async def train(self, committed: StepCommitted, batch: TrainBatch) -> None:
        """Retrain a step; afterwards the ranks have its committed weights, if these are still available.

        Raises TrainerError if the weights differ and are not available for a `needed` version, or if anything differs
        with `exact`.
        """
        result = await train(self._ranks, batch)
        weights = await self._ranks.weights_digest()
        optimizer, critic = result.optimizer_digest, result.critic_digest
        if committed.optimizer_digest and not optimizer:  # the settings have changed
            optimizer = await self._ranks.optimizer_digest()
        if committed.critic_digest and not critic:
            critic = await self._ranks.critic_digest()
        self.digests = Digests(weights, optimizer, critic)
        self._retrained += 1
        different = training_differences(committed, self.digests)
        if not different:
            log.info("step %d was retrained with the same digests", committed.step)
            return
        message = f"step {committed.step} differs from what was committed: {', '.join(map(str, different))}"
        if self._exact:
            raise TrainerError(
                f"{message}: train on the same hardware, versions and number of threads, or omit --exact"
            )
        log.warning("%s", message)
        self._differing += 1
        if weights != committed.weights_digest and await self._load(committed):
            optimizer = await self._ranks.optimizer_digest() if committed.optimizer_digest else ""
            self.digests = Digests(committed.weights_digest, optimizer, critic)

    async def _skip(self, newest: int) -> bool:
        """Load the weights of a version without retraining; return False if they are gone.

        Optimizer and step count stay those of the checkpoint; the learning rate schedule advances.
        """
        steps, committed = range(self._first + 1, newest + 1), self._trained.committed[newest]
        digest, source = await self._take(newest, committed.weights, measured=False)
        if not digest:
            log.warning("retraining %d steps because version %d has no weights: %s", len(steps), newest, source)
            return False
        if digest != committed.weights:
            raise TrainerError(_lost(newest, committed.weights, source))
        await self._ranks.advance_schedule(sum(self._trained.optimizer_steps.get(version, 0) for version in steps))
        self.skipped = len(steps)
        self.digests = Digests(digest, await self._ranks.optimizer_digest() if committed.optimizer else "")
        log.warning("the optimizer is that of version %d: %d steps are not retrained", self._first, len(steps))
        return True

    async def _load(self, committed: StepCommitted) -> bool:
        """Load the committed weights into the ranks; return False if the files are gone and not `needed`."""
        version, digest = committed.version, committed.weights_digest
        loaded, source = await self._take(version, digest, measured=True)
        if loaded == digest:
            return True
        if loaded or version in self._needed:
            lost = self._never_stored(version, digest) or _lost(version, digest, source)
            raise TrainerError(f"retraining step {committed.step} gave a different result: {lost}")
        log.warning("the weights of version %d are gone; using the retrained weights: %s", version, source)
        return False

    def _never_stored(self, version: int, digest: str) -> str:
        """Return what to do if the version was lost with its host before it was stored; empty if it was stored."""
        if version not in self._trained.unstored:
            return ""
        newest = min(self._trained.unstored) - 1
        return (
            f"the committed weights, version {version} with digest {digest}, were lost before they were stored "
            f"(--no-store-before-commit): `slime-events branch RUN --from {newest}` continues from the newest version "
            "that is stored"
        )

    async def _take(self, version: int, digest: str, *, measured: bool) -> tuple[str, str]:
        """Load a version's stored weights; return the ranks' digest and the folder.

        If the weights cannot be loaded, return ("", reason) and leave the ranks unchanged.
        """
        try:
            folder = self._store.folder(version, digest)
            manifest, _ = await asyncio.to_thread(read, folder)
            if manifest.digest != digest:
                raise WeightsDamaged(f"{folder} holds weights {manifest.digest}")
            folder = await asyncio.to_thread(whole_folder, folder)
            if measured:
                await self._measure(folder)
            await self._ranks.load_weights(folder)
        except (WeightsDamaged, CheckpointMismatch) as error:
            return "", str(error)
        return await self._ranks.weights_digest(), folder

    async def _measure(self, folder: str) -> None:
        apart = await self._ranks.weights_distance(folder)
        if self._furthest is None or apart.relative_l2 > self._furthest.relative_l2:
            self._furthest = apart

    def event(self, trainer: str) -> TrainerRestored:
        """Return the event that reports the restoration, at the newest version."""
        version, apart = self._trained.version, self._furthest
        is_exact = (
            not self.skipped
            and self.digests[1:] == self._trained.committed[version][1:]
            and (bool(self.digests.optimizer) or not self._differing)
        )
        return TrainerRestored(
            version=version,
            trainer=trainer,
            checkpoint=self._first,
            optimizer=Fidelity.EXACT if is_exact else Fidelity.APPROXIMATE,
            retrained=self._retrained,
            differing=self._differing,
            skipped=self.skipped,
            distance=WeightsDistance(max_abs=apart.max_abs, relative_l2=apart.relative_l2) if apart else None,
            optimizer_digest=self.digests.optimizer,
            critic_digest=self.digests.critic,
            seconds=time.perf_counter() - self._begun,
        )


def _lost(version: int, digest: str, why: str) -> str:
    return (
        f"the committed weights, version {version} with digest {digest}, cannot be loaded ({why}): restore the folder "
        "from a copy and resume, or branch from a version that still has its weights"
    )
