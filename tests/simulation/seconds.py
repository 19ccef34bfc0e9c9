"""`check_seconds`: what a log says that something took can have been."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import astuple

from schemas.event import Event
from storage.log import Recorded

SLACK_S = 60.0
"""For what was begun before the log was."""


def check_seconds(records: Sequence[Recorded]) -> None:
    """Nothing took less than no time, or longer than there was."""
    at = [recorded.envelope.at for recorded in records]
    longest = (max(at) - min(at)) / 1e9 + SLACK_S
    wrong = [event for event in (record.envelope.event for record in records) if not _can_be(_seconds(event), longest)]
    assert wrong == []


def _can_be(seconds: Iterator[float], longest: float) -> bool:
    return all(0.0 <= second <= longest for second in seconds)


def _seconds(event: Event) -> Iterator[float]:
    value = getattr(event, "seconds", 0.0)
    yield from value.values() if isinstance(value, dict) else [value]
    yield from astuple(timings) if (timings := getattr(event, "timings", None)) is not None else ()
