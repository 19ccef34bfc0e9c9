"""Text for people: tables, fields, times. On a terminal `rich` lays tables out; elsewhere they are plain and whole."""

import datetime
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.cells import cell_len

from schemas.text import terminal_text

if TYPE_CHECKING:  # `doctor` prints with this where numpy may not be
    from schemas.rollouts import WeightSpan

_BEYOND_ASCII_CONTROL = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters that JSON need not escape, and encoders leave as they are."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """Columns as wide as they need to be; numbers are right-aligned. An empty table is its head."""
    cells = [[one_line(cell_text(cell)) for cell in row] for row in rows]
    right = [bool(cells) and not any(row[i].strip("-+.0123456789e%") for row in cells) for i in range(len(head))]
    return columns_text(list(map(one_line, head)), cells, right, indent, width=terminal_width())


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None where it is none."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console  # what is piped need not wait for it

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
    """Rows of text under their heads. right: columns that are right-aligned. width: of the terminal, None for none.

    On a terminal the head is bold, and what is too wide is folded, or with `cut` ends in an ellipsis. Elsewhere nothing
    is folded, cut or coloured.
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
    """By hand: `rich` takes 60 microseconds for a cell, and what is piped may have a million."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        pads = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = (pad + cell if r else cell + pad for cell, pad, r in zip(row, pads, right, strict=True))
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def fields(pairs: Iterable[tuple[str, object]], indent: str = "") -> str:
    """One `name  value` per line, names in a column; pairs whose value is None or empty text are left out."""
    shown = [(one_line(name), cell_text(value)) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    pad = "\n" + indent + " " * (width + 2)
    return "\n".join(f"{indent}{name:<{width}}  {value.replace(chr(10), pad)}" for name, value in shown)


def paragraphs(*parts: str) -> str:
    """The parts that are not empty, with an empty line between them."""
    return "\n\n".join(filter(None, parts))


def cell_text(value: object) -> str:
    """A value as a person reads it; floats with four significant digits, None as a dash, no control characters."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return terminal_text(value if isinstance(value, str) else str(value))


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


def versions_range(oldest: int, newest: int) -> str:
    """`v20`, or `v20 to v21`."""
    return f"v{oldest}" if oldest == newest else f"v{oldest} to v{newest}"


def restored_text(facts: Mapping[str, Any]) -> str:
    """What a trainer that took over came to, of a `trainer.restored` as plain values."""
    said = f"weights {facts['weights']}, optimizer {facts['optimizer']}, {facts['retrained']} steps since "
    said += f"v{facts['checkpoint']} trained again"
    said += f", {facts['skipped']} not" if facts.get("skipped") else ""
    said += f", {facts['differing']} of them came out otherwise" if facts["differing"] else ""
    if (apart := facts["distance"]) is not None:
        said += f" (weights by up to {apart['max_abs']:.3g}, relative L2 {apart['relative_l2']:.3g})"
    return said


def spans_text(spans: "tuple[WeightSpan, ...]") -> str:
    """`v3`, or `v3[0:40] v4[40:52]` where several versions made the tokens."""
    if len(spans) == 1:
        return f"v{spans[0].version}"
    return " ".join(f"v{span.version}[{span.start}:{span.end}]" for span in spans)


def figures_text(figures: dict[str, float]) -> str:
    """`mean 0.5 std 0.1`."""
    return " ".join(f"{name} {value:.4g}" for name, value in figures.items())


def shorten(text: str, width: int) -> str:
    """One line of at most `width` characters: line ends shown as \\n, what is cut as an ellipsis."""
    line = one_line(text if len(text) <= width else text[: width + 1])
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def one_line(text: str) -> str:
    """The text without control characters, line ends and tabs as \\n and \\t: nobody makes a second line of it."""
    if text.isprintable():  # most are, and a table may have a million
        return text
    return terminal_text(text).replace("\n", "\\n").replace("\t", "\\t")


def block(text: str, indent: str = "    ") -> str:
    """Text of several lines, set in."""
    return "\n".join(indent + line for line in terminal_text(text.replace("\r\n", "\n")).splitlines() or [""])


def json_text(facts: object) -> str:
    """What a command prints under --json, its line end included."""
    return exact_json(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode()) + "\n"


def json_line(facts: object) -> str:
    """The same on one line, without its end."""
    return exact_json(json.dumps(facts))


def exact_json(text: str) -> str:
    """JSON whose control characters are escapes of JSON: whoever reads it has the same data, a terminal obeys none.

    text: JSON with no such characters but in its strings, and line ends.
    """
    return _BEYOND_ASCII_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
