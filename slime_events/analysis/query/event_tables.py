"""`EventTable`: events of one type as rows. An event gives one or several rows, independently of other events.

So the rows of a part of the log never change, can be stored as Parquet files, and are joined by SQL
(`slime_events/analysis/query/tables/`). They can be queried too, in the schema `log`: `log.rollout_completed` and so
on, with the fields of `docs/events.md`. They are made from events, not from `slime_events.model`: 10^6 events
become columns in batches, without an object per sample.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa

from schemas.codec import enclosed
from schemas.doc import doc
from schemas.event import Event, type_of
from schemas.registry import BY_TYPE, EVENT_CLASSES
from schemas.rollouts import Maker, RolloutRequested
from slime_events.analysis.query.columns import ArrowColumn, Pack, RowColumns, StructColumns, Values, scalar, to_json
from slime_events.analysis.query.row import Row
from slime_events.analysis.query.token_runs import TOKEN_RUN, TYPES, pack_token_runs, token_run_values
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.span import Span
from slime_events.core.tokens.trajectory import Fetch

LOG = "log"
"""SQL schema of all event tables."""
ROW_VERSION = 3
"""Increase it if the same events give different rows in the same columns: files with older rows are then ignored."""
TEXT, INT, TIME = pa.string(), pa.int64(), pa.timestamp("us")


PackAll = Callable[[Sequence[Values], Fetch], list[pa.Array]]


@dataclass(frozen=True, slots=True, eq=False)
class EventTable:
    """Rows of some types of events.

    `values` returns the values of such events in columns, which `pack` converts to the columns of `schema`: the events
    need not be in memory until then.
    """

    name: Annotated[str, doc("name in SQL")]
    types: Annotated[frozenset[str], doc("types of events that have rows in it")]
    schema: Annotated[pa.Schema, doc("columns of its rows")]
    values: Annotated[Callable[[Sequence[Row]], list[Values]], doc("returns columns of values; the first has all rows")]
    pack: Annotated[PackAll, doc("converts these columns to Arrow, in the order of `schema`")]

    def batch(self, records: Sequence[Row], fetch: Fetch) -> pa.RecordBatch:
        """Return the rows of these events, which must be of its types. Raises as `packed`."""
        return self.packed(self.values(records), fetch)

    def packed(self, values: Sequence[Values], fetch: Fetch) -> pa.RecordBatch:
        """Return the rows of these columns of values. Raises the errors of `fetch` if a column needs an array."""
        return pa.RecordBatch.from_arrays(self.pack(values, fetch), schema=self.schema)

    def fingerprint(self) -> str:
        """Return eight hex digits that change whenever stored rows become invalid."""
        return hashlib.sha256(f"{ROW_VERSION} {self.name} {self.schema}".encode()).hexdigest()[:8]


def _pack_all(packs: Sequence[Pack]) -> PackAll:
    return lambda values, fetch: [pack(column) for pack, column in zip(packs, values, strict=True)]


def _times(nanoseconds: Values) -> pa.Array:
    return pa.array(np.array(nanoseconds, np.int64) // 1000).cast(TIME)


_HEAD = (
    scalar("position", INT, attrgetter("position")),
    ArrowColumn("time", TIME, attrgetter("envelope.at"), _times),
    scalar("producer", TEXT, attrgetter("envelope.producer")),
)
_ENVELOPE = RowColumns(*_HEAD)
_EVENT = RowColumns(
    *_HEAD,
    scalar("type", TEXT, lambda row: type_in(row.subject)),
    scalar("entity", TEXT, lambda row: row.subject.split(".", 4)[4]),
    scalar("id", TEXT, lambda row: row.envelope.id),
    scalar("cause", TEXT, lambda row: row.envelope.cause),
    scalar("traceparent", TEXT, lambda row: row.envelope.traceparent),
    scalar("bytes", INT, lambda row: len(row.data)),
)


_FORMER: dict[type[Event], RowColumns] = {
    RolloutRequested: RowColumns(scalar("agents", pa.bool_(), lambda event: event.maker is Maker.AGENT))
}
"""Columns of fields that older schemas had, and that queries may use."""


def _of_type(event: type[Event]) -> EventTable:
    """Return the table of one event type, such as `log.rollout_completed`: a row per event, a column per field."""
    fields, former = StructColumns(event), _FORMER.get(event, RowColumns())

    def values(records: Sequence[Row]) -> list[Values]:
        events = [row.envelope.event for row in records]
        return [*_ENVELOPE.values(records), *fields.values(events), *former.values(events)]

    tag, parts = type_of(event), (_ENVELOPE, fields, former)
    schema = pa.schema([column for part in parts for column in part.schema])
    packs = [pack for part in parts for pack in part.packs]
    return EventTable(tag.replace(".", "_"), frozenset((tag,)), schema, values, _pack_all(packs))


class _SpanRow(NamedTuple):
    position: int
    span: Span


_SPAN = RowColumns(
    scalar("position", INT, lambda row: row.position),
    scalar("name", TEXT, lambda row: str(row.span.name)),
    scalar("trace_id", TEXT, lambda row: f"{row.span.trace:032x}"),
    scalar("span_id", TEXT, lambda row: f"{row.span.span:016x}"),
    scalar("parent_span_id", TEXT, lambda row: None if row.span.parent is None else f"{row.span.parent:016x}"),
    scalar("started", TIME, lambda row: row.span.start_ns // 1000),
    scalar("ended", TIME, lambda row: row.span.end_ns // 1000),
    scalar("seconds", pa.float64(), lambda row: (row.span.end_ns - row.span.start_ns) / 1e9),
    scalar("group", TEXT, lambda row: row.span.attributes.get("rl.group.id")),
    scalar("sample", TEXT, lambda row: row.span.attributes.get("rl.sample.id")),
    scalar("version", INT, lambda row: row.span.attributes.get("rl.weights.version")),
    scalar("error", TEXT, lambda row: row.span.error),
    scalar("attributes", TEXT, lambda row: to_json(dict(row.span.attributes))),
    scalar("links", pa.list_(TEXT), lambda row: [f"{link.trace:032x}/{link.span:016x}" for link in row.span.links]),
)


def _span_values(records: Sequence[Row]) -> list[Values]:
    """Return a row for each event that ends a span, with the live processes' trace, for every group."""
    ended = ((row.position, span_of(enclosed(row.envelope, row.envelope.event))) for row in records)
    return _SPAN.values([_SpanRow(position, span) for position, span in ended if span is not None])


EVENT_TABLES: dict[str, EventTable] = {
    table.name: table
    for table in (
        *map(_of_type, EVENT_CLASSES),
        EventTable("event", frozenset(BY_TYPE), _EVENT.schema, _EVENT.values, _pack_all(_EVENT.packs)),
        EventTable("span", frozenset(BY_TYPE), _SPAN.schema, _span_values, _pack_all(_SPAN.packs)),
        EventTable("token_run", TYPES, TOKEN_RUN, token_run_values, pack_token_runs),
    )
}
"""All event tables by name."""


def type_in(subject: str) -> str:
    """Return the event's type from its subject."""
    _, _, noun, verb, _ = subject.split(".", 4)
    return f"{noun}.{verb}"
