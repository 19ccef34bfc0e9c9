"""A fold in bulk is the fold: short forms, blocks and another process change nothing but the time."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import decode, encode
from schemas.envelope import enclose
from schemas.errors import ArchiveDamaged, DamagedEvent, SchemaError, UnknownEventType
from slime_events.core.state.apply import apply, apply_all
from slime_events.core.state.partial_events import PARTIAL_DECISIONS, PARTIAL_EVENTS, read_partial_events
from slime_events.core.state.run import RunState, state_digest
from storage.archive.log import ArchivedLog
from storage.archive.reader import ArchiveReader
from storage.event_block import MANY, EventBlock, Part, array_of
from storage.hash_chain import link_all
from storage.log import Recorded
from storage.memory_log import MemoryLog
from tests import made
from tests.cli.small_run import events, finished, recorded
from tests.conductor.driver import Driver, dropping, make_plan
from tests.golden.log_file import FOLDER, read_records
from tests.state.whole_log import fold


def _driven() -> list[Recorded]:
    plan = make_plan(steps=6, max_staleness=2, partial_rollout=True, eval_every=2, eval_names=("held",))
    driver = Driver(plan, dropping(0.3))
    driver.play(random.Random(5), engine_fails=0.1)
    return driver.log


def _golden(name: str) -> list[Recorded]:
    envelopes = [(decode(data), data) for data in read_records(FOLDER / name)]
    return [Recorded(position, subject.subject, subject, data) for position, (subject, data) in enumerate(envelopes, 1)]


LOGS = {
    "driven": _driven,
    "small": lambda: recorded(finished(list(events()))),
    **{path.stem: lambda path=path: _golden(path.name) for path in sorted(FOLDER.glob("*.slimelog"))},
}


def _archive(records: list[Recorded], folder: Path, run: str) -> ArchiveReader:
    made.archived(folder, records, per_segment=70)
    return ArchiveReader(str(folder), run)


def _chain(records: list[Recorded], position: int) -> bytes:
    state = RunState(run="r")
    for record in records[:position]:
        apply(state, record)
    return bytes.fromhex(state.chain)


@pytest.mark.parametrize("name", LOGS)
async def test_an_archive_folds_to_the_state_of_its_log(name: str, tmp_path: Path) -> None:
    records = LOGS[name]()
    run = records[0].envelope.run
    log = MemoryLog(run)
    log.records = records
    assert await fold(ArchivedLog(_archive(records, tmp_path, run), run)) == await fold(log)


async def _event_blocks(reader: ArchiveReader, start: int, chain: bytes, every: int | None) -> list[EventBlock]:
    return [block async for block in ArchivedLog(reader, reader.run).event_blocks(start, chain, every)]


@pytest.mark.parametrize("every", [50, None])
async def test_stretches_join(every: int | None, tmp_path: Path) -> None:
    records = _driven()
    reader = _archive(records, tmp_path, "drive")
    for start in (1, 69, 70, 71, 100, len(records)):
        before = _chain(records, start - 1)
        blocks = await _event_blocks(reader, start, before, every)
        assert [s.first for s in blocks] == [start, *(s.last + 1 for s in blocks[:-1])]
        assert blocks[-1].last == len(records)
        if every is not None:
            assert all(
                end in {s.last for s in blocks} for end in range(-(-start // every) * every, len(records), every)
            )
        for block in blocks:
            assert block.chain == _chain(records, block.last)
            assert block.before == _chain(records, block.last - 1)


async def test_what_is_whole_is_given_before_what_is_damaged(tmp_path: Path) -> None:
    reader = _archive(_driven(), tmp_path, "drive")
    first, *_, last = reader.segments
    (tmp_path / "drive" / last.name).write_bytes(b"")
    read = ArchivedLog(reader, reader.run).event_blocks(1, b"", None)
    assert (await anext(read)).first == first.first
    with pytest.raises(ArchiveDamaged, match=f"archive segment {last.segment} "):
        _ = [block async for block in read]


def _as_far_as_it_goes(log: list[Recorded]) -> tuple[list[Recorded], RunState]:
    """Up to the first event that no fold can take (a batch of groups that are not there), and the state there."""
    state = RunState(run="drive")
    for position, record in enumerate(log, 1):
        try:
            apply(state, msgspec.structs.replace(record, position=position))
        except (LookupError, ValueError):
            return _as_far_as_it_goes(log[: position - 1])
    return log, state


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_log_in_any_lists_folds_as_one_by_one(records: list[Recorded], data: st.DataObject) -> None:
    """Also where events are missing, doubled and out of place: rules find no group, or a sample that is done."""
    log, places = list(records), st.integers(0, len(records) - 1)
    for _ in range(data.draw(st.integers(0, 12))):
        begin, count, to = data.draw(places), data.draw(st.integers(0, 8)), data.draw(places)
        part = log[begin : begin + count]
        if data.draw(st.booleans()):
            del log[begin : begin + count]
        log[to:to] = part
    log, one_by_one = _as_far_as_it_goes(log)
    at_once, chain = RunState(run="drive"), b""
    ends = sorted({0, len(log), *data.draw(st.lists(st.integers(0, len(log)), max_size=6))})
    for begin, end in itertools.pairwise(ends):
        datas = [record.data for record in log[begin:end]]
        _, chain = link_all(chain, datas)
        partial = read_partial_events(_parts(datas, begin + 1), decisions=data.draw(st.booleans()))
        apply_all(at_once, partial, chain.hex())
    assert state_digest(at_once) == state_digest(one_by_one)


def _parts(datas: list[bytes], first: int) -> list[Part]:
    some = [datas[begin : begin + MANY] for begin in range(0, len(datas), MANY)]
    return [Part(first + MANY * number, array_of(len(part), *part)) for number, part in enumerate(some)]


@pytest.fixture(scope="module")
def records() -> list[Recorded]:
    return _driven()


@pytest.mark.parametrize("kind", PARTIAL_EVENTS | PARTIAL_DECISIONS)
def test_a_short_form_has_the_fields_of_its_event(kind: type[msgspec.Struct]) -> None:
    whole = {field.name: field for field in msgspec.structs.fields(kind)}
    for field in msgspec.structs.fields((PARTIAL_EVENTS | PARTIAL_DECISIONS)[kind]):
        assert field.name in whole
        assert field.default in (msgspec.NODEFAULT, whole[field.name].default)


def test_what_cannot_be_read_is_named() -> None:
    reward = made.assigned("s", grader="exact")
    data = encode(enclose("r", reward, at=1, producer="p"))
    array = b"\xdd" + (2).to_bytes(4, "big")
    good = array + data * 2
    blocks = list(read_partial_events([Part(7, good), Part(12, good)]))
    assert [first for first, _ in blocks] == [7, 12]
    assert [recorded.event.value for _, events in blocks for recorded in events] == [1.0] * 4
    with pytest.raises(UnknownEventType, match=r"position 10: event .* has type 'reward.assigneX'"):
        list(read_partial_events([Part(9, array + data + data.replace(b"assigned", b"assigneX"))]))
    older = data.replace(b"\xa6schema\x01", b"\xa6schema\x00")
    with pytest.raises(SchemaError, match="position 7: "):
        list(read_partial_events([Part(7, array + older + data)]))
    with pytest.raises(DamagedEvent, match="from position 9 on"):
        list(read_partial_events([Part(7, good), Part(9, good[:-1])]))


async def test_a_changed_byte_in_a_segment_is_found(tmp_path: Path) -> None:
    reader = _archive(_driven(), tmp_path, "drive")
    segment = tmp_path / "drive" / reader.segments[1].name
    changed = bytearray(segment.read_bytes())
    changed[len(changed) // 2] ^= 1
    segment.write_bytes(changed)
    with pytest.raises(ArchiveDamaged, match="archive segment 2 "):
        await _event_blocks(reader, 1, b"", 50)
