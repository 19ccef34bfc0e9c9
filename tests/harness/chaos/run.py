"""`chaos`: one run, struck by a schedule, to its end; its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.harness.chaos.aftermath import read_back
from tests.harness.chaos.family import Family
from tests.harness.chaos.killer import Killer, NoRecovery, Struck
from tests.harness.chaos.reference import Reference
from tests.harness.chaos.report import report
from tests.harness.chaos.schedule import Strike
from tests.harness.chaos.servers import Cluster, OwnServer, Servers
from tests.harness.chaos.settings import RUN, ChaosSettings
from tests.harness.chaos.supervisor import RunBroke, Supervisor
from tests.harness.chaos.watcher import Sighting, Watcher

LEAVE_S = 70.0
"""For the processes of a run whose command has ended well, and for those that Ray leaves behind a killed driver: two
agents try for a minute to tell the rest of that Ray, which is gone, that their raylet is.
"""


class Commands(Protocol):
    """Commands of the run `RUN`."""

    def start(self, runs_dir: Path, flags_of_servers: Sequence[str] = ()) -> list[str]:
        """Return the command of a new run."""

    def resume(self, runs_dir: Path) -> list[str]:
        """Return the command that resumes it."""


@dataclass(frozen=True, slots=True)
class Survived:
    """Kills of a run and the events seen meanwhile. failure: why it did not come to its end; None if it did."""

    struck: Sequence[Struck]
    sightings: Sequence[Sighting]
    seconds: float
    starts: int
    failure: str | None
    left_behind: Sequence[str]


def chaos(
    settings: ChaosSettings,
    strikes: Sequence[Strike],
    expected: Reference,
    *,
    clustered: bool = False,
    keep: bool = False,
) -> dict[str, Any]:
    """Strike a run in a temporary folder, which stays if a promise was broken, or with `keep`."""
    folder = Path(tempfile.mkdtemp(prefix="slime-chaos-"))
    facts: dict[str, Any] = {"steps": settings.steps, "max_staleness": settings.max_staleness, "clustered": clustered}
    with log_on(folder, clustered=clustered) as servers:
        survived = survive(settings, strikes, folder, servers)
        facts |= _judged(survived, settings, folder, expected, kills=len(strikes))
    facts |= {"seconds": round(survived.seconds, 1), "seconds_without_kills": round(expected.seconds, 1)}
    facts |= {"starts_of_the_driver": survived.starts}
    if facts["broken"] or keep:
        facts["folder"] = str(folder)
    else:
        shutil.rmtree(folder)
    return facts


def _judged(
    survived: Survived, settings: ChaosSettings, folder: Path, expected: Reference, *, kills: int
) -> dict[str, Any]:
    synchronous = settings.max_staleness == 0
    try:
        after = read_back(folder / RUN)
        facts = report(survived.struck, survived.sightings, after, expected, kills=kills, synchronous=synchronous)
    except Exception as error:
        facts = {"kills": len(survived.struck), "broken": [f"the run cannot be read: {type(error).__name__}: {error}"]}
    if survived.failure:
        facts["broken"].insert(0, survived.failure)
    if survived.left_behind:
        facts["broken"].append(f"processes left behind: {list(survived.left_behind)}")
    return facts


@contextlib.contextmanager
def log_on(folder: Path, *, clustered: bool) -> Iterator[Servers]:
    """Yield the servers of the run's log; end those that are not the run's own."""
    servers: Servers = asyncio.run(Cluster.start(folder / "cluster")) if clustered else OwnServer(folder / RUN)
    try:
        yield servers
    finally:
        asyncio.run(servers.stop())


def survive(settings: Commands, strikes: Sequence[Strike], folder: Path, servers: Servers) -> Survived:
    """Run the run and its killer side by side, until the run is over or one of them fails; leave no process."""
    family, watcher = Family(), Watcher(RUN, servers.url)
    family.adopt_orphans()
    supervisor = Supervisor(settings.start(folder, servers.flags), settings.resume(folder), folder / "output")
    killer = Killer(family, watcher, supervisor, servers)
    begun, failure = time.monotonic(), None
    try:
        beside = [servers.mend(), watcher.follow(), killer.carry_out(strikes)]
        running = supervisor.run(lambda: family.reap(leave=supervisor.pid))
        try:
            asyncio.run(while_running(running, beside))
        except (NoRecovery, RunBroke) as error:
            failure = f"{error} (after {[f'{strike.kind} at {strike.position}' for strike in killer.struck[-3:]]})"
        seconds = time.monotonic() - begun
        left = [] if failure else family.left(LEAVE_S, servers.beside())
    finally:
        family.end(servers.beside())
    return Survived(killer.struck, watcher.sightings, seconds, supervisor.starts, failure, left)


async def while_running(running: Coroutine[Any, Any, None], beside: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Wait until the command has ended well, or one of them raises."""
    run = asyncio.create_task(running)
    pending = {run, *map(asyncio.create_task, beside)}
    try:
        while run in pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
