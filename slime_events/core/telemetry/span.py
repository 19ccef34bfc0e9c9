"""`Span`: an interval in a trace, and its OTLP JSON form (one span a line in a file).

Trace and span ids follow from names, so every process and every reader of the log computes the same ones. A group has
one trace, a weight version has one; a span's id follows from the run and its key (`submit/<group>`).
"""

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LOW_64 = 2**64 - 1
_PRODUCER = 4
"""OTLP's kind of a span that ends with a message."""
KEPT = 1024
"""Cached ids: those of an event are needed again for its span, those of a group for each of its samples."""


class SpanContext(NamedTuple):
    """A span, in whichever process: 128-bit trace id, 64-bit span id."""

    trace: int
    span: int


@functools.lru_cache(KEPT)
def trace_id(run: str, group: str) -> int:
    """The trace of a group: 128 bits."""
    return int.from_bytes(_digest(run, group)[:16], "big")


@functools.lru_cache(KEPT)
def span_id(run: str, key: str) -> int:
    """A span of the run: 64 bits."""
    return int.from_bytes(_digest(run, "span", key)[:8], "big")


def sampled(trace: int, share: float) -> bool:
    """Whether a trace is among the `share` (0 to 1) that is kept. OpenTelemetry's ratio rule: all samplers agree."""
    return trace & _LOW_64 < round(share * 2**64)


def format_traceparent(context: SpanContext, is_sampled: bool) -> str:
    """W3C trace context, version 00."""
    return f"00-{context.trace:032x}-{context.span:016x}-{is_sampled:02x}"


def parse_traceparent(text: str | None) -> SpanContext | None:
    """The context in a traceparent, None if missing or invalid (W3C: ignore it then)."""
    match = _TRACEPARENT.fullmatch(text or "")
    if match is None:
        return None
    context = SpanContext(int(match[1], 16), int(match[2], 16))
    return context if context.trace and context.span else None


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\x1f".join(parts).encode()).digest()


RENAMED: dict[str, str] = {
    "rl.run": "rl.run.id",
    "rl.group": "rl.group.id",
    "rl.sample": "rl.sample.id",
    "rl.engine": "rl.engine.id",
    "rl.source": "rl.source.path",
    "rl.weights.parent": "rl.weights.parent.version",
    "rl.reward": "rl.reward.value",
    "rl.filter": "rl.filter.name",
    "rl.samples": "rl.sample.count",
    "rl.tokens": "rl.token.count",
}
"""Names in span files of earlier releases, which no attribute may have again: a namespace is no attribute."""

Attribute: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[int]


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
        "name": span.name,
        "kind": _PRODUCER,
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
    """The span again, with today's names. Raises KeyError or ValueError for anything else."""
    status = plain.get("status", {})
    parent = plain.get("parentSpanId")
    return Span(
        name=plain["name"],
        trace=int(plain["traceId"], 16),
        span=int(plain["spanId"], 16),
        start_ns=int(plain["startTimeUnixNano"]),
        end_ns=int(plain["endTimeUnixNano"]),
        parent=int(parent, 16) if parent else None,
        attributes={RENAMED.get(e["key"], e["key"]): _unwrap(e["value"]) for e in plain.get("attributes", ())},
        links=tuple(SpanContext(int(e["traceId"], 16), int(e["spanId"], 16)) for e in plain.get("links", ())),
        error=status.get("message", "") if status.get("code") == 2 else None,
    )


def _wrap(value: Attribute) -> dict[str, Any]:
    if isinstance(value, str):  # most of them
        return {"stringValue": str(value)}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
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
