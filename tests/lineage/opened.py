"""Opened runs for these tests: on the in-memory log, and archived so that a branch finds its parent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from schemas.event import Event
from schemas.runs import Branched
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.run.run_settings import settings_in_force
from tests import made
from tests.cli import small_run


async def opened(log_events: Sequence[Event], run: str = small_run.RUN, where: str = "here") -> OpenedRun:
    """A run whose log says this."""
    return made.opened(await made.log(*log_events, run=run), settings_in_force(log_events), where)


def with_algorithm(run: OpenedRun, **changes: object) -> OpenedRun:
    """Return the same run with another algorithm."""
    algorithm = msgspec.structs.replace(run.settings.algorithm, **changes)
    settings = msgspec.structs.replace(run.settings, algorithm=algorithm)
    return made.opened(run.log, settings, run.where)


async def small() -> OpenedRun:
    """The small run."""
    return made.opened(await small_run.small_run(), settings_in_force(small_run.events()))


async def archived_parent(tmp_path: Path) -> str:
    """The small run in an archive: what it is opened with."""
    log = await small_run.small_run()
    return made.archived(tmp_path, log.records)


def branch(where: str, *, version: int, position: int, follows: bool = False) -> list[Event]:
    """Return the first events of a run that continues the small one."""
    branched = Branched(
        run=small_run.RUN, where=where, position=position, version=version, weights_digest=f"d{version}",
        optimizer_digest=f"o{version}", follows=follows,
    )  # fmt: skip
    started = made.started(code_version="0.1.0", branched=branched)
    return [started, made.published(version, url="weights")]
