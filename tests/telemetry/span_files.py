"""Read files of spans, and write them as a process would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from slime_events.core.telemetry.exporters import FileExporter
from slime_events.core.telemetry.span import Span, SpanContext
from slime_events.core.telemetry.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class SpanFiles:
    """All spans of a folder, by start time, and the number that processes dropped."""

    spans: tuple[Span, ...]
    dropped: int


def to_file(path: Path, share: float = 1.0) -> Telemetry:
    """Return telemetry whose spans go to a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return Telemetry(FileExporter(path.open("wb", buffering=0), {}), share)


def read_spans(folder: Path) -> SpanFiles:
    """Return the spans in `*.jsonl` of a folder."""
    spans: dict[SpanContext, Span] = {}
    dropped = 0
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            plain = msgspec.json.decode(line, type=dict)
            if "traceId" in plain:
                span = from_otlp_json(plain)
                spans[span.context] = span
            dropped += int(plain.get("dropped", 0))
    return SpanFiles(tuple(sorted(spans.values(), key=lambda span: span.start_ns)), dropped)


def from_otlp_json(plain: Mapping[str, Any]) -> Span:
    """Return the span of an OTLP JSON object. Raises KeyError or ValueError."""
    status = plain.get("status", {})
    parent = plain.get("parentSpanId")
    return Span(
        name=plain["name"],
        trace=int(plain["traceId"], 16),
        span=int(plain["spanId"], 16),
        start_ns=int(plain["startTimeUnixNano"]),
        end_ns=int(plain["endTimeUnixNano"]),
        parent=int(parent, 16) if parent else None,
        attributes={e["key"]: _unwrap(e["value"]) for e in plain.get("attributes", ())},
        links=tuple(SpanContext(int(e["traceId"], 16), int(e["spanId"], 16)) for e in plain.get("links", ())),
        error=status.get("message", "") if status.get("code") == 2 else None,
    )


def _unwrap(value: Mapping[str, Any]) -> Any:
    ((kind, content),) = value.items()
    match kind:
        case "intValue":
            return int(content)
        case "arrayValue":
            return tuple(_unwrap(item) for item in content.get("values", ()))
        case _:
            return content
