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
    is an error. exact: any difference is. digests: of the ranks, after each step.
    """

    def __init__(
        self, ranks: Ranks, store: WeightStore, trained: TrainingState, *, needed: Collection[int], exact: bool
    ) -> None:
        self._ranks, self._store, self._trained = ranks, store, trained
        self._needed, self._exact = needed, exact
        self._begun, self._first = time.perf_counter(), trained.first
        self._retrained = self._differing = 0
        self._furthest: Distance | None = None
        self.digests = Digests("", "")

    async def begin(
        self, folders: CheckpointFolders, *, newest: int, lacks: Callable[[int], str | None] = lambda version: None
    ) -> int:
        """Load a checkpoint of version `newest` or before, or begin anew; the version of the ranks. See `restore`."""
        self._first = await restore(self._ranks, self._trained, folders, newest=newest, lacks=lacks)
        saved, committed = self._trained.saved.get(self._first), self._trained.committed.get(self._first)
        self.digests = committed or self.digests
        if saved is not None and committed is not None:
            self.digests = Digests(committed.weights, saved.optimizer_digest, saved.critic_digest)
        return self._first

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

    async def _load(self, committed: StepCommitted) -> bool:
        """Give the ranks the committed weights; False where their files are gone and nobody needs them."""
        version, digest = committed.version, committed.weights_digest
        try:
            folder = self._store.folder(version, digest)
            manifest, _ = await asyncio.to_thread(read, folder)
            if manifest.digest != digest:
                raise WeightsDamaged(f"{folder} holds weights {manifest.digest}")
            await self._measure(folder)
            await self._ranks.load_weights(folder)
            loaded = await self._ranks.weights_digest()
        except (WeightsDamaged, CheckpointMismatch) as error:
            loaded, folder = "", str(error)
        if loaded == digest:
            return True
        if loaded or version in self._needed:
            raise TrainerError(
                f"step {committed.step} came out otherwise than it was committed, and the weights that it committed, "
                f"version {version} with digest {digest}, cannot be loaded ({folder}): put the folder back from a "
                "copy and resume, or branch off from a version that is there"
            )
        log.warning("the weights of version %d are gone, those of training it again are used: %s", version, folder)
        return False

    async def _measure(self, folder: str) -> None:
        apart = await self._ranks.weights_distance(folder)
        if self._furthest is None or apart.relative_l2 > self._furthest.relative_l2:
            self._furthest = apart

    def event(self, trainer: str) -> TrainerRestored:
        """What is to be said of it, at the newest version."""
        version, apart = self._trained.version, self._furthest
        is_exact = self.digests[1:] == self._trained.committed[version][1:] and (
            bool(self.digests.optimizer) or not self._differing
        )
        return TrainerRestored(
            version=version,
            trainer=trainer,
            checkpoint=self._first,
            optimizer=Fidelity.EXACT if is_exact else Fidelity.APPROXIMATE,
            retrained=self._retrained,
            differing=self._differing,
            distance=WeightsDistance(max_abs=apart.max_abs, relative_l2=apart.relative_l2) if apart else None,
            optimizer_digest=self.digests.optimizer,
            critic_digest=self.digests.critic,
            seconds=time.perf_counter() - self._begun,
        )
