"""Rows as a table of text or Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.figure import Better, Figure, Row

HEAD = ("what", "figure", "unit", "target", "met", "load before, after", "cores", "how it came about")


def cells(row: Row) -> tuple[str, ...]:
    """Return a row's cells, in the order of HEAD."""
    figure = row.figure
    return (
        figure.name,
        "-" if figure.value is None else number(figure.value),
        figure.unit,
        target(figure),
        {True: "yes", False: "NO", None: "-"}[figure.met],
        f"{row.load[0]:.1f}, {row.load[1]:.1f}",
        str(row.cores),
        figure.note,
    )


def number(value: float) -> str:
    """Return a number with three significant digits, or as an integer from 100."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def target(figure: Figure) -> str:
    """Return a target as `>= 2,000`, or a dash."""
    if figure.target is None:
        return "-"
    return f"{'>=' if figure.better is Better.HIGHER else '<='} {number(figure.target)}"


def text(rows: Sequence[Row]) -> str:
    """Return a table for a terminal. The long notes are the last column."""
    lines = [HEAD, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def markdown(rows: Sequence[Row]) -> str:
    """Return a table as Markdown."""
    lines = [HEAD, tuple("---" for _ in HEAD), *map(cells, rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
