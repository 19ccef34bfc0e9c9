"""`RetrainedVersions`: weights that recorded steps need beside their own, while they are trained again.

They are those that training again has just made, or the files of the run where those are still there.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from actors.trainer.past_weights import PastWeights
from slime_events.analysis.retrain.version_chain import Chain
from slime_events.core.config.settings import TrainSettings
from slime_events.core.train_batch import StoredVersion
from slime_events.loop.training.past_versions import PastVersions
from storage.weights.shards import TensorBytes
from storage.weights.store import WeightStore, local_folder, read_manifest


class RetrainedVersions:
    """folder_of: the folder of a version's weights that the run has written. weights: what a batch needs."""

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
        """With a folder of its own, which is removed with it."""
        with tempfile.TemporaryDirectory(prefix="slime-events-versions-") as scratch:
            yield cls(settings, chain, folder_of, scratch)

    def keep(self, version: int, tensors: Sequence[TensorBytes]) -> None:
        """Hold what was made again as a version, and let go of what no later step needs."""
        if self.weights.is_needed:
            self._store.write(version, tensors, parent=None)
            needed = self.weights.needed_at(version)
            self._store.remove([one for one in self._store.versions() if one < version and one not in needed])

    def _find(self, version: int) -> StoredVersion | None:
        """Another topology makes other weights, and steps after them need those."""
        if version in self._store.versions():
            folder = self._store.folder(version)
            return StoredVersion(version, folder, read_manifest(local_folder(folder)).digest)
        recorded = self._folder_of(version)
        trained = self._chain.trained
        if recorded is None:
            return None
        published = trained.published.get(version)
        digest = published.digest if published is not None else trained.committed[version].weights
        saved = trained.saved.get(version)
        return StoredVersion(version, recorded, digest, saved.url if saved and Path(saved.url).is_dir() else "")
