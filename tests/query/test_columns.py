"""Columns of any struct by its type hints, and rows of events in batches."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from schemas.arrays import Array, pack, pack_tokens, unpack
from schemas.event import Event
from schemas.rollouts import RolloutCompleted, Timings, WeightSpan
from slime_events.analysis.query import row_builder
from slime_events.analysis.query.columns import StructColumns, to_json
from slime_events.analysis.query.event_tables import EVENT_TABLES, type_in
from slime_events.analysis.query.row_builder import RowBuilder
from slime_events.analysis.query.run_rows import is_about_rollouts
from slime_events.core.telemetry.event_spans import span_of
from storage.log import Recorded
from tests import made
from tests.cli.small_run import events, recorded


class Kind(enum.StrEnum):
    ONE = "one"


class Inner(msgspec.Struct):
    a: int
    b: str | None = None


class Whole(msgspec.Struct):
    """One field of each kind."""

    text: str
    number: int | None = None
    share: float | None = None
    flag: bool | None = None
    kind: Kind | None = None
    array: Array | None = None
    inner: Inner | None = None
    many: tuple[int, ...] = ()
    rows: tuple[Inner, ...] | None = ()
    by: dict[str, float] = {}
    by_number: dict[int, int] | None = None
    label: str | Any = None
    listed: list[str] | None = None
    anything: Any = None
    mixed: dict[str, list[int]] = {}
    unset: int | msgspec.UnsetType | None = None
    either: str | int | None = None


TYPES = {
    "text": pa.string(), "number": pa.int64(), "share": pa.float64(), "flag": pa.bool_(), "kind": pa.string(),
    "array": pa.int64(), "inner_a": pa.int64(), "inner_b": pa.string(), "many": pa.list_(pa.int64()),
    "rows": pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])), "by": pa.map_(pa.string(), pa.float64()),
    "by_number": pa.map_(pa.string(), pa.int64()), "label": pa.string(), "listed": pa.string(),
    "anything": pa.string(), "mixed": pa.string(), "unset": pa.int64(), "either": pa.string(),
}  # fmt: skip
FULL = Whole(
    text="x", number=3, share=0.5, flag=True, kind=Kind.ONE, array=pack_tokens([1, 2]), inner=Inner(1, "b"),
    many=(1, 2), rows=(Inner(1), Inner(2, "c")), by={"k": 0.5}, by_number={7: 8}, label="as it is", listed=["a"],
    anything={1: None}, mixed={"a": [1]}, unset=4, either="x",
)  # fmt: skip
TOLD = {
    "text": "x", "number": 3, "share": 0.5, "flag": True, "kind": "one", "array": 2, "inner_a": 1, "inner_b": "b",
    "many": [1, 2], "rows": [{"a": 1, "b": None}, {"a": 2, "b": "c"}], "by": [("k", 0.5)], "by_number": [("7", 8)],
    "label": "as it is", "listed": '["a"]', "anything": '{"1":null}', "mixed": '{"a":[1]}', "unset": 4, "either": '"x"',
}  # fmt: skip


def values_of(rows: list[Whole]) -> list[dict[str, Any]]:
    columns = StructColumns(Whole)
    arrays = [pack(values) for pack, values in zip(columns.packs, columns.values(rows), strict=True)]
    for array in arrays:
        array.validate(full=True)
    assert [array.type for array in arrays] == columns.schema.types
    told_of = {name: array.to_pylist() for name, array in zip(columns.schema.names, arrays, strict=True)}
    return [{name: values[place] for name, values in told_of.items()} for place in range(len(rows))]


def test_each_field_has_a_column_of_its_type() -> None:
    assert {column.name: column.type for column in StructColumns(Whole).schema} == TYPES


def test_values_are_told_and_what_is_none_is_null() -> None:
    bare = Whole(text="y", rows=None)
    nothing = dict.fromkeys(TYPES) | {"text": "y", "many": [], "by": [], "mixed": "{}", "rows": []}
    for some in ([FULL], [bare], [bare, FULL, bare], []):
        assert values_of(some) == [TOLD if row is FULL else nothing for row in some]
    assert values_of([Whole(text="z", label={"a": 1}), FULL])[0]["label"] == '{"a":1}'


class Outer(msgspec.Struct):
    """A nested struct that may be None, with a list of structs."""

    part: Whole | None = None


def test_a_list_of_a_struct_that_is_none_is_null_whatever_the_other_rows_have() -> None:
    columns = StructColumns(Outer)
    place = columns.schema.get_field_index("part_rows")
    for some in ([Outer()], [Outer(), Outer(FULL), Outer(Whole("y"))]):
        column = columns.packs[place](columns.values(some)[place])
        column.validate(full=True)
        assert column.to_pylist() == [None, TOLD["rows"], []][: len(some)]


def test_a_column_is_the_same_in_one_piece_and_row_by_row() -> None:
    """Compare a value that is converted once for all rows with each row's own."""
    columns = StructColumns(Whole)
    zeros = [Whole("", share=value, number=number) for value, number in ((0.0, 1), (-0.0, 1), (0.0, 1))]
    alike = [FULL, FULL, FULL]
    mixed = [Whole("x", label=label, anything=label) for label in (1, True, "1", {}, [], (), None)]
    for rows in (zeros, alike, mixed, [Whole("x")] * 5, [*mixed, FULL]):
        for convert, values, kind in zip(columns.packs, columns.values(rows), columns.schema.types, strict=True):
            whole = convert(values)
            assert whole.type == kind
            assert repr(whole.to_pylist()) == repr([convert([value]).to_pylist()[0] for value in values])


def test_an_integer_that_arrow_cannot_hold_is_an_error() -> None:
    columns = StructColumns(Inner)
    with pytest.raises((OverflowError, pa.ArrowInvalid)):
        columns.packs[0](columns.values([Inner(2**63)])[0])


def test_what_json_has_no_place_for_is_told_as_a_text() -> None:
    assert [to_json(value) for value in ({}, [], {"a": 1}, None)] == ["{}", "[]", '{"a":1}', "null"]
    assert to_json({"a": 1j}) == '{"a":"1j"}'


def completion(**fields: Any) -> RolloutCompleted:
    usual: dict[str, Any] = {
        "tokens": [3, 4, 5, 6], "log_probs": [-0.5] * 4, "start": 2, "prompt_length": 2,
        "spans": (WeightSpan(0, 3, 4), WeightSpan(4, 6, 5)),
    }  # fmt: skip
    return made.completed(**usual | fields)


def token_rows(*events_: Event) -> list[dict[str, Any]]:
    return EVENT_TABLES["token_run"].batch(recorded(list(events_)), unpack).to_pylist()


def test_tokens_have_the_versions_of_the_whole_response() -> None:
    (row,) = token_rows(completion())
    assert (row["start"], row["tokens"], row["versions"]) == (2, [3, 4, 5, 6], [4, None, 5, 5])
    assert (row["loss_mask"], row["credit"], row["sample"], row["position"]) == (None, None, "g-s0", 1)
    mask, credit = pack([1, 0, 1, 1, 1, 1], "int8"), pack([0.5] * 6, "float32")
    (masked,) = token_rows(completion(loss_mask=mask, credit=credit))
    assert (masked["loss_mask"], masked["credit"]) == ([1, 0, 1, 1, 1, 1], [0.5] * 6)


def test_chunks_of_turns_are_left_to_the_completion() -> None:
    chunk = made.progressed("g-s0", [1, 2], spans=(WeightSpan(0, 2, 4),), log_probs=[-1.0, -1.0])
    of_turn = msgspec.structs.replace(chunk, turn=0)
    assert [row["start"] for row in token_rows(chunk, of_turn, completion())] == [0, 2]


@pytest.mark.parametrize(
    ("table", "about"),
    [("prompt_submitted", True), ("group_rejected", True), ("turn_begun", True), ("token_run", True),
     ("rollout_completed", True), ("reward_failed", True), ("step_committed", False), ("event", False),
     ("batch_sealed", False)],
)  # fmt: skip
def test_which_tables_are_about_rollouts(table: str, about: bool) -> None:
    assert is_about_rollouts(table) is about
    assert table in EVENT_TABLES


def test_a_type_is_in_the_subject() -> None:
    assert type_in("slime.run.rollout.completed.a.b") == "rollout.completed"


class Batches:
    """Collect what a builder writes."""

    def __init__(self, *names: str) -> None:
        self.written: list[tuple[str, list[int]]] = []
        self.builder = RowBuilder([EVENT_TABLES[name] for name in names], unpack, self._write)

    def _write(self, table: Any, batch: pa.RecordBatch) -> None:
        self.written.append((table.name, batch.column("position").to_pylist()))

    def add(self, *records: Recorded) -> None:
        for record in records:
            self.builder.add([record])


def test_rows_are_in_the_log_s_order_whatever_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        record
        for record in recorded(list(events()))
        if record.envelope.type in ("reward.assigned", "rollout.completed")
    ]
    both = [record.position for record in records]
    batches = Batches("event", "reward_assigned", "worker_joined")
    assert {record.envelope.type for record in records} <= batches.builder.types
    batches.add(*records[:6])
    batches.builder.flush()
    rewards = [record.position for record in records[:6] if record.envelope.type == "reward.assigned"]
    assert batches.written == [("event", both[:6]), ("reward_assigned", rewards)]
    batches.written.clear()
    batches.builder.flush()
    assert batches.written == []
    joined = Batches("token_run", "reward_assigned", "worker_joined")
    joined.add(*records)
    joined.builder.flush()
    tokens = [record.position for record in records if record.envelope.type == "rollout.completed"]
    assert joined.written[0] == ("token_run", tokens)


def test_it_is_full_by_events_or_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    records = recorded(list(events()))
    monkeypatch.setattr(row_builder, "BATCH_BYTES", len(records[0].data) + 1)
    batches = Batches("event")
    batches.add(records[0])
    assert not batches.builder.full
    monkeypatch.undo()
    monkeypatch.setattr(row_builder, "BATCH", 3)
    batches = Batches("event")
    full = []
    for record in records[:4]:
        batches.add(record)
        full.append(batches.builder.full)
    assert full == [False, False, True, True]
    batches.builder.flush()
    assert not batches.builder.full
    monkeypatch.setattr(row_builder, "BATCH", 100)
    monkeypatch.setattr(row_builder, "BATCH_BYTES", len(records[0].data) + len(records[1].data))
    batches.add(records[0])
    assert not batches.builder.full
    batches.add(records[1])
    assert batches.builder.full
    batches.builder.flush()
    assert not batches.builder.full


def test_times_are_in_microseconds_and_all_of_an_event_is_in_its_row() -> None:
    records = recorded(list(events()))
    batch = EVENT_TABLES["event"].batch(records, unpack)
    assert batch.column("time").cast(pa.int64()).to_pylist() == [record.envelope.at // 1000 for record in records]
    rows = batch.to_pylist()
    for row, record in zip(rows, records, strict=True):
        fields = {name: row[name] for name in ("position", "producer", "type", "id", "cause", "traceparent", "bytes")}
        assert fields == {
            "position": record.position, "producer": record.envelope.producer, "type": record.envelope.type,
            "id": record.envelope.id, "cause": record.envelope.cause, "traceparent": record.envelope.traceparent,
            "bytes": len(record.data),
        }  # fmt: skip
        assert row["entity"] == record.subject.split(".", 4)[4]


def test_a_span_is_told_as_the_live_processes_traced_it() -> None:
    timed = Timings(generating=0.25)
    records = recorded([replace(e, timings=timed) if isinstance(e, RolloutCompleted) else e for e in events()])
    spans = [(record.position, span) for record in records if (span := span_of(record.envelope)) is not None]
    batch = EVENT_TABLES["span"].batch(records, unpack)
    assert batch.column("started").cast(pa.int64()).to_pylist() == [span.start_ns // 1000 for _, span in spans]
    assert batch.column("ended").cast(pa.int64()).to_pylist() == [span.end_ns // 1000 for _, span in spans]
    assert len(spans) > 20
    for row, (position, span) in zip(batch.to_pylist(), spans, strict=True):
        assert (row["position"], row["name"], row["error"]) == (position, str(span.name), span.error)
        assert (int(row["trace_id"], 16), len(row["trace_id"])) == (span.trace, 32)
        assert (int(row["span_id"], 16), len(row["span_id"])) == (span.span, 16)
        assert row["parent_span_id"] == (None if span.parent is None else f"{span.parent:016x}")
        assert row["seconds"] == pytest.approx((span.end_ns - span.start_ns) / 1e9)
        assert row["links"] == [f"{link.trace:032x}/{link.span:016x}" for link in span.links]
        assert msgspec.json.decode(row["attributes"]).keys() == span.attributes.keys()
        assert row["sample"] == span.attributes.get("rl.sample.id")
    generated = [row["seconds"] for row in batch.to_pylist() if row["name"] == "generate"]
    assert generated
    assert set(generated) == {0.25}
