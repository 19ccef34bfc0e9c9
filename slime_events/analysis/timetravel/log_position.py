"""`LogPosition`: what a person calls a position of a log: a number, a time, a step."""

import datetime
import re
from dataclasses import dataclass

from schemas.errors import InvalidValue

_RELATIVE = re.compile(r"([+-])(\d+(?:\.\d+)?)s")
_STEP = re.compile(r"step:(\d+)")
NANOS = 1_000_000_000
FORMS = "SEQ (12345), TIME (2026-11-21T15:25:40, +30s after the start, -90s before the end) or step:N"


@dataclass(frozen=True, slots=True)
class AtPosition:
    """Just after the event there."""

    position: int


@dataclass(frozen=True, slots=True)
class AfterStep:
    """Just after step.committed of `step`."""

    step: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """Just before the first event with a later time. at: UTC nanoseconds."""

    at: int


@dataclass(frozen=True, slots=True)
class FromStart:
    """So many nanoseconds after the first event."""

    nanos: int


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    """So many nanoseconds before the last event."""

    nanos: int


LogPosition = AtPosition | AfterStep | AtTime | FromStart | BeforeEnd


def parse_position(text: str) -> LogPosition:
    """Raises InvalidValue with the forms there are. A time without a zone is one of this machine's zone."""
    if text.isascii() and text.isdigit():
        return AtPosition(int(text))
    if match := _STEP.fullmatch(text):
        return AfterStep(int(match[1]))
    if match := _RELATIVE.fullmatch(text):
        nanos = round(float(match[2]) * NANOS)
        return FromStart(nanos) if match[1] == "+" else BeforeEnd(nanos)
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(f"{text!r} is no position: give {FORMS}") from None
    return AtTime(round(time.timestamp() * 1e6) * 1000)
