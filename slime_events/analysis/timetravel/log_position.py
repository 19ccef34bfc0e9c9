"""`LogPosition`: a position of a log as a user gives it: a number, a time, a step."""

import datetime
import enum
import re
from typing import Annotated, NamedTuple

from schemas.doc import doc
from schemas.errors import InvalidValue

_RELATIVE = re.compile(r"([+-])(\d+(?:\.\d+)?)s")
_STEP = re.compile(r"step:(\d+)")
FORMS = "SEQ (12345), TIME (2026-11-21T15:25:40, +30s after the start, -90s before the end) or step:N"


class Anchor(enum.Enum):
    """Meaning of the number of a position."""

    POSITION = "just after the event there"
    STEP = "just after step.committed of that step"
    TIME = "just before the first event with a later time than these UTC nanoseconds"
    START = "this number of nanoseconds after the first event"
    END = "this number of nanoseconds before the last event"


class LogPosition(NamedTuple):
    """A position of a log."""

    anchor: Annotated[Anchor, doc("meaning of the number")]
    number: Annotated[int, doc("position, step or nanoseconds")]


def parse_position(text: str) -> LogPosition:
    """Parse a position. A time without a zone is in this machine's zone. Raises InvalidValue, which lists the forms."""
    try:
        if text.isascii() and text.isdigit():
            return LogPosition(Anchor.POSITION, int(text))
        if match := _STEP.fullmatch(text):
            return LogPosition(Anchor.STEP, int(match[1]))
        if match := _RELATIVE.fullmatch(text):
            return LogPosition(Anchor.START if match[1] == "+" else Anchor.END, round(float(match[2]) * 1e9))
        return LogPosition(Anchor.TIME, round(datetime.datetime.fromisoformat(text).timestamp() * 1e6) * 1000)
    except (ValueError, OverflowError):  # OverflowError: more seconds or years than a number or a clock has
        raise InvalidValue(f"{text!r} is not a position. Give {FORMS}") from None
