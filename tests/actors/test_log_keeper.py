"""Test what may leave a log, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.log_keeper import LogKeeper, last_removable
from schemas.arrays import pack_tokens
from schemas.errors import ArchiveDamaged
from slime_events.core.run.participant import Participant
from slime_events.core.state.apply import apply
from slime_events.core.state.group import GroupState
from slime_events.core.state.run import RunState
from slime_events.core.state.snapshot import Snapshots, encode_snapshot
from storage.archive.reader import ArchiveReader
from storage.archive.writer import ArchiveWriter
from storage.memory_log import MemoryLog
from tests import made
from tests.storage.log.appends import reward

POSITIONS = st.integers(0, 50)


@given(POSITIONS, POSITIONS, POSITIONS, POSITIONS, st.lists(st.integers(1, 50)))
def test_nothing_that_is_needed_leaves(archived: int, done: int, kept: int, events: int, groups: list[int]) -> None:
    state = RunState(run="r", events=events)
    for number, position in enumerate(groups):
        state.groups[str(number)] = GroupState(group=str(number), prompt=pack_tokens([1]), position=position)
    upto = last_removable(archived, done, kept, state)
    assert upto <= min(archived, done, kept)
    assert upto < min([events, *groups])
    assert upto in {archived, done, kept, events - 1, *(position - 1 for position in groups)}


class Told(MemoryLog):
    """A log that notes what leaves it. refusal: of its archive."""

    def __init__(self) -> None:
        super().__init__("r")
        self.removed: list[int] = []
        self.refusal: Exception | None = None

    async def remove_archived(self, archive: ArchiveReader, upto: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.removed.append(upto)


async def a_run(folder: Path, steps: int) -> tuple[Told, LogKeeper]:
    """Run steps of three events, all done, with a snapshot of its end; two steps are kept."""
    log, state = Told(), RunState(run="r")
    worker = Participant(log, "trainer")
    for step in range(steps):
        await log.append([reward(log, f"{step}-a"), reward(log, f"{step}-b")])
        digests = {"batch_digest": "", "weights_digest": "", "optimizer_digest": ""}
        committed = made.committed(step, samples=0, tokens=0, **digests)
        await worker.append([committed])
    queue = await log.consume("engines", "slime.r.reward.>")
    for delivery in await queue.take(100, 1):
        await delivery.done()
    writer = ArchiveWriter(str(folder / "archive"), "r")
    before = ""
    for recorded in log.records:
        writer.add(recorded)
        before = state.chain
        apply(state, recorded)
    writer.seal()
    snapshots = Snapshots(folder / "snapshots")
    snapshots.write(state.events, encode_snapshot(state, before))
    any_log: Any = log

    def opened() -> ArchiveReader:
        return ArchiveReader(str(folder / "archive"), "r")

    return log, LogKeeper(any_log, snapshots, opened, steps=2, queue="engines")


async def test_the_newest_steps_stay(tmp_path: Path) -> None:
    log, keeper = await a_run(tmp_path, 5)
    await keeper.trim(15)
    assert log.removed == [9], "three steps of three events"
    await keeper.trim(15)
    assert log.removed == [9]


@pytest.mark.parametrize("archived", [0, 4])
async def test_only_what_is_archived_leaves(tmp_path: Path, archived: int) -> None:
    log, keeper = await a_run(tmp_path, 5)
    await keeper.trim(archived)
    assert log.removed == [archived][: bool(archived)]


async def test_all_steps_of_a_young_run_stay(tmp_path: Path) -> None:
    log, keeper = await a_run(tmp_path, 2)
    await keeper.trim(6)
    assert log.removed == []


async def test_without_a_snapshot_nothing_leaves(tmp_path: Path) -> None:
    log, keeper = await a_run(tmp_path, 5)
    for path in (tmp_path / "snapshots").iterdir():
        path.unlink()
    await keeper.trim(15)
    assert log.removed == []


async def test_a_damaged_archive_keeps_the_log_and_does_not_end_the_run(tmp_path: Path) -> None:
    log, keeper = await a_run(tmp_path, 5)
    log.refusal = ArchiveDamaged("a flipped bit")
    await keeper.trim(15)
    log.refusal = None
    await keeper.trim(15)
    assert log.removed == [], "the next archivist tries again"
