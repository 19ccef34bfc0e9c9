"""`audit_folder`, `audit_archive`: audit a run by its folder, or by its archive alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from schemas.errors import SlimeEventsError
from slime_events.analysis.audit.audit import Audit, audit
from slime_events.analysis.audit.ledger import Ledger, read_ledger
from slime_events.analysis.audit.recorded_rollouts import RecordedEnds, recorded_ends
from slime_events.analysis.audit.report import Report
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import branched_of, open_archive, open_run
from storage.archive.log import ArchivedLog
from storage.blobs import BlobStore
from storage.log import Readable
from storage.open_log import open_run_log
from storage.payloads import fetch

OnNote = Callable[[str], None]
"""Called with one sentence."""


def ignore(_: str) -> None:
    """Drop a note."""


async def audit_folder(folder: RunFolder, *, files: bool = True, on_note: OnNote = ignore) -> Report:
    """Audit the log of a run's folder, and with `files` its blobs and weight folders.

    on_note: called with a sentence about each check that is left out, because another run's log cannot be read.
    """
    name = folder.log_name()
    async with open_run_log(folder.path, name) as log:
        blobs = BlobStore(folder.blob_url()) if files else None
        read = None if blobs is None else lambda array: fetch(array, blobs)
        recorded, parent = await _recorded(log, on_note), await _followed(log, on_note)
        checks = Audit(name, fetch=read, weights=folder.weights_url(), files=files, parent=parent, recorded=recorded)
        return await audit(log.read_records(), checks)


async def audit_archive(where: str, *, files: bool = True, on_note: OnNote = ignore) -> Report:
    """Audit the archived log, and with `files` its blobs. The weights are in the run's folder, so they are not checked.

    `open_run` would raise for damage that belongs into the report. on_note: see `audit_folder`.
    """
    reader = open_archive(where)
    log = ArchivedLog(reader, reader.run)

    read = (lambda array: fetch(array, reader.blobs)) if files else None
    recorded, parent = await _recorded(log, on_note), await _followed(log, on_note)
    return await audit(log.read_records(), Audit(reader.run, fetch=read, files=False, parent=parent, recorded=recorded))


async def _recorded(log: Readable, on_note: OnNote) -> RecordedEnds | None:
    """Look up the reused rollouts in the logs of the runs that generated them; None if a log cannot be read."""
    try:
        return await recorded_ends(log)
    except SlimeEventsError as error:
        on_note(f"recorded rollouts are not checked: {error}")
        return None


async def _followed(log: Readable, on_note: OnNote) -> Ledger | None:
    """Read the ledger of the run whose rollouts a learner trains on; None for another run, or if that run is gone."""
    branched = None
    with contextlib.suppress(SlimeEventsError):  # damage, and a missing run.started, are in the report
        branched = await branched_of(log)
    if branched is None or not branched.follows:
        return None
    try:
        async with open_run(branched.where) as parent:
            return await read_ledger(parent.run, parent.log.read())
    except SlimeEventsError as error:
        on_note(f"the rollouts of its parent run are not checked: {error}")
        return None
