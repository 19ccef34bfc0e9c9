"""Any place of a log is the same moment, by whatever way it was reached: with points, without, and with bad ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from schemas.errors import InvalidValue, RunNotFound
from schemas.steps import StepCommitted
from slime_events.analysis.timetravel.log_position import Anchor, LogPosition, parse_position
from slime_events.analysis.timetravel.moment import Moment
from slime_events.analysis.timetravel.timeline import Timeline
from slime_events.core.state.run import RunState
from storage.archive.log import ArchivedLog
from storage.archive.reader import ArchiveReader
from storage.memory_log import MemoryLog
from tests import made
from tests.conductor.driver import Driver, dropping, make_plan

EVERY = 40


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    """Record a run of six steps; each event comes a nanosecond after the one before, the first at 0."""
    driver = Driver(make_plan(steps=6, max_staleness=1, in_prompt_order=False, checkpoint_every=2), dropping(0.3))
    driver.play(random.Random(5), engine_fails=0.1)
    log = MemoryLog("drive")
    log.records = list(driver.log)
    return log


def folded(log: MemoryLog, position: int) -> Moment:
    moment = Moment(RunState(run=log.run))
    for recorded in log.records[:position]:
        moment.apply(recorded)
    return moment


def commits(log: MemoryLog) -> dict[int, int]:
    records = ((r.envelope.event, r.position) for r in log.records)
    return {event.step: position for event, position in records if isinstance(event, StepCommitted)}


async def test_every_position_is_the_fold_up_to_there(log: MemoryLog, tmp_path: Path) -> None:
    timeline = await Timeline(log, tmp_path, every=EVERY).open()
    assert len(list(tmp_path.iterdir())) == len(log.records) // EVERY + 1
    again = await Timeline(log, tmp_path, every=EVERY).open()
    for position in (1, EVERY - 1, EVERY, EVERY + 1, 2 * EVERY + 7, len(log.records)):
        expected = folded(log, position)
        assert await timeline.seek(LogPosition(Anchor.POSITION, position)) == expected
        assert await again.seek(LogPosition(Anchor.POSITION, position)) == expected


async def test_only_what_is_new_is_folded(log: MemoryLog, tmp_path: Path) -> None:
    first = MemoryLog("drive")
    first.records = log.records[: 3 * EVERY - 1]
    positions: list[int] = []
    for grown in (first, first, log, log):
        await Timeline(grown, tmp_path, every=EVERY).open(positions.append)
    assert positions == [3 * EVERY - 1, len(log.records) - 2 * EVERY]


async def test_a_step_is_just_after_its_commit(log: MemoryLog, tmp_path: Path) -> None:
    timeline = await Timeline(log, tmp_path, every=EVERY).open()
    for step, position in commits(log).items():
        moment = await timeline.seek(LogPosition(Anchor.STEP, step))
        assert moment == folded(log, position)
        assert moment.state.version == step + 1
    with pytest.raises(RunNotFound, match=r"has not committed step 6\. It has 6 committed steps, from 0"):
        await timeline.seek(LogPosition(Anchor.STEP, 6))


@pytest.mark.parametrize(
    ("place", "position"),
    [
        (LogPosition(Anchor.TIME, 0), 1),
        (LogPosition(Anchor.TIME, EVERY), EVERY + 1),
        (LogPosition(Anchor.START, 99), 100),
        (LogPosition(Anchor.END, 0), -1),
        (LogPosition(Anchor.END, 9), -10),
    ],
)
async def test_a_time_is_before_what_was_said_later(
    log: MemoryLog, tmp_path: Path, place: LogPosition, position: int
) -> None:
    timeline = await Timeline(log, tmp_path, every=EVERY).open()
    expected_position = position if position > 0 else len(log.records) + 1 + position
    assert await timeline.seek(place) == folded(log, expected_position)


async def test_what_is_not_there(log: MemoryLog, tmp_path: Path) -> None:
    timeline = await Timeline(log, tmp_path, every=EVERY).open()
    for place in (
        LogPosition(Anchor.POSITION, 0),
        LogPosition(Anchor.POSITION, len(log.records) + 1),
        LogPosition(Anchor.TIME, -1),
    ):
        with pytest.raises(RunNotFound):
            await timeline.seek(place)
    with pytest.raises(RunNotFound, match="has no events yet"):
        await Timeline(MemoryLog("drive"), tmp_path).open()


async def test_an_archive_is_entered_at_the_same_moments(log: MemoryLog, tmp_path: Path) -> None:
    made.archived(tmp_path, log.records, per_segment=100)
    archived = ArchivedLog(ArchiveReader(str(tmp_path), "drive"), "drive")
    (tmp_path / "file").touch()
    for folder in (tmp_path / "seek", tmp_path / "seek", tmp_path / "file" / "no folder"):
        timeline = await Timeline(archived, folder, every=EVERY).open()
        for position in (1, EVERY + 1, 2 * EVERY, len(log.records)):
            assert await timeline.seek(LogPosition(Anchor.POSITION, position)) == folded(log, position)
        for step, position in commits(log).items():
            assert (await timeline.seek(LogPosition(Anchor.STEP, step))).position == position


@pytest.mark.parametrize("damage", ["points", "index", "gone", "history"])
async def test_the_index_is_only_a_cache(log: MemoryLog, tmp_path: Path, damage: str) -> None:
    of = log
    if damage == "history":
        of = MemoryLog("drive")
        driver = Driver(make_plan(steps=6), dropping(0.2))
        driver.play(random.Random(7))
        of.records = list(driver.log)
    await Timeline(of, tmp_path, every=EVERY).open()
    for path in tmp_path.iterdir():
        match damage:
            case "points" if path.name != "index.seek":
                path.write_bytes(path.read_bytes()[:-1])
            case "index" if path.name == "index.seek":
                path.write_bytes(b"")
            case "gone":
                path.unlink()
    timeline = await Timeline(log, tmp_path, every=EVERY).open()
    for position in (EVERY, 2 * EVERY + 1, len(log.records)):
        assert await timeline.seek(LogPosition(Anchor.POSITION, position)) == folded(log, position)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("12", LogPosition(Anchor.POSITION, 12)),
        ("step:3", LogPosition(Anchor.STEP, 3)),
        ("+30s", LogPosition(Anchor.START, 30_000_000_000)),
        ("-1.5s", LogPosition(Anchor.END, 1_500_000_000)),
        ("2026-11-21T15:25:40.5+00:00", LogPosition(Anchor.TIME, 1_795_274_740_500_000_000)),
    ],
)
def test_places(text: str, place: LogPosition) -> None:
    assert parse_position(text) == place


@pytest.mark.parametrize("text", ["", "step:x", "-5", "yesterday", "+s"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"is not a position. Give SEQ \(12345\)"):
        parse_position(text)
