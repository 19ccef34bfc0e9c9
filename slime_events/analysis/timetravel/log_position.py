"""`LogPosition`: what a person calls a position of a log: a number, a time, a step."""

import datetime
import enum
import re
from typing import NamedTuple

from schemas.errors import InvalidValue

_RELATIVE = re.compile(r"([+-])(\d+(?:\.\d+)?)s")
_STEP = re.compile(r"step:(\d+)")
FORMS = "SEQ (12345), TIME (2026-11-21T15:25:40, +30s after the start, -90s before the end) or step:N"


class Anchor(enum.Enum):
    """Where a position is, by a number."""

    POSITION = "just after the event there"
    STEP = "just after step.committed of that step"
    TIME = "just before the first event with a later time than these UTC nanoseconds"
    START = "so many nanoseconds after the first event"
    END = "so many nanoseconds before the last event"


class LogPosition(NamedTuple):
    """The position of a log that `number` stands for."""

    anchor: Anchor
    number: int


def parse_position(text: str) -> LogPosition:
    """Raises InvalidValue with the forms there are. A time without a zone is one of this machine's zone."""
    if text.isascii() and text.isdigit():
        return LogPosition(Anchor.POSITION, int(text))
    if match := _STEP.fullmatch(text):
        return LogPosition(Anchor.STEP, int(match[1]))
    if match := _RELATIVE.fullmatch(text):
        return LogPosition(Anchor.START if match[1] == "+" else Anchor.END, round(float(match[2]) * 1e9))
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(f"{text!r} is no position: give {FORMS}") from None
    return LogPosition(Anchor.TIME, round(time.timestamp() * 1e6) * 1000)
