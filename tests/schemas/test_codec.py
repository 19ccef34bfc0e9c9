"""Any event comes back as it was; what is not an event is a named error and nothing else."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import upcast
from schemas.arrays import pack_log_probs, pack_tokens
from schemas.codec import decode, decode_whole, encode
from schemas.envelope import Envelope, enclose
from schemas.errors import DamagedEvent, SchemaError, UnknownEventType, UnknownSchemaVersion, UnwritableEvent
from schemas.foreign import all_events
from schemas.registry import EVENT_CLASSES
from schemas.rewards import RewardAssigned
from schemas.rollouts import Maker, RolloutProgressed, TurnEnd
from tests import made
from tests.schemas.strategies import envelopes

EXAMPLE = enclose(
    "r",
    RewardAssigned(sample="s", group="g", value=1.0, grader="x", grader_digest="d", detail={"MARK": 1}),
    at=1,
    producer="p",
)


def _as_map(envelope: Envelope) -> dict[str, Any]:
    return msgspec.msgpack.decode(encode(envelope), type=dict[str, Any])


@settings(max_examples=400)
@given(envelopes())
def test_any_event_round_trips(envelope: Envelope) -> None:
    data = encode(envelope)
    assert decode(data) == envelope
    assert encode(decode(data)) == data


@settings(max_examples=100)
@given(envelopes(), st.dictionaries(st.text(min_size=1).map("new-{}".format), st.integers() | st.text(), max_size=3))
def test_fields_of_a_newer_writer_are_ignored(envelope: Envelope, fields: dict[str, Any]) -> None:
    fields = {k: v for k, v in fields.items() if not isinstance(v, int) or -(2**63) <= v < 2**64}
    plain = _as_map(envelope)
    plain["event"] |= fields
    assert decode(msgspec.msgpack.encode(fields | plain)) == envelope


@given(envelopes(), st.text())
def test_an_unknown_type_is_named(envelope: Envelope, tag: str) -> None:
    plain = _as_map(envelope)
    plain["event"]["type"] = f"{tag}?"
    with pytest.raises(UnknownEventType, match=envelope.id):
        decode(msgspec.msgpack.encode(plain))


@given(envelopes(), st.integers(max(kind.SCHEMA for kind in EVENT_CLASSES) + 1, 2**64 - 1))
def test_a_newer_schema_is_named(envelope: Envelope, schema: int) -> None:
    plain = _as_map(envelope) | {"schema": schema}
    with pytest.raises(UnknownSchemaVersion, match=f"schema {schema}"):
        decode(msgspec.msgpack.encode(plain))


def test_an_older_schema_is_raised_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 said `score`, version 2 `points` of a hundred, version 3 says `value`."""
    monkeypatch.setattr(RewardAssigned, "SCHEMA", 3)
    monkeypatch.setitem(
        upcast.UPCASTERS, ("reward.assigned", 1), lambda d: d | {"points": d["score"] * 100, "group": "g"}
    )
    monkeypatch.setitem(upcast.UPCASTERS, ("reward.assigned", 2), lambda d: d | {"value": d["points"] / 100})
    old = {"type": "reward.assigned", "sample": "s", "score": 0.5, "grader": "x", "grader_digest": "d"}
    plain = _as_map(EXAMPLE)
    event = decode(msgspec.msgpack.encode(plain | {"schema": 1, "event": old})).event
    assert event == RewardAssigned(sample="s", group="g", value=0.5, grader="x", grader_digest="d")
    for broken in (old | {"score": {}}, {k: v for k, v in old.items() if k != "score"}, old | {"grader": 1}):
        with pytest.raises(DamagedEvent):
            decode(msgspec.msgpack.encode(plain | {"schema": 1, "event": broken}))
    with pytest.raises(DamagedEvent):
        decode(msgspec.msgpack.encode(plain | {"schema": 0, "event": old}))


@pytest.mark.parametrize(
    ("former", "group", "maker"),
    [
        ({}, "train-0-000001", Maker.ENGINE),
        ({"agents": True}, "train-0-000001", Maker.AGENT),
        ({"function": "mine:rollout"}, "brought-000001", Maker.FUNCTION),
        ({"recalls": "train-0-000003-s0"}, "again-000001", Maker.RECORDED),
        ({"recalls": "train-0-000003-s0", "agents": True}, "again-000001", Maker.RECORDED),
        ({"recalls": "inbox-0123456789abcdef-s0"}, "inbox-0123456789abcdef", Maker.OUTSIDE),
    ],
)
def test_a_request_of_the_first_schema_has_its_maker(former: dict[str, Any], group: str, maker: Maker) -> None:
    """Runs of older code resume: their requests in progress are answered by today's workers."""
    request = made.requested(f"{group}-s0", prompt=(1, 2), after=TurnEnd("x-s0", 1, 9))
    plain = _as_map(enclose("r", request, at=1, producer="p"))
    assert plain["schema"] == 2
    old = msgspec.msgpack.encode(plain | {"schema": 1, "event": plain["event"] | former})
    kept = {name: value for name, value in former.items() if name != "agents"}
    assert decode(old).event == msgspec.structs.replace(request, maker=maker, **kept)
    whole = decode_whole(old)
    assert (whole.id, whole.event) == (plain["id"], decode(old).event)


def test_many_records_of_several_schemas_are_read_together() -> None:
    envelopes = [enclose("r", made.requested(f"g-s{n}", maker=Maker.AGENT), at=1, producer="p") for n in range(3)]
    datas = [encode(envelope) for envelope in envelopes]
    former = _as_map(envelopes[1]) | {"schema": 1}
    del former["event"]["maker"]
    former["event"]["agents"] = True
    subjects, ids = [envelope.subject for envelope in envelopes], [envelope.id for envelope in envelopes]
    datas[1] = msgspec.msgpack.encode(former)
    read = all_events("r", subjects, ids, datas)
    assert read is not None
    assert [(e.id, e.event) for e in read] == [(e.id, e.event) for e in envelopes]
    datas[1] = msgspec.msgpack.encode(former | {"schema": 3})
    assert all_events("r", subjects, ids, datas) is None, "a newer one is judged by itself"


def _only_schema_errors(data: bytes) -> None:
    with contextlib.suppress(SchemaError):
        assert isinstance(decode(data), Envelope)


@settings(max_examples=400)
@given(envelopes(), st.data())
def test_damage_never_breaks_the_reader(envelope: Envelope, data: st.DataObject) -> None:
    good = bytearray(encode(envelope))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    _only_schema_errors(bytes(good))
    _only_schema_errors(bytes(good[: data.draw(st.integers(0, len(good)))]))


@given(envelopes(), st.data())
def test_a_truncated_record_is_damaged(envelope: Envelope, data: st.DataObject) -> None:
    record = encode(envelope)
    with pytest.raises(DamagedEvent):
        decode(record[: data.draw(st.integers(0, len(record) - 1))])


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_never_break_the_reader(data: bytes) -> None:
    _only_schema_errors(data)


DEEP = 100_000


@pytest.mark.parametrize(
    "hostile",
    [
        b"\x91" * DEEP + b"\x01",
        b"\x81\xa1a" * DEEP + b"\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xd7\xff" + b"\xff" * 8,
        b"\xc7\x0c\xff" + b"\xff" * 12,
        b"\x81\x80\x01",
        b"\xa2\xff\xfe",
        b"\xa3\xed\xa0\x80",
        b"\xc1",
    ],
)
def test_hostile_values_are_damage(hostile: bytes) -> None:
    record = encode(EXAMPLE)
    at = record.index(b"\xa4MARK\x01") + 5
    for data in (record[:at] + hostile + record[at + 1 :], b"\x81\xa1z" + hostile, hostile):
        with pytest.raises(DamagedEvent):
            decode(data)


@pytest.mark.parametrize("value", [object(), 2**64, "\ud800", {1: object()}, {"deep": None}])
def test_what_cannot_be_written_is_named(value: Any) -> None:
    if isinstance(value, dict) and "deep" in value:
        for _ in range(DEEP):
            value = [value]
    event = RewardAssigned(sample="s7", group="g", value=1.0, grader="x", grader_digest="d", detail={"v": value})
    with pytest.raises(UnwritableEvent, match=r"reward\.assigned about s7"):
        encode(enclose("r", event, at=1, producer="p"))


def test_arrays_go_as_raw_bytes() -> None:
    """Four bytes a number and little else: lists would take more than twice that, and milliseconds."""
    event = RolloutProgressed(
        sample="s",
        attempt=0,
        start=0,
        tokens=pack_tokens(range(32768)),
        log_probs=pack_log_probs([0.5] * 32768),
        spans=(),
        engine="e",
    )
    envelope = enclose("r", event, at=1, producer="p")
    assert len(encode(envelope)) < 2 * 4 * 32768 + 300
