"""`to_otlp_json`: a span in OTLP's JSON encoding, written apart from `span_lines`, which must write the same."""

from __future__ import annotations

from typing import Any

from slime_events.core.telemetry.span import Span


def to_otlp_json(span: Span) -> dict[str, Any]:
    """Return the span's object: ids in hex, 64-bit numbers as text."""
    plain: dict[str, Any] = {
        "traceId": f"{span.trace:032x}",
        "spanId": f"{span.span:016x}",
        "name": span.name,
        "kind": 4,
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


def _wrap(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": str(value)}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(int(value))}
    if isinstance(value, float):
        return {"doubleValue": value}
    assert isinstance(value, list | tuple)
    return {"arrayValue": {"values": [_wrap(item) for item in value]}}
