"""`path@[a:b]`: a data file, or a slice of its rows."""

from __future__ import annotations

import re

_SLICED = re.compile(r"(?P<path>.*)@\[(?P<start>-?\d*):(?P<stop>-?\d*)\]")


def parse_path(path: str) -> tuple[str, slice | None]:
    """The path or URL, and the rows asked for; None is all of them. Negative bounds count from the end."""
    match = _SLICED.fullmatch(path)
    if match is None:
        return path, None
    start, stop = (int(bound) if bound.strip("-") else None for bound in (match["start"], match["stop"]))
    return match["path"], slice(start, stop)
