"""Text for people: tables, fields, times. `rich` lays out tables for a terminal; elsewhere tables are plain text."""

import datetime
import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.cells import cell_len

from schemas.text import terminal_text
from slime_events.core.machine.gpus import gpus

if TYPE_CHECKING:  # `doctor` must work without numpy
    from schemas.placements import PlacementPlanned
    from schemas.trainers import TrainerRestored

_BEYOND_ASCII_CONTROL = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters that JSON encoders leave unescaped."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """Return rows under their heads, numbers right-aligned. A table without rows is its head."""
    cells = [[one_line(cell_text(cell)) for cell in row] for row in rows]
    right = [bool(cells) and not any(row[i].strip("-+.0123456789e%") for row in cells) for i in range(len(head))]
    return columns_text(list(map(one_line, head)), cells, right, indent, width=terminal_width())


def terminal_width() -> int | None:
    """Return the width of standard output in characters; None if it is not a terminal."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console  # imported late: piped output does not need it

    return Console().width


def columns_text(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[bool],
    indent: str = "",
    *,
    width: int | None = None,
    cut: bool = False,
) -> str:
    """Return rows of text under their heads.

    right: whether a column is right-aligned. width: of the terminal in characters, None for no terminal. On a terminal
    the head is bold, and a cell that is too wide is folded, or with `cut` ends in an ellipsis.
    """
    if width is None:
        return _plain_columns([head, *rows], right, indent)
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, is_right in zip(head, right, strict=True):
        grid.add_column(
            Text(name), justify="right" if is_right else "left", no_wrap=cut, overflow="ellipsis" if cut else "fold"
        )
    for row in rows:
        grid.add_row(*map(Text, row))
    console = Console(width=max(20, width - len(indent)))
    with console.capture() as capture:
        console.print(grid)
    return "\n".join((indent + line).rstrip() for line in capture.get().splitlines())


def _plain_columns(rows: Sequence[Sequence[str]], right: Sequence[bool], indent: str) -> str:
    # Without `rich`, which takes 60 microseconds per cell: piped output may have a million cells.
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        pads = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = (pad + cell if r else cell + pad for cell, pad, r in zip(row, pads, right, strict=True))
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def fields(pairs: Iterable[tuple[str, object]], indent: str = "") -> str:
    """Return one `name  value` per line with aligned values; leave out pairs whose value is None or empty text."""
    shown = [(one_line(name), cell_text(value)) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    pad = "\n" + indent + " " * (width + 2)
    return "\n".join(f"{indent}{name:<{width}}  {value.replace(chr(10), pad)}" for name, value in shown)


def paragraphs(*parts: str) -> str:
    """Join the parts that are not empty with an empty line between them."""
    return "\n\n".join(filter(None, parts))


def cell_text(value: object) -> str:
    """Return a value as text: floats with four significant digits, None as a dash, control characters escaped."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return terminal_text(value if isinstance(value, str) else str(value))


def clock(at: int) -> str:
    """Return the time of day in the local zone, to the millisecond. at: UTC nanoseconds."""
    return datetime.datetime.fromtimestamp(at / 1e9).strftime("%H:%M:%S.%f")[:-3]


def moment(at: int) -> str:
    """Return date and time in the local zone. at: UTC nanoseconds."""
    return datetime.datetime.fromtimestamp(at / 1e9).strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float) -> str:
    """Return a duration as `0.123 s`, `12.3 s`, `4 min 05 s` or `2 h 03 min`."""
    if seconds < 60:
        return f"{seconds:.3f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def versions_range(oldest: int, newest: int) -> str:
    """Return `v20`, or `v20 to v21`."""
    return f"v{oldest}" if oldest == newest else f"v{oldest} to v{newest}"


def restored_text(event: "TrainerRestored") -> str:
    """Return how a replacement trainer restored its state."""
    text = f"weights {event.weights}, optimizer {event.optimizer}, {event.retrained} steps since "
    text += f"v{event.checkpoint} trained again"
    text += f", {event.skipped} skipped" if event.skipped else ""
    text += f", {event.differing} with a different result" if event.differing else ""
    if (distance := event.distance) is not None:
        text += f" (weights by up to {distance.max_abs:.3g}, relative L2 {distance.relative_l2:.3g})"
    return text


def placement_text(event: "PlacementPlanned") -> str:
    """Return where the processes of a run are, as `4 ranks on 10.0.0.1, 2 engines of 4 GPUs`."""
    addresses = {machine.node: machine.address for machine in event.machines}
    parts = list[str]()
    for bundles in event.bundles:
        count = len(bundles.members)
        each = int(bundles.gpus) if bundles.group else event.each
        size = f" of {gpus(each)}" if bundles.role == "engine" and each else ""
        size += f" ({bundles.group})" if bundles.group else ""
        where = " or ".join(addresses[node] for node in bundles.nodes)
        parts.append(f"{count} {bundles.role}{'s' * (count != 1)}{size}{f' on {where}' * bool(where)}")
    rest = ", sharing GPUs" * event.shared if event.device == "cuda" else " on the CPU"
    return ", ".join(parts) + rest


def figures_text(figures: dict[str, float]) -> str:
    """Return figures as `mean 0.5 std 0.1`."""
    return " ".join(f"{name} {value:.4g}" for name, value in figures.items())


def shorten(text: str, width: int) -> str:
    """Return one line of at most `width` characters, with line ends as \\n and an ellipsis after a cut."""
    line = one_line(text if len(text) <= width else text[: width + 1])
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def one_line(text: str) -> str:
    """Escape control characters, line ends and tabs, so that the text stays on one line."""
    if text.isprintable():  # a fast path: a table may have a million cells
        return text
    return terminal_text(text).replace("\n", "\\n").replace("\t", "\\t")


def block(text: str, indent: str = "    ") -> str:
    """Indent each line of a text."""
    return "\n".join(indent + line for line in terminal_text(text.replace("\r\n", "\n")).splitlines() or [""])


def json_text(facts: object) -> str:
    """Return the output of a command with --json, with its final line end."""
    return exact_json(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode()) + "\n"


def json_line(facts: object) -> str:
    """Return JSON on one line, without a line end."""
    return exact_json(json.dumps(facts))


def exact_json(text: str) -> str:
    """Escape control characters as JSON escapes, so that the data is the same and a terminal obeys none of them.

    text: JSON with control characters only in its strings, and with line ends.
    """
    return _BEYOND_ASCII_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
