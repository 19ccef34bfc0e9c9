"""Trace and span ids that follow from names, so that every process, and a reader of the log, arrives at the same ones.

A group has one trace, a weight version has one; a span's id follows from the run and its key (`submit/<group>`).
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import NamedTuple

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LOW_64 = 2**64 - 1
KEPT = 1024
"""Ids that are kept: an event's are asked for again with its span, a group's with each of its samples."""


class SpanContext(NamedTuple):
    """A span, wherever it was made: 128-bit trace id, 64-bit span id."""

    trace: int
    span: int


@functools.lru_cache(KEPT)
def trace_id(run: str, group: str) -> int:
    """The trace of a group: 128 bits."""
    return int.from_bytes(_digest(run, group)[:16], "big")


def version_trace_id(run: str, version: int) -> int:
    """The trace of a weight version, from the batch that it was made of to the engines that run it."""
    return trace_id(run, f"version/{version}")


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
    """The context in a traceparent, None where there is none or it is not valid (then W3C says to ignore it)."""
    match = _TRACEPARENT.fullmatch(text or "")
    if match is None:
        return None
    context = SpanContext(int(match[1], 16), int(match[2], 16))
    return context if context.trace and context.span else None


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\x1f".join(parts).encode()).digest()
