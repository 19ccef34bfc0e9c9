"""`PastWeights`: adds the stored weights of earlier versions that a batch needs; see `PastVersions`."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from schemas.errors import TrainerError, WeightsDamaged
from slime_events.core.training.datums import Beginning
from slime_events.core.training.train_batch import StoredVersion, TrainBatch
from slime_events.loop.training.past_versions import NO_PAST, PastVersions
from storage.weights.whole_copies import whole_folder

Find = Callable[[int], StoredVersion | None]
"""Returns a version with the folder of its weights; None if the weights are gone."""


class PastWeights:
    """Finds stored weights of earlier versions. first: the run's first version."""

    def __init__(self, rule: PastVersions, first: int, find: Find) -> None:
        self._rule, self._first, self._find = rule, first, find

    @property
    def is_needed(self) -> bool:
        """Whether any step needs a version besides its own."""
        return self._rule != NO_PAST

    def needed_at(self, version: int) -> frozenset[int]:
        """Return the earlier versions that a trainer may need if it continues from this version."""
        return self._rule.before(version, self._first)

    def lacking(self, version: int) -> str | None:
        """Return why no trainer can continue from a version; None if it is possible."""
        gone = [str(past) for past in sorted(self.needed_at(version)) if self._find(past) is None]
        return f"the steps after it need the weights of version {', '.join(gone)}, which are gone" if gone else None

    def to_store(self, version: int) -> bool:
        """Return whether the version must be written again because later steps need it and it is gone."""
        return self.is_needed and self._find(version) is None

    def fill(self, batch: TrainBatch) -> TrainBatch:
        """Return the batch with the weights that it needs. Raises TrainerError if weights are gone."""
        if batch.commanded is not None and isinstance(beginning := batch.commanded.update, Beginning):
            return replace(batch, commanded=replace(batch.commanded, update=self._placed(batch.step, beginning)))
        if not self.is_needed:
            return batch
        reference = self._rule.reference(batch.step, self._first)
        old = tuple(self._existing(batch.step, self._rule.old(batch)))
        return replace(
            batch,
            reference=None if reference is None else next(self._existing(batch.step, [reference])),
            old=old,
        )

    def _placed(self, step: int, beginning: Beginning) -> Beginning:
        """Return the beginning with the folders of its weights and checkpoint."""
        if beginning.version is None:
            return beginning
        (stored,) = self._existing(step, [beginning.version])
        if beginning.optimizer and not stored.checkpoint:
            raise TrainerError(f"step {step} begins with the checkpoint of version {stored.version}, which is gone")
        return replace(beginning, folder=stored.folder, checkpoint=stored.checkpoint)

    def _existing(self, step: int, versions: list[int]) -> Iterator[StoredVersion]:
        for version in versions:
            stored = self._find(version)
            try:
                whole = whole_folder(stored.folder) if stored is not None else ""
            except WeightsDamaged as error:
                raise TrainerError(f"step {step} needs the weights of version {version}: {error}") from error
            if stored is None:
                raise TrainerError(
                    f"step {step} needs the weights of version {version} besides its own, but they are gone: restore "
                    "their folder from a copy, or continue from an older checkpoint"
                )
            yield replace(stored, folder=whole)
