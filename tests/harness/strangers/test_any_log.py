"""Foreign records anywhere in a recorded log change nothing: state, digests and answers are as without them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.arrays import unpack
from schemas.foreign import Reason
from schemas.subjects import every_event
from slime_events.analysis.audit.audit import Audit, audit
from slime_events.analysis.export.export import Layout, export, make_writer
from slime_events.analysis.export.sample import Fate
from slime_events.analysis.lineage.lineage import Kind, LineageQuery
from slime_events.analysis.lineage.resolve import lineage
from slime_events.analysis.query import tables_of
from slime_events.analysis.timetravel.log_position import Anchor, LogPosition
from slime_events.analysis.timetravel.timeline import Timeline
from slime_events.app.cli.commands.show import Question, view_of
from slime_events.app.cli.render.event_line import event_line
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.run.run_settings import settings_in_force
from slime_events.core.state.run import state_digest
from slime_events.model.verify import verify
from storage.archive.log import ArchivedLog
from storage.archive.reader import ArchiveReader
from storage.archive.transfer import archive_log, restore_log
from storage.archive.writer import ArchiveWriter
from storage.blobs import BlobStore
from storage.log import ForeignRecord, Readable, Recorded
from storage.memory_log import MemoryLog
from tests import made
from tests.cli import small_run
from tests.harness.strangers.kinds import KINDS, Scene, Write, make
from tests.replay.golden import LOGS as DECIDED
from tests.replay.golden import recorded_of
from tests.replay.replayed import replayed
from tests.state.whole_log import fold

SMALL = small_run.recorded(small_run.finished(list(small_run.events())))
LOGS = {"small": SMALL} | {path.stem: recorded_of(path) for path in DECIDED}
Writes = Sequence[tuple[int, Write]]
"""Each before the event with this number, from 0."""

QUESTIONS = {
    "small": [
        Question(), Question(step=1), Question(group=small_run.GROUPS[0]), Question(sample=f"{small_run.GROUPS[0]}-s1"),
        Question(version=1),
    ]
}  # fmt: skip


def with_strangers(records: Sequence[Recorded], writes: Writes) -> MemoryLog:
    log = MemoryLog(records[0].envelope.run)
    for number in range(len(records) + 1):
        for _, write in (placed for placed in writes if placed[0] == number):
            log.publish(write.subject.decode(errors="backslashreplace"), write.data, write.message_id)
        if number < len(records):
            log.publish(records[number].subject, records[number].data, records[number].envelope.id)
    return log


def _without_positions(value: Any) -> Any:
    if isinstance(value, dict):
        aside = ("position", "foreign", "decided", "ended")
        return {key: _without_positions(entry) for key, entry in value.items() if key not in aside}
    return [_without_positions(entry) for entry in value] if isinstance(value, list | tuple) else value


async def answers(name: str, log: Readable) -> dict[str, Any]:
    """Return what readers of a log answer, without positions."""
    state = await fold(log)
    report = await audit(log.read_records(), Audit(log.run, files=False))
    answer: dict[str, Any] = {
        "state": (state_digest(state), state.chain, state.events),
        "audit": [(check.name, check.counts, [(f.event, f.wrong) for f in check.findings]) for check in report.checks],
        "unread": report.unread,
        "events": [recorded.envelope async for recorded in log.read()],
        "verified": (await verify(log))[:3],
        "subjects": sorted(await log.subjects(every_event(log.run))),
        "tail": [event_line(recorded).strip().partition(" ")[2].strip() async for recorded in log.read()],
    }
    answer["last"] = {s: r.envelope.id for s, r in (await log.last_of_each(answer["subjects"])).items()}
    for question in QUESTIONS.get(name, []):
        answer[str(question)] = _without_positions((await view_of(log, question, unpack)).facts)
    return answer


class _Told:
    """Answers of the logs as they are, asked once."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[str, Any]] = {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name not in self._answers:
            self._answers[name] = asyncio.run(answers(name, with_strangers(LOGS[name], [])))
        return self._answers[name]


TOLD = _Told()


def _scene(records: Sequence[Recorded], number: int, other: int, seed: int) -> Scene:
    events = [record.envelope for record in records]
    return Scene(events[number % len(events)], events[other % len(events)], random.Random(seed))


@st.composite
def strange(draw: st.DrawFn, records: Sequence[Recorded]) -> Write:
    """One of the known kinds, or any bytes on any subject, also on one that an event has, with any message id."""
    a, b = (draw(st.integers(0, len(records) - 1)) for _ in range(2))
    if draw(st.booleans()):
        return make(draw(st.sampled_from([*KINDS])), _scene(records, a, b, draw(st.integers(0, 2**32))))
    run = records[0].envelope.run.encode()
    of_event = records[a].subject.encode()
    others = st.builds(lambda tail: b"slime.%b.reward.%b" % (run, tail), st.binary(min_size=1))
    subject = draw(st.just(of_event) | others)
    ids = [r.envelope.id.encode() for r in (records[a], records[b])]
    data = draw(st.binary() | st.just(records[b].data) | st.just(records[a].data[:-1]))
    if data == records[b].data and records[b].subject.encode() == subject:
        ids = [b"another"]  # with its own it would be the event, forged
    message_id = draw(st.sampled_from([b"", b"x", *ids]))
    return Write(subject, data, b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % message_id)


@pytest.mark.parametrize("name", ["small", "v3-asynchronous"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_bytes_in_any_place_change_nothing(name: str, data: st.DataObject) -> None:
    records = LOGS[name]
    places = st.tuples(st.integers(0, len(records)), strange(records))
    writes = data.draw(st.lists(places, min_size=1, max_size=12))
    log = with_strangers(records, writes)
    assert [record.data for record in log.foreign] == [w.data for _, w in sorted(writes, key=lambda placed: placed[0])]
    assert asyncio.run(answers(name, log)) == TOLD[name]


def _all_kinds(records: Sequence[Recorded]) -> Writes:
    return [(n % (len(records) + 1), make(kind, _scene(records, n, n + 3, n))) for n, kind in enumerate([*KINDS] * 2)]


@pytest.mark.parametrize("name", LOGS)
async def test_an_archive_keeps_them_and_a_restored_log_has_them(name: str, tmp_path: Path) -> None:
    log = with_strangers(LOGS[name], [*_all_kinds(LOGS[name]), (len(LOGS[name]), Write(b"slime.x", b"last"))])
    writer = ArchiveWriter(str(tmp_path), log.run)
    async for record in log.read_records():
        writer.add(record)
        if not record.position % 17:
            writer.seal()
    await archive_log(log, writer)
    reader = ArchiveReader(str(tmp_path), log.run)
    archived = ArchivedLog(reader, log.run)
    expected = await answers(name, with_strangers(LOGS[name], []))
    assert await answers(name, archived) == expected
    assert (await archived.position(), await archived.end()) == (await log.position(), await log.end())
    assert _raw([record async for record in archived.read_records()]) == _raw([r async for r in log.read_records()])
    summary = reader.verify()
    assert (summary.events, summary.foreign) == (len(log.records), len(log.foreign))
    restored = MemoryLog(log.run)
    await restore_log(reader, restored, BlobStore(f"{tmp_path}/blobs"))
    assert _raw([r async for r in restored.read_records()]) == _raw([r async for r in log.read_records()])
    assert await answers(name, restored) == expected


def _raw(records: Sequence[Recorded | ForeignRecord]) -> list[tuple[int, str, bytes, bool]]:
    return [(r.position, r.subject, r.data, isinstance(r, Recorded)) for r in records]


async def test_an_archive_of_before_is_judged_record_by_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its manifests do not say what is foreign; nor does it have the message ids, so copies are events in it."""
    monkeypatch.delitem(KINDS, "a newer schema without its id")  # it would be one with its id
    log = with_strangers(SMALL, _all_kinds(SMALL))
    archived = ArchivedLog(_without_foreign(log, tmp_path), log.run)
    copies = {r.position for r in log.foreign if r.reason is Reason.MESSAGE_ID}
    assert {r.position async for r in archived.read()} == {r.position for r in log.records} | copies


def _without_foreign(log: MemoryLog, folder: Path) -> ArchiveReader:
    writer = ArchiveWriter(str(folder), log.run)
    for position in range(1, log.count + 1):
        writer.add(log.record_at(position))
    writer.seal()
    reader = ArchiveReader(str(folder), log.run)
    reader.segments[0] = msgspec.structs.replace(reader.segments[0], foreign=None)
    return reader


def _opened(log: Readable) -> OpenedRun:
    return made.opened(log, settings_in_force(small_run.events()))


async def _slow_answers(opened: OpenedRun, folder: Path) -> dict[str, Any]:
    """Return answers that take longer: tables, an export, lineage and moments of the timeline."""
    async with tables_of(opened, cache=folder / "tables") as tables:
        columns = "SELECT COLUMNS(lambda c: NOT contains(c, 'position')) FROM"
        rows = {
            name: (await tables.sql(f"{columns} {name}")).rows() for name in ("events", "rewards", "samples", "steps")
        }
    result: dict[str, Any] = {name: sorted(map(repr, table)) for name, table in rows.items()}
    writer = make_writer(Layout.JSONL, f"{folder}/all.jsonl")
    await export(opened, writer, list(Fate))
    result["export"] = (folder / "all.jsonl").read_text()
    answer = await lineage(opened, LineageQuery(kind=Kind.VERSION, value=1, depth=2))
    result["lineage"] = _without_positions(msgspec.to_builtins(answer))
    timeline = await Timeline(opened.log, folder / "seek", every=7).open()
    result["moments"] = [state_digest((await timeline.seek(LogPosition(Anchor.STEP, step))).state) for step in (0, 1)]
    return result


async def test_what_is_asked_of_a_run_is_answered_the_same(tmp_path: Path) -> None:
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
    expected = await _slow_answers(_opened(with_strangers(SMALL, [])), tmp_path / "a")
    log = with_strangers(SMALL, _all_kinds(SMALL))
    assert await _slow_answers(_opened(log), tmp_path / "b") == expected
    await archive_log(log, ArchiveWriter(f"{tmp_path}/archive", log.run))
    archived = ArchivedLog(ArchiveReader(f"{tmp_path}/archive", log.run), log.run)
    assert await _slow_answers(_opened(archived), tmp_path / "c") == expected


@pytest.mark.parametrize("path", DECIDED, ids=lambda path: path.stem)
def test_decisions_are_made_the_same_again(path: Path) -> None:
    records = recorded_of(path)
    log = with_strangers(records, _all_kinds(records))
    report = replayed(log.records, every=True)
    assert report.is_equal
    assert report.compared == replayed(records, every=True).compared
