"""`Span`: a stretch of time in a trace, and its OTLP JSON form (one span a line in a file)."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from slime_events.core.telemetry.ids import SpanContext

Attribute: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[int]


class SpanKind(enum.IntEnum):
    """OTLP's numbers."""

    INTERNAL = 1
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A finished span. start_ns, end_ns: UTC. parent: span id in the same trace. error: why it failed."""

    name: str
    trace: int
    span: int
    start_ns: int
    end_ns: int
    parent: int | None = None
    attributes: Mapping[str, Attribute] = {}
    links: Sequence[SpanContext] = ()
    kind: SpanKind = SpanKind.INTERNAL
    error: str | None = None

    @property
    def context(self) -> SpanContext:
        """Its ids."""
        return SpanContext(self.trace, self.span)


def to_otlp_json(span: Span) -> dict[str, Any]:
    """The span as OTLP's JSON encoding has it (ids in hex, 64-bit numbers as text)."""
    plain: dict[str, Any] = {
        "traceId": f"{span.trace:032x}",
        "spanId": f"{span.span:016x}",
        "name": str(span.name),
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": [{"key": key, "value": _wrap(value)} for key, value in span.attributes.items()],
    }
    if span.parent is not None:
        plain["parentSpanId"] = f"{span.parent:016x}"
    if span.links:
        plain["links"] = [{"traceId": f"{link.trace:032x}", "spanId": f"{link.span:016x}"} for link in span.links]
    if span.error is not None:
        plain["status"] = {"code": 2, "message": span.error}
    return plain


def from_otlp_json(plain: Mapping[str, Any]) -> Span:
    """The span again. KeyError or ValueError where it is none."""
    status = plain.get("status", {})
    parent = plain.get("parentSpanId")
    return Span(
        name=plain["name"],
        trace=int(plain["traceId"], 16),
        span=int(plain["spanId"], 16),
        start_ns=int(plain["startTimeUnixNano"]),
        end_ns=int(plain["endTimeUnixNano"]),
        parent=int(parent, 16) if parent else None,
        attributes={entry["key"]: _unwrap(entry["value"]) for entry in plain.get("attributes", ())},
        links=tuple(SpanContext(int(e["traceId"], 16), int(e["spanId"], 16)) for e in plain.get("links", ())),
        kind=SpanKind(plain.get("kind", 1)),
        error=status.get("message", "") if status.get("code") == 2 else None,
    )


def _wrap(value: Attribute) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": str(value)}
        case _:
            return {"arrayValue": {"values": [_wrap(item) for item in value]}}


def _unwrap(value: Mapping[str, Any]) -> Any:
    ((kind, content),) = value.items()
    match kind:
        case "intValue":
            return int(content)
        case "arrayValue":
            return tuple(_unwrap(item) for item in content.get("values", ()))
        case _:
            return content
