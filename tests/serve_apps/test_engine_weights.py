"""Which weights an engine runs next, where an evaluation and training want different ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import WeightsDamaged
from schemas.event import Purpose
from schemas.rollouts import RolloutRequested
from schemas.subjects import of_type
from schemas.weights import WeightsActivated
from serve_apps.engines.engine_weights import PATIENCE, Choice, Claim, EngineWeights, choose_version
from slime_events.core.run.participant import Participant
from storage.cancellation import end_all
from storage.group_commit import GroupCommit
from storage.jetstream.log import JetStreamLog
from storage.log import EventLog, Recorded, Subjects, append_all, once
from storage.memory_log import MemoryLog
from storage.nats.server import NatsServer
from storage.weights.store import WeightStore
from tests import made
from tests.scripted_engine import ScriptedEngine
from tests.simulation.parts import Line

HOLD_S = 2.0


def choose(
    current: int, published: int, *claims: Claim, now: float = 100.0, since: float = 0.0, hold_s: float = HOLD_S
) -> Choice:
    return choose_version(current, published, claims, now=now, since=since, hold_s=hold_s)


def test_what_a_claim_accepts() -> None:
    training, evaluation = Claim(3), Claim(3, 3)
    assert [training.accepts(version) for version in (2, 3, 9)] == [False, True, True]
    assert [evaluation.accepts(version) for version in (2, 3, 4)] == [False, True, False]


def test_without_evaluations_the_newest_runs() -> None:
    assert choose(-1, -1) == Choice(-1)
    assert choose(-1, 0) == Choice(0)
    assert choose(3, 4, Claim(3), Claim(4, None, 99.0)) == Choice(4)
    assert choose(4, 4, Claim(3)) == Choice(4)


def test_an_evaluation_under_way_is_finished_before_newer_weights_that_nobody_waits_for() -> None:
    assert choose(3, 4, Claim(3, 3)) == Choice(3)
    assert choose(3, 4, Claim(3, 3), Claim(2)) == Choice(3), "what trains on older weights keeps them meanwhile"


def test_it_keeps_the_engine_for_so_long_once_training_waits() -> None:
    evaluation = Claim(3, 3)
    assert choose(3, 4, evaluation, Claim(4, None, 99.5)) == Choice(3, 1.5)
    assert choose(3, 4, evaluation, Claim(4, None, 98.0)) == Choice(4)
    assert choose(3, 4, evaluation, Claim(4, None, 98.0), Claim(4, None, 99.5)) == Choice(4), "since the first waits"
    assert choose(3, 4, evaluation, Claim(4, None, 90.0), since=99.0) == Choice(3, 1.0), "or since it has the engine"


def test_a_paused_one_goes_on_while_nothing_else_is_to_be_made() -> None:
    assert choose(4, 4, Claim(3, 3, 99.9)) == Choice(3)
    assert choose(4, 4, Claim(3, 3, 99.9), Claim(2, 2, 99.0)) == Choice(2), "the one that has waited longest"
    left = PATIENCE * HOLD_S - 1.0
    assert choose(4, 4, Claim(3, 3, 99.0), Claim(4)) == Choice(4, left)
    assert choose(4, 4, Claim(3, 3, 99.0), Claim(4, 4)) == Choice(4, left), "another evaluation is something else"


def test_a_paused_one_does_not_wait_for_ever() -> None:
    waited = PATIENCE * HOLD_S
    assert choose(4, 4, Claim(3, 3, 100.0 - waited), Claim(4)) == Choice(3)
    assert choose(3, 4, Claim(3, 3), Claim(4, None, 100.0), since=100.0) == Choice(3, HOLD_S)


def test_an_evaluation_of_weights_to_come_moves_nothing() -> None:
    assert choose(4, 4, Claim(5, 5, 1.0)) == Choice(4)


versions = st.integers(0, 6)
claims = st.lists(
    st.builds(
        lambda oldest, exact, waits: Claim(oldest, oldest if exact else None, waits),
        versions,
        st.booleans(),
        st.none() | st.floats(0, 100),
    ),
    max_size=6,
)


@given(versions, versions, claims, st.floats(0, 100), st.floats(0.1, 10))
def test_what_is_chosen_is_wanted(
    current: int, published: int, wishes: list[Claim], since: float, hold_s: float
) -> None:
    """The version that runs, the newest, or one that a waiting evaluation is of; a later look is later than now."""
    choice = choose(current, published, *wishes, since=since, hold_s=hold_s)
    targets = {claim.oldest for claim in wishes if claim.newest is not None}
    assert choice.version in {current, published} | targets
    assert choice.recheck_s is None or (choice.version == current and choice.recheck_s > 0)


@pytest.fixture(params=["memory", "jetstream"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventLog]:
    if request.param == "memory":
        yield MemoryLog("long")
        return
    async with await NatsServer.start(tmp_path / "nats") as server:
        log = await JetStreamLog.open(server.url, "long")
        yield log
        await log.close()


@dataclass(eq=False)
class Watched(Line):
    """Knows which versions an engine was given."""

    delivered_subjects: list[str] = field(default_factory=list)

    async def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> AsyncIterator[Recorded]:
        async for recorded in super().read(start, subject, follow=follow):
            self.delivered_subjects.append(recorded.envelope.event.entity())
            yield recorded

    async def last(self, subject: str) -> Recorded | None:
        recorded = await super().last(subject)
        self.delivered_subjects += [recorded.envelope.event.entity()] if recorded else []
        return recorded


@contextlib.asynccontextmanager
async def running(line: Watched) -> AsyncIterator[tuple[EngineWeights, ScriptedEngine]]:
    """The weights of an engine that has just started."""
    engine = ScriptedEngine(version=-1)
    await engine.start(1.0)
    async with GroupCommit(line) as commit:
        weights = EngineWeights(Participant(line, "engine", "e"), engine, commit, deadline_s=20.0)
        tasks = [asyncio.create_task(part()) for part in (weights.follow, weights.switch)]
        try:
            yield weights, engine
        finally:
            await end_all(*tasks)


async def publish(log: EventLog, folder: Path, versions: range, stored: set[int]) -> None:
    """Only those in `stored` have files."""
    worker, store, events = Participant(log, "trainer"), WeightStore(str(folder), durable=False), []
    for version in versions:
        digest, url = "gone", f"{folder}/gone"
        if version in stored:
            digest = store.write(version, [("w", "F32", (1,), bytes([version % 256] * 4))], parent=None).digest
            url = store.folder(version, digest)
        events.append(made.published(version, url=url, digest=digest, bytes=4))
    await append_all(log, [once(worker.enclose(event)) for event in events])


def evaluation_of(version: int) -> RolloutRequested:
    return made.requested(
        "a-s0", max_new_tokens=1, seed=0, purpose=Purpose.EVAL, min_version=version, max_version=version,
    )  # fmt: skip


async def activated(log: EventLog, versions: list[int]) -> None:
    """Until the engine has said that it ran these, in this order."""
    versions_ = list[int]()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20.0):
            while versions_ != versions:
                await asyncio.sleep(0.01)
                events = [
                    recorded.envelope.event async for recorded in log.read(1, of_type(log.run, "weights.activated"))
                ]
                versions_ = [event.version for event in events if isinstance(event, WeightsActivated)]
    assert versions_ == versions


@pytest.mark.parametrize("count", [1, 2500, 5000])
async def test_an_engine_begins_with_the_newest_of_all_versions_and_reads_no_other(
    log: EventLog, tmp_path: Path, count: int
) -> None:
    await publish(log, tmp_path, range(count), {count - 1})
    line = Watched(log)
    async with running(line):
        await activated(log, [count - 1])
        await publish(log, tmp_path, range(count, count + 1), {count})
        await activated(log, [count - 1, count])
    expected = [str(count - 1), str(count - 1), str(count)]  # asked for, then followed: training waits for each look
    assert line.delivered_subjects == expected


async def test_an_evaluation_gets_its_version_however_many_came_after_it(log: EventLog, tmp_path: Path) -> None:
    await publish(log, tmp_path, range(1500), {3, 1499})
    async with running(Watched(log)) as (weights, engine):
        await activated(log, [1499])
        claim = await weights.claim(evaluation_of(3))
        assert engine.version == 3
        weights.unclaim(claim)
        await activated(log, [1499, 3, 1499])
        with pytest.raises(WeightsDamaged, match="weight version 4"):
            await weights.claim(evaluation_of(4))
        assert engine.version == 1499


@dataclass(eq=False)
class Crowded(Watched):
    """A log whose server has refused some batches of this process."""

    refused: int = 3

    def refused_batches(self) -> int:
        return self.refused


@pytest.mark.parametrize(("line_of", "counts"), [(Crowded, [3, 4]), (Watched, [0, 0])])
async def test_an_activation_counts_the_batches_that_were_refused_since_the_one_before(
    log: EventLog, tmp_path: Path, line_of: type[Watched], counts: list[int]
) -> None:
    await publish(log, tmp_path, range(1), {0})
    line = line_of(log)
    async with running(line):
        await activated(log, [0])
        if isinstance(line, Crowded):
            line.refused = 7
        await publish(log, tmp_path, range(1, 2), {1})
        await activated(log, [0, 1])
    events = [recorded.envelope.event async for recorded in log.read(1, of_type(log.run, "weights.activated"))]
    assert [event.refused_batches for event in events if isinstance(event, WeightsActivated)] == counts
