"""Measure the seconds from kill -9 of a process of a real run to the first new token in its log, by kind of process.

A small real run has 24 kills (docs/testing.md). The target is for processes without a model.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.figure import Better, Figure
from schemas.errors import TrainerError
from schemas.event import Event
from schemas.workers import WorkerJoined
from tests.harness.chaos.aftermath import read_back
from tests.harness.chaos.measures import BACK, Recovery, recoveries
from tests.harness.chaos.run import log_on, survive
from tests.harness.chaos.schedule import USUAL, Kind, schedule
from tests.harness.chaos.settings import RUN, ChaosSettings

KILLS = 24
SEED = 11
STEPS = 30
TARGET_S = 5.0
AT_ONCE = (Kind.CONDUCTOR, Kind.GRADER, Kind.ARCHIVIST, Kind.NATS)
"""Processes without a model, which must be back within TARGET_S. The others take the time of their start."""
STRUCK = tuple(kind for kind in USUAL if kind is not Kind.GRADER_CHILD)


def measure(kills: int = KILLS, steps: int = STEPS) -> list[Figure]:
    """Measure in one run. Each kind is killed about equally often, after the run has recovered from the kill before."""
    strikes = [replace(strike, waits=True) for strike in schedule(kills, SEED, steps, STRUCK)]
    with tempfile.TemporaryDirectory() as name, log_on(Path(name), clustered=False) as servers:
        survived = survive(ChaosSettings(steps=steps), strikes, Path(name), servers)
        if survived.failure:
            raise TrainerError(f"the run of the benchmark did not survive: {survived.failure}")
        events = read_back(Path(name) / RUN).events
    kills = recoveries(survived.struck, survived.sightings)
    return [figure_of(kind, [kill for kill in kills if kill.struck.kind is kind], events) for kind in STRUCK]


def figure_of(kind: Kind, kills: Sequence[Recovery], events: Sequence[Event]) -> Figure:
    """Return the figure of one kind. kills: kills of this kind. events: events of the run."""
    seconds = [kill.first_token_s for kill in kills if kill.first_token_s is not None]
    return Figure(
        name=f"kill -9 of the {kind} to the first new token",
        value=statistics.median(seconds) if seconds else None,
        unit="s",
        target=TARGET_S if kind in AT_ONCE else None,
        better=Better.LOWER,
        note=f"worst of {len(seconds)}: {max(seconds, default=0.0):.1f}{_back(kind, kills, events)}",
    )


def _back(kind: Kind, kills: Sequence[Recovery], events: Sequence[Event]) -> str:
    """Return the time until the successor joined, and the parts of its start."""
    seconds = [kill.back_s for kill in kills if kill.back_s is not None]
    if kind not in BACK or not seconds:
        return ""
    starts = [event.seconds for event in events if isinstance(event, WorkerJoined) and event.role == BACK[kind]]
    names = {part for parts in starts for part in parts}
    parts = {name: statistics.median(parts[name] for parts in starts if name in parts) for name in sorted(names)}
    start = ", ".join(f"{part} {value:.1f}" for part, value in parts.items())
    return f"; {BACK[kind]} back in {statistics.median(seconds):.1f}" + (
        f", of which its start: {start}" if start else ""
    )
