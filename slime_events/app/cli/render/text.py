"""Plain text for terminals and pipes alike: tables, fields, times."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec


def table(head: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """Columns as wide as they need to be; numbers stand right. An empty table is its head."""
    cells = [[cell_text(cell) for cell in row] for row in rows]
    right = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(head))]
    widths = [max(len(row[i]) for row in [list(head), *cells]) for i in range(len(head))]
    lines = []
    for row in [list(head), *cells]:
        padded = [
            cell.rjust(w) if is_right else cell.ljust(w) for cell, w, is_right in zip(row, widths, right, strict=True)
        ]
        lines.append((indent + "  ".join(padded)).rstrip())
    return "\n".join(lines)


def fields(pairs: Iterable[tuple[str, object]], indent: str = "") -> str:
    """One `name  value` per line, names in a column; pairs whose value is None or empty text are left out."""
    said = [(name, cell_text(value)) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in said), default=0)
    pad = "\n" + indent + " " * (width + 2)
    return "\n".join(f"{indent}{name:<{width}}  {value.replace(chr(10), pad)}" for name, value in said)


def cell_text(value: object) -> str:
    """A value as a person reads it; floats with four digits that matter, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def clock(at: int) -> str:
    """Time of day of UTC nanoseconds, in the local zone, to the millisecond."""
    return datetime.datetime.fromtimestamp(at / 1e9).strftime("%H:%M:%S.%f")[:-3]


def moment(at: int) -> str:
    """Date and time of UTC nanoseconds, in the local zone."""
    return datetime.datetime.fromtimestamp(at / 1e9).strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float) -> str:
    """`0.123 s`, `12.3 s`, `4 min 05 s`, `2 h 03 min`."""
    if seconds < 60:
        return f"{seconds:.3f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def versions_text(facts: Mapping[str, Any]) -> str:
    """`v20`, or `v20..v21`: the weights that made the answers of an evaluation."""
    oldest, newest = facts["oldest_version"], facts["newest_version"]
    return f"v{oldest}" if oldest == newest else f"v{oldest}..v{newest}"


def shorten(text: str, width: int) -> str:
    """One line of at most `width` characters: line ends shown as \\n, what is cut as an ellipsis."""
    line = text.replace("\n", "\\n")
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def block(text: str, indent: str = "    ") -> str:
    """Text of several lines, set in."""
    return "\n".join(indent + line for line in text.splitlines() or [""])


def json_text(facts: object) -> str:
    """What a command prints under --json, its line end included."""
    return msgspec.json.format(msgspec.json.encode(facts), indent=2).decode() + "\n"


def _is_number(cell: str) -> bool:
    return cell.strip("-+.0123456789e%") == "" or cell == "-"
