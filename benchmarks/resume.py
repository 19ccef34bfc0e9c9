"""Measure a resumed conductor's first decision on a log of 10^6 events, and the fold and audit of such a log.

The log of 4,700 steps is synthetic, on a real server, and its snapshot is 2,000 events old, which is the maximum. The
start of a process is not included.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from actors.conductor import Conductor
from benchmarks.figure import Better, Figure
from benchmarks.long_log import PER_STEP, long_log, long_plan, sealed, trained, undecided
from schemas.arrays import unpack
from schemas.envelope import enclose
from schemas.event import Event
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.analysis.audit.audit import Audit, audit
from slime_events.analysis.audit.ledger import Rules
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.data import DataSettings
from slime_events.core.run.participant import Participant
from slime_events.core.state.apply import apply
from slime_events.core.state.keeper import EVERY, StateKeeper
from slime_events.core.state.run import RunState
from slime_events.core.state.snapshot import Snapshots, encode_snapshot
from slime_events.loop.conductor.cycle import Policy
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.plugins.filters.decide import run_filter
from slime_events.plugins.sample_view import group_samples
from storage.jetstream.log import JetStreamLog
from storage.jetstream.stream import DUPLICATE_WINDOW_S
from storage.log import MAX_BATCH, Append
from storage.nats.server import NatsServer

EVENTS = 1_000_000
RUN = "bench"
DEADLINE_S = 600.0


def measure(events: int = EVENTS) -> list[Figure]:
    """Measure with a real server in this process, without the start of a process and its imports."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder), max(1, events // PER_STEP)))


async def _measure(folder: Path, steps: int) -> list[Figure]:
    restarted = await _fill_and_kill(folder / "nats", steps)
    async with await NatsServer.start(folder / "nats") as server:
        log = await JetStreamLog.open(server.url, RUN)
        try:
            count = await log.position()
            fold = await _fold(log, Snapshots(folder / "snapshots"), snapshot_at=max(1, count - EVERY))
            with_snapshot = await _first_decision(log, steps, Snapshots(folder / "snapshots"))
            await _fill(log, [*sealed(steps), *trained(steps), *undecided(steps + 1)])
            without = await _first_decision(log, steps + 1, None)
            audited = await _audit(log, steps)
        finally:
            await log.close()
    note = f"{count} events on a NATS server; from the conductor's start to its first append"
    return [
        Figure(
            name="resume with a snapshot",
            value=with_snapshot,
            unit="s",
            target=5.0,
            better=Better.LOWER,
            note=f"{note}; the snapshot is {EVERY} events old, the oldest it can be",
        ),
        Figure(
            name="resume without one",
            value=without,
            unit="s",
            target=10.0,
            better=Better.LOWER,
            note=f"{note}; without an archive too",
        ),
        Figure(
            name="NATS on such a log after kill -9",
            value=restarted,
            unit="s",
            target=3.0,
            better=Better.LOWER,
            note=f"all events appended just before; at its start the server reads the ids of {DUPLICATE_WINDOW_S} s, "
            "and builds its index again",
        ),
        Figure(name="fold from position 1", value=count / fold, unit="events/s", target=50_000.0, note="with reading"),
        Figure(name="audit from position 1", value=count / audited, unit="events/s", note="with reading, all checks"),
    ]


async def _fill_and_kill(folder: Path, steps: int) -> float:
    """Fill a log, kill its server, and return the seconds from the start of the next server to its reply."""
    server = await NatsServer.start(folder)
    log = await JetStreamLog.open(server.url, RUN)
    await _fill(log, long_log(steps))
    count = await log.position()
    await log.close()
    server.signal(signal.SIGKILL)
    await server.stop()
    begun = time.perf_counter()
    async with await NatsServer.start(folder) as server:
        log = await JetStreamLog.open(server.url, RUN, create=False)
        position = await log.position()
        seconds = time.perf_counter() - begun
        await log.close()
    if position != count:
        raise AssertionError(f"{count - position} acked events were lost")
    return seconds


async def _fill(log: JetStreamLog, events: Iterable[Event]) -> None:
    """Append events in the largest batches."""
    left = iter(events)
    while batch := list(islice(left, MAX_BATCH)):
        await log.append([Append(enclose(RUN, event, at=time.time_ns(), producer="bench")) for event in batch])


async def _fold(log: JetStreamLog, snapshots: Snapshots, *, snapshot_at: int) -> float:
    """Return the seconds of a fold, with reading and decoding. Writes a snapshot at one position."""
    state, before = RunState(run=RUN), ""
    begun, paused = time.perf_counter(), 0.0
    async for recorded in log.read():
        before = state.chain
        apply(state, recorded)
        if recorded.position == snapshot_at:
            begins = time.perf_counter()
            snapshots.write(snapshot_at, encode_snapshot(state, before))
            paused = time.perf_counter() - begins
    return time.perf_counter() - begun - paused


async def _first_decision(log: JetStreamLog, steps: int, snapshots: Snapshots | None) -> float:
    """Return the seconds from the start of a conductor until the log has a new event."""
    end = await log.position()
    conductor = Conductor(
        Participant(log, "conductor"),
        Policy(
            long_plan(steps + 10),
            lambda group: run_filter(None, None, group_samples(group)),
            lambda rewards, sizes: normalize_rewards(rewards, sizes, AlgorithmSettings()),
        ),
        PromptFeed(None, {}, DataSettings(), _NoTokenizer()),
        _as_it_is,
        deadline_s=DEADLINE_S,
        keeper=StateKeeper(snapshots),
    )
    begun = time.perf_counter()
    conducting = asyncio.create_task(conductor.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            async for _ in log.read(end + 1, follow=True):
                return time.perf_counter() - begun
    finally:
        conducting.cancel()
        await asyncio.gather(conducting, return_exceptions=True)
    raise AssertionError("a log that is followed does not end")


async def _audit(log: JetStreamLog, steps: int) -> float:
    auditor = Audit(RUN, rules=Rules(long_plan(steps + 10), AlgorithmSettings()), fetch=unpack, files=False)
    begun = time.perf_counter()
    report = await audit(log.read(), auditor)
    seconds = time.perf_counter() - begun
    if not report.clean:
        raise AssertionError(f"the generated log is not clean: {report.findings[0]}")
    return seconds


async def _as_it_is(event: Event) -> Event:
    return event


class _NoTokenizer:
    """Tokenizer of a feed without prompts."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        raise NotImplementedError

    def apply_chat_template(self, conversation: object, **kwargs: object) -> str:
        raise NotImplementedError
