"""`Span`: an interval in a trace, and how it is read from its OTLP JSON form (a span per line of a file).

Trace and span ids are derived from names, so every process and every reader of the log computes the same ids. Each
group and each weight version has a trace. A span's id is derived from the run and its key (`submit/<group>`).
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from schemas.doc import doc

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LOW_64 = 2**64 - 1
KEPT = 8192
"""Cached ids: an event and its span, half a second later, use the same ids, and so do the samples of a group."""


class SpanContext(NamedTuple):
    """Identity of a span in any process: 128-bit trace id, 64-bit span id."""

    trace: int
    span: int


@functools.lru_cache(KEPT)
def trace_id(run: str, group: str) -> int:
    """Return the 128-bit id of a group's trace."""
    return int.from_bytes(_digest(f"{run}\x1f{group}")[:16], "big")


@functools.lru_cache(KEPT)
def span_id(run: str, key: str) -> int:
    """Return the 64-bit id of a span of the run."""
    return int.from_bytes(_digest(f"{run}\x1fspan\x1f{key}")[:8], "big")


def sampled(trace: int, share: float) -> bool:
    """Return whether a trace is in the kept `share` (0 to 1), by OpenTelemetry's ratio rule: all samplers agree."""
    return trace & _LOW_64 < round(share * 2**64)


def format_traceparent(context: SpanContext, is_sampled: bool) -> str:
    """Return a W3C traceparent, version 00."""
    return f"00-{context.trace:032x}-{context.span:016x}-{is_sampled:02x}"


def parse_traceparent(text: str | None) -> SpanContext | None:
    """Return the context in a traceparent; None if it is missing or invalid, which W3C says to ignore."""
    match = _TRACEPARENT.fullmatch(text or "")
    if match is None:
        return None
    context = SpanContext(int(match[1], 16), int(match[2], 16))
    return context if context.trace and context.span else None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


Attribute: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[int]


class Span(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A finished span. It holds no cycle, so the garbage collector skips it."""

    name: str
    trace: Annotated[int, doc("trace id, 128 bits")]
    span: Annotated[int, doc("span id, 64 bits")]
    start_ns: Annotated[int, doc("UTC nanoseconds")]
    end_ns: Annotated[int, doc("UTC nanoseconds")]
    parent: Annotated[int | None, doc("span id in the same trace; None: it is a root")] = None
    attributes: Mapping[str, Attribute] = {}
    links: Sequence[SpanContext] = ()
    error: Annotated[str | None, doc("why the work failed; None: it did not")] = None

    @property
    def context(self) -> SpanContext:
        return SpanContext(self.trace, self.span)
