"""`Fact`: what one kind of event says, as rows: a row, or several, for an event, and nothing that other events say.

So the facts of a part of the log never change, can be kept as Parquet files, and are joined by SQL
(`slime_events/analysis/query/tables/`). They are tables too, in the schema `log`: `log.rollout_completed` and so on,
with the fields of `docs/events.md`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from schemas.event import Event, type_of
from schemas.registry import BY_TYPE, EVENT_CLASSES
from slime_events.analysis.query.columns import struct_columns
from slime_events.analysis.query.span_rows import SPAN_SCHEMA, span_rows
from slime_events.analysis.query.token_rows import TOKEN_SCHEMA, token_rows
from slime_events.core.trajectory import Fetch
from storage.log import Recorded

LOG = "log"
"""The SQL schema of all facts."""
RULES = 1
"""Raised when the same events give other rows in the same columns."""

Rows = Callable[[Sequence[Recorded], Fetch], list[pa.Array]]


@dataclass(frozen=True, slots=True)
class Fact:
    """types: the events that it is of. rows: of such events, the columns of `schema`, in order."""

    name: str
    types: frozenset[str]
    schema: pa.Schema
    rows: Rows

    def batch(self, records: Sequence[Recorded], fetch: Fetch) -> pa.RecordBatch:
        """The rows of these events, which are all of its types. Raises as `fetch` where an array is asked for."""
        return pa.RecordBatch.from_arrays(self.rows(records, fetch), schema=self.schema)

    def fingerprint(self) -> str:
        """Eight digits that change whenever kept rows would not fit any more."""
        return hashlib.sha256(f"{RULES} {self.name} {self.schema}".encode()).hexdigest()[:8]


_WHERE = pa.schema([("position", pa.int64()), ("time", pa.timestamp("us")), ("producer", pa.string())])


def fact_name(event: type[Event]) -> str:
    """`rollout.completed` as a name of SQL."""
    return type_of(event).replace(".", "_")


def _where(records: Sequence[Recorded]) -> list[pa.Array]:
    return [
        pa.array([one.position for one in records], pa.int64()),
        pa.array([one.envelope.at // 1000 for one in records], pa.timestamp("us")),
        pa.array([one.envelope.producer for one in records], pa.string()),
    ]


def _fact_of(event: type[Event]) -> Fact:
    columns = list(struct_columns(event))
    schema = pa.schema([*_WHERE, *((column.name, column.type) for column in columns)])

    def rows(records: Sequence[Recorded], fetch: Fetch) -> list[pa.Array]:
        said = [one.envelope.event for one in records]
        return [*_where(records), *(column.array(said) for column in columns)]

    return Fact(fact_name(event), frozenset((type_of(event),)), schema, rows)


_EVENT_SCHEMA = pa.schema(
    [
        *_WHERE,
        ("type", pa.string()),
        ("entity", pa.string()),
        ("id", pa.string()),
        ("cause", pa.string()),
        ("traceparent", pa.string()),
        ("bytes", pa.int64()),
    ]
)


def _event_rows(records: Sequence[Recorded], fetch: Fetch) -> list[pa.Array]:
    subjects = [one.subject.split(".", 4) for one in records]
    return [
        *_where(records),
        pa.array([f"{noun}.{verb}" for _, _, noun, verb, _ in subjects], pa.string()),
        pa.array([entity for *_, entity in subjects], pa.string()),
        *(
            pa.array([getattr(one.envelope, name) for one in records], pa.string())
            for name in ("id", "cause", "traceparent")
        ),
        pa.array([len(one.data) for one in records], pa.int64()),
    ]


FACTS: dict[str, Fact] = {
    fact.name: fact
    for fact in (
        *map(_fact_of, EVENT_CLASSES),
        Fact("event", frozenset(BY_TYPE), _EVENT_SCHEMA, _event_rows),
        Fact("span", frozenset(BY_TYPE), SPAN_SCHEMA, span_rows),
        Fact("token_run", frozenset({"rollout.progressed", "rollout.completed"}), TOKEN_SCHEMA, token_rows),
    )
}
"""All of them, by name."""
