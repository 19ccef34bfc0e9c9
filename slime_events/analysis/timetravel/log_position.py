"""`Place`: what a person calls a position of a log: a number, a time, a step."""

from __future__ import annotations

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
    """Just before the first event that was said later. at: UTC nanoseconds."""

    at: int


@dataclass(frozen=True, slots=True)
class FromStart:
    """So many nanoseconds after the first event."""

    nanos: int


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    """So many nanoseconds before the last event."""

    nanos: int


Place = AtPosition | AfterStep | AtTime | FromStart | BeforeEnd


def parse_place(said: str) -> Place:
    """Raises InvalidValue with the forms there are. A time without a zone is one of this machine's zone."""
    if said.isascii() and said.isdigit():
        return AtPosition(int(said))
    if found := _STEP.fullmatch(said):
        return AfterStep(int(found[1]))
    if found := _RELATIVE.fullmatch(said):
        nanos = round(float(found[2]) * NANOS)
        return FromStart(nanos) if found[1] == "+" else BeforeEnd(nanos)
    try:
        moment = datetime.datetime.fromisoformat(said)
    except ValueError:
        raise InvalidValue(f"{said!r} is no position: give {FORMS}") from None
    return AtTime(round(moment.timestamp() * 1e6) * 1000)
