"""`Restoration`: brings the ranks of a trainer that takes over to the newest version that was committed.

    checkpoint -> [train a step again -> compare -> where it came out otherwise: load the committed weights]* -> newest

The weights end as they were committed, bit for bit. So does the optimizer where training came to the same digests, as
it does on equal hardware and versions. Elsewhere its moments, step count and schedule are those of the steps trained
again, each of them from the weights that the step before had committed as long as their files are there, and float32
main weights follow the weights that were loaded (`TrainerRank.load_weights`).
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
from slime_events.analysis.retrain.difference import Distance, training_differences
from slime_events.core.train_batch import TrainBatch
from slime_events.loop.training.training_state import Digests, TrainingState
from storage.weights.store import WeightStore, read

log = logging.getLogger(__name__)


class Restoration:
    """trained: what was committed. needed: versions whose weights have to be exact: without their files a difference
    is an error. exact: any difference is. digests: of the ranks, after each step. skipped: steps that were not trained
    again.
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
        """Load a checkpoint of version `newest` or before, or begin anew; the version of the ranks. See `restore`.

        Where more than `most` steps (-1: any number) lie between, the weights of `newest` are taken at once.
        """
        self._first = await restore(self._ranks, self._trained, folders, newest=newest, lacks=lacks)
        saved, committed = self._trained.saved.get(self._first), self._trained.committed.get(self._first)
        self.digests = committed or self.digests
        if saved is not None and committed is not None:
            self.digests = Digests(committed.weights, saved.optimizer_digest, saved.critic_digest)
        is_far = 0 <= most < newest - self._first
        return newest if is_far and lacks(newest) is None and await self._skip(newest) else self._first

    async def train(self, committed: StepCommitted, batch: TrainBatch) -> None:
        """Train a step again; the ranks have the weights that it committed then, as far as those are to be had.

        Raises TrainerError where they have not and `needed` has the version, or with `exact`.
        """
        result = await train(self._ranks, batch)
        weights = await self._ranks.weights_digest()
        optimizer, critic = result.optimizer_digest, result.critic_digest
        if committed.optimizer_digest and not optimizer:  # the settings have changed since
            optimizer = await self._ranks.optimizer_digest()
        if committed.critic_digest and not critic:
            critic = await self._ranks.critic_digest()
        self.digests = Digests(weights, optimizer, critic)
        self._retrained += 1
        different = training_differences(committed, self.digests)
        if not different:
            log.info("step %d was trained again, to the same digests", committed.step)
            return
        said = f"step {committed.step} differs from what was committed: {', '.join(map(str, different))}"
        if self._exact:
            raise TrainerError(
                f"{said}: train on the same hardware, versions and number of threads, or go on without --exact"
            )
        log.warning("%s", said)
        self._differing += 1
        if weights != committed.weights_digest and await self._load(committed):
            optimizer = await self._ranks.optimizer_digest() if committed.optimizer_digest else ""
            self.digests = Digests(committed.weights_digest, optimizer, critic)

    async def _skip(self, newest: int) -> bool:
        """Take the weights of a version; False where they are gone. Optimizer and step count stay those of the
        checkpoint, the learning rate moves on.
        """
        steps, committed = range(self._first + 1, newest + 1), self._trained.committed[newest]
        found, where = await self._take(newest, committed.weights, measured=False)
        if not found:
            log.warning("%d steps are trained again, as version %d has no weights: %s", len(steps), newest, where)
            return False
        if found != committed.weights:
            raise TrainerError(_lost(newest, committed.weights, where))
        await self._ranks.advance_schedule(sum(self._trained.optimizer_steps.get(version, 0) for version in steps))
        self.skipped = len(steps)
        self.digests = Digests(found, await self._ranks.optimizer_digest() if committed.optimizer else "")
        log.warning("the optimizer is that of version %d: %d steps are not trained again", self._first, len(steps))
        return True

    async def _load(self, committed: StepCommitted) -> bool:
        """Give the ranks the committed weights; False where their files are gone and nobody needs them."""
        version, digest = committed.version, committed.weights_digest
        found, where = await self._take(version, digest, measured=True)
        if found == digest:
            return True
        if found or version in self._needed:
            raise TrainerError(
                f"step {committed.step} came out otherwise than it was committed: {_lost(version, digest, where)}"
            )
        log.warning("the weights of version %d are gone, those of training it again are used: %s", version, where)
        return False

    async def _take(self, version: int, digest: str, *, measured: bool) -> tuple[str, str]:
        """Load a version's stored weights; the digest of the ranks' weights then, and the folder. Where they cannot be
        loaded it is empty, with the reason, and the ranks are as they were.
        """
        try:
            folder = self._store.folder(version, digest)
            manifest, _ = await asyncio.to_thread(read, folder)
            if manifest.digest != digest:
                raise WeightsDamaged(f"{folder} holds weights {manifest.digest}")
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
        """What is to be said of it, at the newest version."""
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
        f"the weights that were committed, version {version} with digest {digest}, cannot be loaded ({why}): put the "
        "folder back from a copy and resume, or branch off from a version that is there"
    )
