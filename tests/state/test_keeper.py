"""A process that starts comes to the same fold by a snapshot, by an archive, and event by event."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path

import msgspec
import pytest

from slime_events.core.state import keeper as keeper_module
from slime_events.core.state.keeper import LatestState, StateKeeper
from slime_events.core.state.run import state_digest
from slime_events.core.state.snapshot import Snapshot, Snapshots
from slime_events.core.state.state_fold import StateFold
from slime_events.model.progress import Progress, ProgressSnapshot
from storage.log import Recorded, Subjects
from storage.memory_log import MemoryLog
from tests import made
from tests.cli.small_run import events, finished, recorded
from tests.conductor.driver import Driver, dropping, make_plan

FOLDS = {StateFold: Snapshot, Progress: ProgressSnapshot}


def driven() -> list[Recorded]:
    plan = make_plan(steps=6, max_staleness=2, eval_every=2, eval_names=("held",), checkpoint_every=2)
    driver = Driver(plan, dropping(0.3))
    driver.play(random.Random(5), engine_fails=0.1)
    return driver.log


LOGS = {"driven": driven, "small": lambda: recorded(finished(list(events())))}


class Watched(MemoryLog):
    """A log that says from where it was read."""

    def __init__(self, records: list[Recorded]) -> None:
        super().__init__(records[0].envelope.run)
        self.records = records
        self.starts: list[int] = []

    def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False):  # type: ignore[no-untyped-def]
        self.starts.append(start)
        return super().read(start, subject, follow=follow)


def one_by_one(fold: StateFold, records: list[Recorded]) -> StateFold:
    for record in records:
        fold.apply(record)
    return fold


def archive(records: list[Recorded], folder: Path) -> str:
    made.archived(folder, records, per_segment=30, closed=False)
    return str(folder)


def same(first: StateFold, other: StateFold) -> bool:
    if isinstance(first, Progress) and isinstance(other, Progress) and first.figures != other.figures:
        return False
    return (first.state, first.before) == (other.state, other.before)


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "IN_BLOCKS", 10)


@pytest.mark.parametrize("kind", FOLDS)
@pytest.mark.parametrize("name", LOGS)
async def test_the_archive_gives_what_the_log_gives(kind: type[StateFold], name: str, tmp_path: Path) -> None:
    log = Watched(LOGS[name]())
    half = len(log.records) // 2
    fold, run = kind(log.run), log.run
    await StateKeeper(None, archive(log.records[:half], tmp_path)).restore(fold, log)
    assert log.starts == [half], "one event proves the archive"
    assert fold.state.events == half
    assert same(one_by_one(fold, log.records[half:]), one_by_one(kind(run), log.records))


@pytest.mark.parametrize("kind", FOLDS)
@pytest.mark.parametrize("every", [1, 40])
async def test_a_snapshot_gives_what_the_log_gives(kind: type[StateFold], every: int, tmp_path: Path) -> None:
    log = Watched(driven())
    snapshots = Snapshots(tmp_path, FOLDS[kind])
    keeper, fold = StateKeeper(snapshots, every=every), kind(log.run)
    for record in log.records[:200]:
        fold.apply(record)
        keeper.observe(fold)
    await keeper.close(fold)
    again = kind(log.run)
    await StateKeeper(snapshots).restore(again, log)
    assert log.starts == [200]
    assert same(one_by_one(again, log.records[200:]), one_by_one(kind(log.run), log.records))


async def test_an_archive_goes_on_where_a_snapshot_ends(tmp_path: Path) -> None:
    log = Watched(driven())
    snapshots = Snapshots(tmp_path / "snapshots")
    await StateKeeper(snapshots).close(one_by_one(StateFold(log.run), log.records[:100]))
    fold = StateFold(log.run)
    await StateKeeper(snapshots, archive(log.records[:200], tmp_path / "archive")).restore(fold, log)
    assert fold.state == one_by_one(StateFold(log.run), log.records[:200]).state


async def test_an_archive_of_another_history_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = driven()
    url = archive(records, tmp_path)
    last = records[-1]
    envelope = msgspec.structs.replace(last.envelope, producer="another")
    records[-1] = Recorded(last.position, last.subject, envelope, last.data.replace(b"test", b"tost"))
    fold = StateFold("drive")
    with caplog.at_level(logging.WARNING):
        await StateKeeper(None, url).restore(fold, Watched(records))
    assert fold.state.events == 0
    assert "does not belong to the history" in caplog.text


async def test_of_a_damaged_archive_what_is_whole_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = Watched(driven())
    url = archive(log.records, tmp_path)
    (segment,) = (tmp_path / log.run / "segments").glob("00000003-*")
    segment.write_bytes(b"")
    fold = StateFold(log.run)
    await StateKeeper(None, url).restore(fold, log)
    assert fold.state == one_by_one(StateFold(log.run), log.records[:60]).state
    assert "archive segment 3" in caplog.text


async def test_without_anything_a_fold_begins_at_the_beginning(tmp_path: Path) -> None:
    fold = Progress("drive")
    await StateKeeper(Snapshots(tmp_path, ProgressSnapshot), str(tmp_path / "none")).restore(fold, Watched(driven()))
    assert (fold.state.events, fold.figures.rewards) == (0, [])


async def test_the_latest_state_has_what_came_since_it_was_asked_last() -> None:
    records = driven()
    log = Watched(records[:40])
    latest = LatestState(log)
    state = await latest()
    assert (state.position, log.starts) == (40, [1])
    assert (await latest()).position == 40
    log.records = records
    states = await asyncio.gather(latest(), latest())
    assert log.starts == [1, 41, 41, len(records) + 1]
    assert state_digest(states[0]) == state_digest(one_by_one(StateFold(log.run), records).state)


async def test_the_latest_state_begins_with_a_snapshot(tmp_path: Path) -> None:
    records = driven()
    fold = one_by_one(StateFold(records[0].envelope.run), records[:60])
    snapshots = Snapshots(tmp_path)
    snapshots.write(fold.state.position, fold.snapshot())
    log = Watched(records)
    state = await LatestState(log, StateKeeper(snapshots))()
    assert log.starts == [60, 61], "the snapshot's last event, then what came after it"
    assert state_digest(state) == state_digest(one_by_one(StateFold(log.run), records).state)
