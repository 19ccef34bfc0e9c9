"""`samples_in_lineage`: everything that a weight version was trained on, from the first step of the first run on."""

from __future__ import annotations

from slime_events.lineage.past import Past
from slime_events.lineage.reading import Reading
from slime_events.opened_run import OpenedRun


async def samples_in_lineage(opened: OpenedRun, version: int) -> set[str]:
    """The ids of all samples of all steps that `version` comes of, across the joins of branches.

    Raises RunNotFound for a run that the lineage goes through and is gone, StorageError.
    """
    async with Past(opened) as past:
        batches = await Reading(past).sealed(range(version))
    return {sample for batch in batches.values() for sample in batch.samples}
