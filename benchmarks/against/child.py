"""Run one turn of a benchmark in a checkout: `child.py NAME FOLDER`, with the checkout as PYTHONPATH.

It runs as a file, in a Python that imports all other modules from the checkout, and uses only names that all checkouts
have: each checkout's `benchmarks` make the data, and `MOVED` has all places of moved names. The last line of its output
is JSON: for each figure the seconds of CPU and of the clock per unit of work.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

Seconds = tuple[float, float]
"""CPU seconds, including those of ended children, and seconds of the clock."""

RESCORE_STEPS, TABLE_STEPS, FOLD_STEPS, SIMULATED_STEPS, DEMO_STEPS = 400, 300, 250, 15, 12
FOLDS = 3
"""Number of folds of one log: the fastest counts."""
RUN = "long"

MOVED = {
    "open_run": ("slime_events.core.run.run_reader", "slime_events.opened_run"),
    "make_change": ("slime_events.analysis.rescore.change", "slime_events.rescore.change"),
    "rescore": ("slime_events.analysis.rescore.rescore", "slime_events.rescore.rescore"),
    "open_tables": ("slime_events.analysis.query", "slime_events.query"),
    "JetStreamLog": ("storage.jetstream.log", "storage.jetstream_log"),
    "NatsServer": ("storage.nats.server", "storage.nats_server"),
    "ArchivedLog": ("storage.archive.log", "storage.archived_log"),
    "ArchiveReader": ("storage.archive.reader", "storage.archive_reader"),
    "fold": ("tests.state.whole_log", "slime_events.state.fold"),
    "Script": ("tests.scripted_engine", "serve_apps.engines.scripted_engine"),
}
"""Modules that define or defined a name, the newest first."""


def named(name: str) -> Any:
    """Import a name from its module in this checkout."""
    for module in MOVED[name]:
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError:
            continue
    raise ImportError(f"this checkout has no {name} in {' or '.join(MOVED[name])}")


def used() -> Seconds:
    """Return the seconds of this process so far."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime, time.perf_counter()


def since(before: Seconds, units: int = 1) -> Seconds:
    """Return the seconds since `before` per unit of work."""
    cpu, clock = used()
    return (cpu - before[0]) / units, (clock - before[1]) / units


def rescore(folder: Path) -> dict[str, Seconds]:
    """Measure grading by a rule, per rollout, including imports and the start of the grading processes.

    Imports are included because checkouts import at different times.
    """
    if not (folder / RUN).exists():
        writes = "import sys; from pathlib import Path; from benchmarks.rescore import write_archive as write; "
        call = f"{writes}write(Path(sys.argv[1]), {RESCORE_STEPS})"
        if code := subprocess.run([sys.executable, "-P", "-c", call, str(folder)], check=False).returncode:
            sys.exit(code)  # the child has printed the reason
    before = used()
    open_run, make_change, again = named("open_run"), named("make_change"), named("rescore")

    async def rescore_all() -> Any:
        async with open_run(f"{folder}/{RUN}") as opened:
            return await again(opened, make_change(opened.settings))

    report = asyncio.run(rescore_all())
    return {"rescore, a rollout": since(before, report.samples.graded)}


def tables(folder: Path) -> dict[str, Seconds]:
    """Measure the first query over samples of an archive, which makes their tables, per event."""
    _filled(folder)
    query, open_tables = importlib.import_module("benchmarks.query").SAMPLES, named("open_tables")
    with open_tables(f"{folder}/{RUN}", cache=folder / f"tables-{os.getpid()}") as opened:
        before = used()
        opened.sql(query).rows()
        return {"first SQL tables, an event": since(before, _events(folder))}


def archive(folder: Path) -> dict[str, Seconds]:
    """Measure the fold of an archive, per event."""
    _filled(folder)
    log = named("ArchivedLog")(named("ArchiveReader")(str(folder), RUN), RUN)
    return {"fold of an archive, an event": asyncio.run(_fastest(lambda: named("fold")(log), _events(folder)))}


def fold(folder: Path) -> dict[str, Seconds]:
    """Measure the fold of a log on a server, per event, without the server's CPU."""
    fill_log = importlib.import_module("benchmarks.kept_log").fill_log

    async def live() -> Seconds:
        async with await named("NatsServer").start(folder / f"nats-{os.getpid()}") as server:
            log = await named("JetStreamLog").open(server.url, RUN)
            try:
                await fill_log(log, FOLD_STEPS)
                return await _fastest(lambda: named("fold")(log), await log.position())
            finally:
                await log.close()

    return {"fold of a live log, an event": asyncio.run(live())}


def control(folder: Path) -> dict[str, Seconds]:
    """Measure the control plane of a step: every role as a task over one log in memory, with a scripted engine.

    The grader gets no tokens, as in a run whose graders use texts. The fastest of three runs counts: the first run
    imports late modules. Earlier objects are frozen for the garbage collector, as in the process of a role.
    """
    simulation, script = importlib.import_module("tests.simulation.simulation"), named("Script")
    grader = importlib.import_module("actors.grader").Grader
    begin = grader.__init__

    def without_tokens(self: Any, *parts: Any, **settings: Any) -> None:
        settings.pop("fetch", None)
        begin(self, *parts, **settings)

    grader.__init__ = without_tokens

    async def steps(place: Path) -> Seconds:
        plan = simulation.make_plan(steps=SIMULATED_STEPS, groups=8, samples=4)
        place.mkdir()
        async with simulation.Simulation(place, plan) as run:
            before = used()
            run.start_engine(script(chunk=8))
            await run.finish()
            return since(before, SIMULATED_STEPS)

    gc.freeze()
    taken = [asyncio.run(steps(folder / f"simulation-{os.getpid()}-{turn}")) for turn in range(3)]
    return {"control plane of a simulated step": least(taken)}


def step(folder: Path) -> dict[str, Seconds]:
    """Measure a step of the demo at staleness 0, and the time between its parts, with real processes and by the clock.

    `benchmarks.control_plane` cannot compare checkouts: in newer ones it includes the time in which an engine checks
    the files of new weights.
    """
    run = importlib.import_module("benchmarks.demo_run").demo_run(0, DEMO_STEPS)
    roles = importlib.import_module("benchmarks.control_plane").CONTROL_ROLES
    cpu = sum(run.cpu.get(role, 0.0) for role in roles)
    log = named("ArchivedLog")(named("ArchiveReader")(str(run.archive.parent), run.archive.name), run.archive.name)
    return {"step of the demo": (sum(run.cpu.values()), run.seconds_per_step)} | {
        span: (cpu, seconds) for span, seconds in asyncio.run(_spans(log)).items()
    }


async def _spans(log: Any) -> dict[str, float]:
    """Return the median seconds between the parts of a step."""
    at, spans = dict[str, int](), defaultdict[str, list[float]](list)
    async for recorded in log.read():
        envelope = recorded.envelope
        kind, now = envelope.type, envelope.at
        if kind == "step.committed" and "batch.sealed" in at:
            begun = now - round(sum(envelope.event.seconds.values()) * 1e9)
            spans["demo: last reward to batch"].append((at["batch.sealed"] - at["reward.assigned"]) / 1e9)
            spans["demo: batch to its training"].append((begun - at["batch.sealed"]) / 1e9)
        if kind == "weights.activated" and "step.committed" in at:
            spans["demo: step to its weights in an engine"].append((now - at["step.committed"]) / 1e9)
        at[kind] = now
    return {span: statistics.median(seconds) for span, seconds in spans.items()}


TURNS: dict[str, Callable[[Path], dict[str, Seconds]]] = {
    turn.__name__: turn for turn in (rescore, tables, archive, fold, control, step)
}


def _filled(folder: Path) -> None:
    if not (folder / RUN).exists():
        importlib.import_module("benchmarks.kept_log").fill_archive(str(folder), TABLE_STEPS)


def _events(folder: Path) -> int:
    return int(named("ArchiveReader")(str(folder), RUN).last)


async def _fastest(call: Callable[[], Awaitable[object]], units: int) -> Seconds:
    taken = []
    for _ in range(FOLDS):
        before = used()
        await call()
        taken.append(since(before, units))
    return least(taken)


def least(taken: Iterable[Seconds]) -> Seconds:
    """Return the least CPU seconds and the least seconds of the clock."""
    cpu, clock = zip(*taken, strict=True)
    return min(cpu), min(clock)


if __name__ == "__main__":
    print(json.dumps(TURNS[sys.argv[1]](Path(sys.argv[2]))))
