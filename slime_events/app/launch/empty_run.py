"""What becomes of a new run that fails before anything was made in it: its name is free again.

Nothing was made where no rollout is complete, no group rejected (its reason is to be looked at), no step committed, and
no prompt has come from outside. Process logs are kept beside the runs: they may be the only place that says more of the
reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

from schemas.errors import SlimeEventsError
from schemas.ids import INBOX
from schemas.prompts import PromptSubmitted
from schemas.subjects import of_type
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_folder import RunFolder
from storage.archive.reader import ArchiveReader
from storage.jetstream.log import JetStreamLog
from storage.object_store import ObjectFolder

FAILED = ".failed"
"""Folder in that of all runs, with a folder for each run that came to nothing: its process logs, of the last time."""
MADE = ("rollout.completed", "group.rejected", "step.committed")


async def came_to_nothing(log: JetStreamLog) -> bool:
    """Whether nothing was made in it. False where the log does not say."""
    try:
        for kind in MADE:
            if await log.last(of_type(log.run, kind)) is not None:
                return False
        async for recorded in log.read(1, of_type(log.run, "prompt.submitted")):
            event = recorded.envelope.event
            if isinstance(event, PromptSubmitted) and event.dataset == INBOX:
                return False
    except SlimeEventsError:
        return False
    return True


async def clear(log: JetStreamLog, settings: TrainSettings) -> None:
    """Remove what such a run has outside of its folder: its archive, and its log on a server of somebody else."""
    url, run = settings.run.archive_url, settings.run
    with contextlib.suppress(SlimeEventsError):  # what is left then is of no use, and harms nobody
        if url and await asyncio.to_thread(_first_of, url, log.run) == await _first(log):
            await asyncio.to_thread(ObjectFolder(f"{url.rstrip('/')}/{log.run}").remove)
        if run.nats_url:
            await log.remove()


def discard(folder: RunFolder) -> Path | None:
    """Remove what a launcher has put into the run's folder; where the process logs lie now, if they say anything.

    What else lies in the folder stays, and then the folder does.
    """
    kept = _keep_logs(folder)
    folder.remove()
    return kept


async def _first(log: JetStreamLog) -> bytes:
    """The bytes of run.started, which has the same id in every run of that name."""
    async for recorded in log.read():
        return recorded.data
    return b""


def _first_of(url: str, run: str) -> bytes:
    first = next(ArchiveReader(url, run).read(), None)
    return first.data if first else b""


def _keep_logs(folder: RunFolder) -> Path | None:
    if not folder.logs.is_dir() or not any(file.stat().st_size for file in folder.logs.iterdir()):
        return None
    kept = folder.path.parent / FAILED / folder.run
    shutil.rmtree(kept, ignore_errors=True)
    kept.parent.mkdir(exist_ok=True)
    shutil.move(folder.logs, kept)
    return kept
