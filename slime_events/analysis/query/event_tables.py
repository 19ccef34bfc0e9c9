"""Event tables"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.event import Event, type_of
from schemas.registry import BY_TYPE, EVENT_CLASSES
from schemas.rollouts import RolloutCompleted, RolloutProgressed, WeightSpan
from slime_events.analysis.query.columns import struct_columns, to_json
from slime_events.core.telemetry import names
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.trajectory import Fetch
from storage.log import Recorded

SPAN_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("name", pa.string()),
        ("trace", pa.string()),
        ("span", pa.string()),
        ("parent", pa.string()),
        ("begun", pa.timestamp("us")),
        ("ended", pa.timestamp("us")),
        ("seconds", pa.float64()),
        ("group", pa.string()),
        ("sample", pa.string()),
        ("version", pa.int64()),
        ("error", pa.string()),
        ("attributes", pa.string()),
        ("links", pa.list_(pa.string())),
    ]
)


def span_rows(records: Sequence[Recorded], fetch: Fetch) -> list[pa.Array]:
    """A row for each event that ends a span; every group's trace, whatever share of them the run kept."""
    found = [(one.position, span) for one in records if (span := span_of(one.envelope)) is not None]
    spans = [span for _, span in found]
    said = [span.attributes for span in spans]
    columns = [
        [position for position, _ in found],
        [str(span.name) for span in spans],
        [f"{span.trace:032x}" for span in spans],
        [f"{span.span:016x}" for span in spans],
        [None if span.parent is None else f"{span.parent:016x}" for span in spans],
        [span.start_ns // 1000 for span in spans],
        [span.end_ns // 1000 for span in spans],
        [(span.end_ns - span.start_ns) / 1e9 for span in spans],
        [attributes.get(names.RL_GROUP) for attributes in said],
        [attributes.get(names.RL_SAMPLE) for attributes in said],
        [attributes.get(names.RL_WEIGHTS_VERSION) for attributes in said],
        [span.error for span in spans],
        [to_json(dict(attributes)) for attributes in said],
        [[f"{link.trace:032x}/{link.span:016x}" for link in span.links] for span in spans],
    ]
    return [pa.array(column, field.type) for column, field in zip(columns, SPAN_SCHEMA, strict=True)]


TOKEN_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("sample", pa.string()),
        ("start", pa.int64()),
        ("tokens", pa.list_(pa.int32())),
        ("log_probs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
    ]
)
"""loss_mask: of the whole response, in the completion's row alone; null where all of it is trained on."""


def token_rows(records: Sequence[Recorded], fetch: Fetch) -> list[pa.Array]:
    """A row for each chunk and completion that holds tokens or a mask. A turn's chunks are passed over: the rollout's
    completion holds them again, in the response's positions."""
    said: list[tuple[int, RolloutProgressed | RolloutCompleted]] = []
    for one in records:
        event = one.envelope.event
        if isinstance(event, RolloutCompleted) or (isinstance(event, RolloutProgressed) and event.turn is None):
            said.append((one.position, event))
    masks = [
        fetch(event.loss_mask) if isinstance(event, RolloutCompleted) and event.loss_mask else None for _, event in said
    ]
    columns: list[list[Any]] = [
        [position for position, _ in said],
        [event.sample for _, event in said],
        [event.start for _, event in said],
        [fetch(event.tokens) for _, event in said],
        [fetch(event.log_probs) for _, event in said],
        [_versions(event.spans, event.start, event.tokens.n) for _, event in said],
        masks,
    ]
    return [pa.array(column, field.type) for column, field in zip(columns, TOKEN_SCHEMA, strict=True)]


def _versions(spans: tuple[WeightSpan, ...], start: int, count: int) -> list[int | None]:
    """The weight version of each of the tokens [start, start + count); None between spans, which tools have said."""
    found = np.full(count, -1)
    for span in spans:
        found[max(0, span.start - start) : max(0, span.end - start)] = span.version
    return [None if version < 0 else int(version) for version in found]


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


BATCH = 8192
"""Events that become columns at once."""
BATCH_BYTES = 32 * 1024 * 1024
"""Of their records: long rollouts come in smaller batches."""

Write = Callable[[Fact, pa.RecordBatch], None]


class FactBuilder:
    """Hands the rows of `facts` to `write`, a batch at a time and in order."""

    def __init__(self, facts: Collection[Fact], fetch: Fetch, write: Write) -> None:
        self._facts, self._fetch, self._write = facts, fetch, write
        self.types = frozenset().union(*(fact.types for fact in facts))
        """The events that matter."""
        self._waiting: list[Recorded] = []
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether it is time to flush."""
        return len(self._waiting) >= BATCH or self._bytes >= BATCH_BYTES

    def add(self, recorded: Recorded) -> None:
        """One more event. Flush when full."""
        self._waiting.append(recorded)
        self._bytes += len(recorded.data)

    def flush(self) -> None:
        """Make rows of all that waits."""
        for fact in self._facts:
            batch = fact.batch([one for one in self._waiting if one.envelope.type in fact.types], self._fetch)
            if batch.num_rows:
                self._write(fact, batch)
        self._waiting, self._bytes = [], 0


def type_in(subject: str) -> str:
    """The event's type, by its subject alone."""
    _, _, noun, verb, _ = subject.split(".", 4)
    return f"{noun}.{verb}"
