"""`samples_in_lineage`: everything that a weight version was trained on, from the first step of the first run on."""

from __future__ import annotations

from slime_events.analysis.lineage.event_index import Reading
from slime_events.analysis.model.ancestry import Past
from slime_events.core.run.run_reader import OpenedRun


async def samples_in_lineage(opened: OpenedRun, version: int) -> set[str]:
    """The ids of all samples of all steps that `version` comes of, across the joins of branches.

    Raises RunNotFound for a run that the lineage goes through and is gone, StorageError.
    """
    async with Past(opened) as past:
        batches = await Reading(past).sealed(range(version))
    return {sample for batch in batches.values() for sample in batch.samples}
