"""Rows of spans: what the live processes traced, made again from the log, with the same ids and times."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from slime_events.analysis.query.columns import to_json
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
