"""`RetrainedVersions`: earlier weights that recorded steps need while they are retrained.

The weights come from the retraining itself or, if they still exist, from the run's files.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from actors.trainer.past_weights import PastWeights
from slime_events.analysis.retrain.version_chain import Chain
from slime_events.core.config.settings import TrainSettings
from slime_events.core.training.train_batch import StoredVersion
from slime_events.loop.training.past_versions import PastVersions
from storage.folders.places import is_remote, local_path
from storage.weights.manifest import read_manifest
from storage.weights.shards import TensorBytes
from storage.weights.store import WeightStore


class RetrainedVersions:
    """Stores retrained weights in a scratch folder.

    folder_of: returns the run's folder of a version's weights. `weights` adds the weights that a batch needs.
    """

    def __init__(
        self, settings: TrainSettings, chain: Chain, folder_of: Callable[[int], str | None], scratch: str
    ) -> None:
        self._chain, self._folder_of = chain, folder_of
        self._store = WeightStore(scratch, durable=False)
        self.weights = PastWeights(PastVersions.of(settings), chain.trained.first, self._find)

    @classmethod
    @contextlib.asynccontextmanager
    async def of(
        cls, settings: TrainSettings, chain: Chain, folder_of: Callable[[int], str | None]
    ) -> AsyncIterator[RetrainedVersions]:
        """Create with a temporary folder of weights, which is deleted on exit."""
        with tempfile.TemporaryDirectory(prefix="slime-events-versions-") as scratch:
            yield cls(settings, chain, folder_of, scratch)

    def keep(self, version: int, tensors: Sequence[TensorBytes]) -> None:
        """Store retrained weights as a version, and remove versions that no later step needs."""
        if self.weights.is_needed:
            self._store.write(version, tensors, parent=None)
            needed = self.weights.needed_at(version)
            self._store.remove([old for old in self._store.versions() if old < version and old not in needed])

    def _find(self, version: int) -> StoredVersion | None:
        """Prefer retrained weights: on another topology they differ from the run's, and later steps need them."""
        if version in self._store.versions():
            folder = self._store.folder(version)
            return StoredVersion(version, folder, read_manifest(local_path(folder)).digest)
        recorded = self._folder_of(version)
        trained = self._chain.trained
        if recorded is None:
            return None
        published = trained.published.get(version)
        digest = published.digest if published is not None else trained.committed[version].weights
        saved = trained.saved.get(version)
        is_here = saved is not None and not is_remote(saved.url) and Path(saved.url).is_dir()
        return StoredVersion(version, recorded, digest, saved.url if saved and is_here else "")
