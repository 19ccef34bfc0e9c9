"""`export_weights`: write a weight version of a run as a whole Hugging Face folder."""

from __future__ import annotations

import asyncio
import contextlib

from schemas.errors import RunNotFound, WeightsDamaged
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from schemas.weights import WeightsPublished
from slime_events.core.run.places import readable_weights
from slime_events.core.run.run_reader import OpenedRun
from storage.folders.places import is_remote, local_path
from storage.weights.copies import copy_version
from storage.weights.manifest import WeightManifest
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify


async def export_weights(opened: OpenedRun, version: int, target: str) -> WeightManifest:
    """Write a version to the folder `target`, and return its manifest. Every byte has the digest of the log.

    Raises RunNotFound if the run has no such version, WeightsDamaged if its files are gone or damaged, NoSpace,
    StoreUnavailable.
    """
    log = opened.log
    published = await log.last(of_type(log.run, "weights.published", str(version)))
    committed = await log.last(of_type(log.run, "step.committed", str(version - 1))) if version > 0 else None
    digest, url = "", ""
    if published is not None and isinstance(event := published.envelope.event, WeightsPublished):
        digest, url = event.digest, event.url
    elif committed is not None and isinstance(step := committed.envelope.event, StepCommitted):
        digest = step.weights_digest
    if not digest:
        raise RunNotFound(
            f"run {log.run} has no weight version {version}: `slime-events show {log.run}` lists its steps"
        )
    folder = _stored(opened, version, digest, url)
    await asyncio.to_thread(copy_version, folder, target)
    return await asyncio.to_thread(verify, target, digest)


def _stored(opened: OpenedRun, version: int, digest: str, url: str) -> str:
    if own := readable_weights(opened.settings.run, opened.folder):
        with contextlib.suppress(WeightsDamaged):
            return WeightStore(own).folder(version, digest)
    if url and not is_remote(url) and local_path(url).is_dir():  # a URL only if the settings name its place
        return url
    raise WeightsDamaged(
        f"weight version {version} of run {opened.run} is gone: `slime-events retrain {opened.run} --save-version "
        f"{version} --out DIR` trains it again"
    )
