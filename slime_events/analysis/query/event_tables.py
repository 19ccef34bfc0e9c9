"""`EventTable`: events of one type as rows. An event gives one or several rows, independently of other events.

So the rows of a part of the log never change, can be stored as Parquet files, and are joined by SQL
(`slime_events/analysis/query/tables/`). They can be queried too, in the schema `log`: `log.rollout_completed` and so
on, with the fields of `docs/events.md`. They are made from events, not from `slime_events.model`: 10^6 events
become columns in batches, without an object per sample.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.codec import WholeEnvelope, enclosed
from schemas.doc import doc
from schemas.envelope import Envelope
from schemas.event import Event, type_of
from schemas.registry import BY_TYPE, EVENT_CLASSES
from schemas.rollouts import Maker, RolloutCompleted, RolloutProgressed, RolloutRequested
from slime_events.analysis.query.columns import ArrowColumn, scalar, struct_columns, to_json
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.span import Span
from slime_events.core.tokens.trajectory import Fetch
from storage.log import Recorded

LOG = "log"
"""SQL schema of all event tables."""
ROW_VERSION = 2
"""Increase it if the same events give different rows in the same columns: files with older rows are then ignored."""
TEXT, INT, TIME = pa.string(), pa.int64(), pa.timestamp("us")
INT32S = pa.list_(pa.int32())


class StoredRow(msgspec.Struct, frozen=True, gc=False):
    """`Recorded` without an `Envelope` object."""

    position: int
    subject: str
    envelope: Envelope | WholeEnvelope
    data: bytes


Row = Recorded | StoredRow
Rows = Callable[[Sequence[Row], Fetch], list[pa.Array]]


@dataclass(frozen=True, slots=True)
class EventTable:
    """Rows of some types of events."""

    name: Annotated[str, doc("name in SQL")]
    types: Annotated[frozenset[str], doc("types of events that have rows in it")]
    schema: Annotated[pa.Schema, doc("columns of its rows")]
    rows: Annotated[Rows, doc("makes the columns of `schema`, in order, from such events")]

    def batch(self, records: Sequence[Row], fetch: Fetch) -> pa.RecordBatch:
        """Return the rows of these events, which must be of its types. Raises the errors of `fetch` if a column needs
        an array.
        """
        return pa.RecordBatch.from_arrays(self.rows(records, fetch), schema=self.schema)

    def fingerprint(self) -> str:
        """Return eight hex digits that change whenever stored rows become invalid."""
        return hashlib.sha256(f"{ROW_VERSION} {self.name} {self.schema}".encode()).hexdigest()[:8]


def _times(nanoseconds: list[int]) -> pa.Array:
    return pa.array(np.array(nanoseconds, np.int64) // 1000).cast(TIME)


_ENVELOPE = (
    scalar("position", INT, attrgetter("position")),
    ArrowColumn("time", TIME, attrgetter("envelope.at"), _times),
    scalar("producer", TEXT, attrgetter("envelope.producer")),
)
_EVENT = (
    *_ENVELOPE,
    scalar("type", TEXT, lambda row: type_in(row.subject)),
    scalar("entity", TEXT, lambda row: row.subject.split(".", 4)[4]),
    scalar("id", TEXT, lambda row: row.envelope.id),
    scalar("cause", TEXT, lambda row: row.envelope.cause),
    scalar("traceparent", TEXT, lambda row: row.envelope.traceparent),
    scalar("bytes", INT, lambda row: len(row.data)),
)


_FORMER: dict[type[Event], tuple[ArrowColumn, ...]] = {
    RolloutRequested: (scalar("agents", pa.bool_(), lambda event: event.maker is Maker.AGENT),)
}
"""Columns of fields that older schemas had, and that queries may use."""


def _of_type(event: type[Event]) -> EventTable:
    """Return the table of one event type, such as `log.rollout_completed`: a row per event, a column per field."""
    columns = [*struct_columns(event), *_FORMER.get(event, ())]

    def rows(records: Sequence[Row], fetch: Fetch) -> list[pa.Array]:
        events = [row.envelope.event for row in records]
        return [*(column.array(records) for column in _ENVELOPE), *(column.array(events) for column in columns)]

    tag = type_of(event)
    return EventTable(tag.replace(".", "_"), frozenset((tag,)), _schema((*_ENVELOPE, *columns)), rows)


def _schema(columns: Sequence[ArrowColumn]) -> pa.Schema:
    return pa.schema([(column.name, column.type) for column in columns])


def _event_rows(records: Sequence[Row], fetch: Fetch) -> list[pa.Array]:
    return [column.array(records) for column in _EVENT]


class _SpanRow(NamedTuple):
    position: int
    span: Span


_SPAN = (
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


def _span_rows(records: Sequence[Row], fetch: Fetch) -> list[pa.Array]:
    """Return a row for each event that ends a span, with the live processes' trace, for every group."""
    ended = ((row.position, span_of(enclosed(row.envelope, row.envelope.event))) for row in records)
    rows = [_SpanRow(position, span) for position, span in ended if span is not None]
    return [column.array(rows) for column in _SPAN]


class _TokenRow(NamedTuple):
    position: int
    event: RolloutProgressed | RolloutCompleted
    fetch: Fetch

    @property
    def versions(self) -> list[int | None]:
        """Weight version per token; None between spans: a tool's output."""
        start = self.event.start
        versions = np.full(self.event.tokens.n, -1)
        for span in self.event.spans:
            versions[max(0, span.start - start) : max(0, span.end - start)] = span.version
        return [None if version < 0 else int(version) for version in versions]

    @property
    def loss_mask(self) -> npt.NDArray[np.int8] | None:
        """Mask over the whole response, in the completion's row only; None if every token is trained on."""
        mask = self.event.loss_mask if isinstance(self.event, RolloutCompleted) else None
        return self.fetch(mask) if mask else None

    @property
    def credit(self) -> npt.NDArray[np.float32] | None:
        """Weights over the whole response, in the completion's row only; None if every token has weight 1."""
        credit = self.event.credit if isinstance(self.event, RolloutCompleted) else None
        return self.fetch(credit) if credit else None


_TOKEN_RUN = (
    scalar("position", INT, lambda row: row.position),
    scalar("sample", TEXT, lambda row: row.event.sample),
    scalar("start", INT, lambda row: row.event.start),
    scalar("tokens", INT32S, lambda row: row.fetch(row.event.tokens)),
    scalar("log_probs", pa.list_(pa.float32()), lambda row: row.fetch(row.event.log_probs)),
    scalar("versions", INT32S, lambda row: row.versions),
    scalar("loss_mask", pa.list_(pa.int8()), lambda row: row.loss_mask),
    scalar("credit", pa.list_(pa.float32()), lambda row: row.credit),
)


def _token_rows(records: Sequence[Row], fetch: Fetch) -> list[pa.Array]:
    """Return a row per chunk and completion. Turns' chunks are left out: the completion repeats their tokens."""
    rows = [
        _TokenRow(row.position, event, fetch)
        for row in records
        if isinstance(event := row.envelope.event, RolloutCompleted)
        or (isinstance(event, RolloutProgressed) and event.turn is None)
    ]
    return [column.array(rows) for column in _TOKEN_RUN]


EVENT_TABLES: dict[str, EventTable] = {
    table.name: table
    for table in (
        *map(_of_type, EVENT_CLASSES),
        EventTable("event", frozenset(BY_TYPE), _schema(_EVENT), _event_rows),
        EventTable("span", frozenset(BY_TYPE), _schema(_SPAN), _span_rows),
        EventTable(
            "token_run", frozenset(("rollout.progressed", "rollout.completed")), _schema(_TOKEN_RUN), _token_rows
        ),
    )
}
"""All event tables by name."""


BATCH = 8192
"""Events per batch."""
BATCH_BYTES = 32 * 1024 * 1024
"""Bytes of records per batch: long rollouts come in smaller batches."""

Write = Callable[[EventTable, pa.RecordBatch], None]


class RowBuilder:
    """Pass the rows of `tables` to `write`, in batches and in order."""

    def __init__(self, tables: Collection[EventTable], fetch: Fetch, write: Write) -> None:
        self._tables, self._fetch, self._write = tables, fetch, write
        self.types = frozenset().union(*(table.types for table in tables))
        """Types of events that have rows."""
        self._waiting: list[Row] = []
        self._of_type = defaultdict[str, list[Row]](list)
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether `flush` is due."""
        return len(self._waiting) >= BATCH or self._bytes >= BATCH_BYTES

    def add(self, row: Row, event_type: str) -> None:
        """Add an event with its type. Flush if `full`."""
        self._waiting.append(row)
        self._of_type[event_type].append(row)
        self._bytes += len(row.data)

    def flush(self) -> None:
        """Write the rows of all added events."""
        for table in self._tables:
            batch = table.batch(self._rows_of(table), self._fetch)
            if batch.num_rows:
                self._write(table, batch)
        self._waiting, self._bytes = [], 0
        self._of_type.clear()

    def _rows_of(self, table: EventTable) -> Sequence[Row]:
        """Return the added events of a table, in the order of the log."""
        if self.types <= table.types:
            return self._waiting
        parts = [self._of_type[kind] for kind in table.types if kind in self._of_type]
        return parts[0] if len(parts) == 1 else sorted(chain.from_iterable(parts), key=attrgetter("position"))


def type_in(subject: str) -> str:
    """Return the event's type from its subject."""
    _, _, noun, verb, _ = subject.split(".", 4)
    return f"{noun}.{verb}"
