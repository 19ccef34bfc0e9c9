"""`chaos`: one run, struck by a schedule, to its end; what came of it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.aftermath import read_back
from tests.chaos.family import Family
from tests.chaos.killer import Killer, NoRecovery, Struck
from tests.chaos.reference import Reference
from tests.chaos.report import report
from tests.chaos.schedule import Strike
from tests.chaos.settings import RUN, ChaosSettings
from tests.chaos.supervisor import RunBroke, Supervisor
from tests.chaos.watcher import Sighting, Watcher

LEAVE_S = 10.0
"""For the processes of a run whose command has ended well."""


@dataclass(frozen=True, slots=True)
class Survived:
    """What was done to a run and seen of it. failure: why it did not come to its end; None where it did."""

    struck: Sequence[Struck]
    sightings: Sequence[Sighting]
    seconds: float
    starts: int
    failure: str | None
    left_behind: Sequence[str]


def chaos(
    settings: ChaosSettings, strikes: Sequence[Strike], expected: Reference, *, keep: bool = False
) -> dict[str, Any]:
    """Strike a run in a temporary folder, which stays where a promise was broken, or to `keep` it."""
    folder = Path(tempfile.mkdtemp(prefix="slime-chaos-"))
    survived = survive(settings, strikes, folder)
    facts: dict[str, Any] = {"steps": settings.steps, "max_staleness": settings.max_staleness}
    try:
        after = read_back(folder / RUN)
        facts |= report(
            survived.struck,
            survived.sightings,
            after,
            expected,
            kills=len(strikes),
            synchronous=settings.max_staleness == 0,
        )
    except Exception as error:
        facts |= {"kills": len(survived.struck), "broken": [f"the run cannot be read: {type(error).__name__}: {error}"]}
    facts |= {"seconds": round(survived.seconds, 1), "seconds_without_kills": round(expected.seconds, 1)}
    facts |= {"starts_of_the_driver": survived.starts}
    if survived.failure:
        facts["broken"].insert(0, survived.failure)
    if survived.left_behind:
        facts["broken"].append(f"processes left behind: {list(survived.left_behind)}")
    if facts["broken"] or keep:
        facts["folder"] = str(folder)
    else:
        shutil.rmtree(folder)
    return facts


def survive(settings: ChaosSettings, strikes: Sequence[Strike], folder: Path) -> Survived:
    """The run and its killer side by side, until the run is over or one of them gives up; nothing of it is left."""
    family, watcher = Family(), Watcher(folder / RUN)
    family.adopt_orphans()
    supervisor = Supervisor(settings.start(folder), settings.resume(folder), folder / "output")
    killer = Killer(family, watcher, supervisor)
    begun, failure, left = time.monotonic(), None, []
    try:
        asyncio.run(_side_by_side(family, watcher, supervisor, killer, strikes))
        left = family.left(LEAVE_S)
    except (NoRecovery, RunBroke) as error:
        failure = f"{error} (after {[f'{one.kind} at {one.position}' for one in killer.struck[-3:]]})"
    finally:
        seconds = time.monotonic() - begun
        family.end()
    return Survived(killer.struck, watcher.sightings, seconds, supervisor.starts, failure, left)


async def _side_by_side(
    family: Family, watcher: Watcher, supervisor: Supervisor, killer: Killer, strikes: Sequence[Strike]
) -> None:
    """Until the command has ended well, or one of them raises."""
    following = asyncio.create_task(watcher.follow())
    killing = asyncio.create_task(killer.carry_out(strikes))
    running = asyncio.create_task(supervisor.run(lambda: family.reap(leave=supervisor.pid)))
    pending: set[asyncio.Task[None]] = {following, killing, running}
    try:
        while running in pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
