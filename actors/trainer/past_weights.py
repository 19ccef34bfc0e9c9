"""`PastWeights`: gives a batch the stored weights that it needs beside those of the ranks; see `PastVersions`."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from schemas.errors import TrainerError
from slime_events.core.datums import Beginning
from slime_events.core.train_batch import StoredVersion, TrainBatch
from slime_events.loop.training.past_versions import NO_PAST, PastVersions

Find = Callable[[int], StoredVersion | None]
"""A version where its weights lie; None where they are gone."""


class PastWeights:
    """first: the run's first version."""

    def __init__(self, rule: PastVersions, first: int, find: Find) -> None:
        self._rule, self._first, self._find = rule, first, find

    @property
    def is_needed(self) -> bool:
        """Whether any step needs another version than its own."""
        return self._rule != NO_PAST

    def needed_at(self, version: int) -> frozenset[int]:
        """The versions before it that whoever goes on from it may need."""
        return self._rule.before(version, self._first)

    def lacking(self, version: int) -> str | None:
        """Why nobody can go on from a version; None where it is possible."""
        gone = [str(one) for one in sorted(self.needed_at(version)) if self._find(one) is None]
        return f"the steps after it need the weights of version {', '.join(gone)}, which are gone" if gone else None

    def to_store(self, version: int) -> bool:
        """Whether the version has to be written, as later steps need it and it is gone."""
        return self.is_needed and self._find(version) is None

    def given(self, batch: TrainBatch) -> TrainBatch:
        """The batch with what it needs. Raises TrainerError for weights that are gone."""
        if batch.commanded is not None and isinstance(beginning := batch.commanded.update, Beginning):
            return replace(batch, commanded=replace(batch.commanded, update=self._placed(batch.step, beginning)))
        if not self.is_needed:
            return batch
        reference = self._rule.reference(batch.step, self._first)
        old = tuple(self._found(batch.step, self._rule.old(batch)))
        return replace(
            batch,
            reference=None if reference is None else next(self._found(batch.step, [reference])),
            old=old,
        )

    def _placed(self, step: int, beginning: Beginning) -> Beginning:
        """With the places of its files."""
        if beginning.version is None:
            return beginning
        (stored,) = self._found(step, [beginning.version])
        if beginning.optimizer and not stored.checkpoint:
            raise TrainerError(f"step {step} begins with the checkpoint of version {stored.version}, which is gone")
        return replace(beginning, folder=stored.folder, checkpoint=stored.checkpoint)

    def _found(self, step: int, versions: list[int]) -> Iterator[StoredVersion]:
        for version in versions:
            stored = self._find(version)
            if stored is None:
                raise TrainerError(
                    f"step {step} needs the weights of version {version} beside its own, and they are gone: "
                    "put their folder back from a copy, or go on from an older checkpoint"
                )
            yield stored
