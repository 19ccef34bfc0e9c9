"""A lineage as one SVG: above all versions in a line, below prompts, samples and steps, from left to right."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from slime_events.analysis.lineage.lineage import Kind, Lineage
from slime_events.analysis.lineage.picture import Row, rows_of
from slime_events.analysis.model.ancestry import VersionRange

WIDTH = 1120
FILE_X, FILE_WIDTH = 20, 150
LABEL_X, CELLS_X, CELLS_WIDTH = 240, 420, 440
TARGET_X, TARGET_WIDTH = 930, 170
STRIP_Y, STRIP_HEIGHT, STRIP_CELLS = 64, 22, 120
TOP, BOX = 150, 30
LOW, MIDDLE, HIGH, NONE = (200, 84, 48), (242, 232, 207), (30, 110, 150), "#c9c9c9"
STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#222}.head{font-size:15px;font-weight:bold}"
    ".small{font-size:10px;fill:#555}.flow{fill:none;stroke:#8a8a8a;stroke-opacity:.35}.box{fill:#f4f4f4;stroke:#888}"
)


@dataclass(frozen=True, slots=True)
class _Mark:
    """How a version stands to what was asked."""

    name: str
    colour: str


ASKED = _Mark("asked about", "#7b2d8b")
MADE = _Mark("made its tokens", "#2e7d32")
TRAINED = _Mark("trained into", "#d17a00")
ANCESTOR = _Mark("it comes of these", "#a9c4e0")
DESCENDANT = _Mark("come of it", "#f2d3a0")
OTHER = _Mark("the rest", "#e4e4e4")


def svg(answer: Lineage) -> str:
    """A whole SVG document, with a title under the pointer for everything that is drawn."""
    rows = rows_of(answer)
    pitch = 22 if len(rows) <= 16 else 14
    height = TOP + max(60, len(rows) * pitch) + 50
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(20, 28, f"Lineage of {heading(answer)}", "head"),
        *_strip(answer),
        *_flow(rows, pitch, _scale(rows)),
        *_legend(rows, height - 16),
        "</svg>",
        "",
    ])  # fmt: skip


def heading(answer: Lineage) -> str:
    """What was asked about, in words."""
    asked = answer.asked
    back = (
        "" if asked.kind not in (Kind.VERSION, Kind.STEP) or asked.depth == 1 else f", {len(answer.steps)} steps back"
    )
    return f"{asked.kind.value} {asked.value} of run {answer.run}{back}"


def _strip(answer: Lineage) -> list[str]:
    """All versions in a line; neighbours share a place where there are too many, marked as the foremost of them."""
    marks = _marks(answer)
    count = answer.newest + 1
    size = -(-count // STRIP_CELLS) if count else 1
    places = -(-count // size)
    width = (WIDTH - 40) / max(places, 1)
    made_in = {version.version: version for version in answer.versions}
    drawn = []
    for place in range(places):
        first, last = place * size, min((place + 1) * size, count) - 1
        mark = min((marks.get(version, OTHER) for version in range(first, last + 1)), key=_FOREMOST.index)
        run = next((part.run for part in answer.line if part.first <= last <= part.last), answer.run)
        name = f"v{first}" if first == last else f"v{first} to v{last}"
        digest = made_in[first].digest if first in made_in else None
        title = f"{name} of {run}: {mark.name}" + (f"\ndigest {digest}" if digest else "")
        drawn.append(_rect(20 + place * width, STRIP_Y, max(width - 1, 0.5), STRIP_HEIGHT, mark.colour, title))
    for part in answer.line:
        x = 20 + part.first // size * width
        drawn.append(_text(x, STRIP_Y - 6, f"{part.run} v{part.first} to v{part.last}", "small"))
        drawn.append(f'<path class="flow" d="M{x:.1f} {STRIP_Y - 4}v{STRIP_HEIGHT + 8}"/>')
    x = 20
    shown = {marks.get(version, OTHER) for version in range(count)}
    for mark in (mark for mark in _FOREMOST if mark in shown):
        drawn.append(_rect(x, STRIP_Y + 32, 10, 10, mark.colour, mark.name))
        drawn.append(_text(x + 15, STRIP_Y + 41, mark.name, "small"))
        x += 30 + 7 * len(mark.name)
    return drawn


_FOREMOST = (ASKED, TRAINED, MADE, DESCENDANT, ANCESTOR, OTHER)


def _marks(answer: Lineage) -> dict[int, _Mark]:
    marks: dict[int, _Mark] = {}
    for mark, parts in ((ANCESTOR, answer.ancestors), (DESCENDANT, _common_descendants(answer))):
        marks |= {version: mark for part in parts for version in range(part.first, part.last + 1)}
    if answer.asked.kind in (Kind.VERSION, Kind.STEP):
        if answer.versions:
            marks[answer.versions[0].version] = ASKED
        return marks
    for sample in answer.samples:
        marks |= {version: MADE for version in sample.made_by if answer.on_line(sample.run, version)}
    return marks | {s.trained_into: TRAINED for s in answer.samples if s.trained_into is not None}


def _common_descendants(answer: Lineage) -> Sequence[VersionRange]:
    if answer.asked.kind in (Kind.VERSION, Kind.STEP):
        return ()
    return max(
        (sample.descendants for sample in answer.samples), key=lambda parts: sum(p.count for p in parts), default=()
    )


def _flow(rows: Sequence[Row], pitch: int, scale: tuple[float, float]) -> list[str]:
    middle = [TOP + place * pitch + pitch / 2 for place in range(len(rows))]
    drawn: list[str] = []
    for (name, places), y in _stacked(_places(row.sources for row in rows), middle):
        drawn += [_curve(FILE_X + FILE_WIDTH, y, LABEL_X - 6, middle[place]) for place in places]
        drawn += _box(FILE_X, y, FILE_WIDTH, name, f"{name}\nprompts of {len(places)} rows came from it")
    targets = _places(((row.target,) if row.target else ()) for row in rows)
    alone = len(targets) == len(rows) > 1
    for (name, places), y in _stacked(targets, middle, BOX if not alone else 0):
        if alone:
            drawn.append(_text(TARGET_X, y + 4, f"→ {name.rpartition(' → ')[2]}", ""))
            continue
        drawn += [_curve(CELLS_X + CELLS_WIDTH + 8, middle[place], TARGET_X, y) for place in places]
        drawn += _box(TARGET_X, y, TARGET_WIDTH, name, f"{name}\nfrom {len(places)} rows")
    for place, row in enumerate(rows):
        drawn.append(_text(LABEL_X, middle[place] + 4, _cut(row.label, 23), "", row.title))
        drawn += _cells(row, middle[place] - pitch / 2 + 1, pitch - 3, scale)
    return drawn


def _stacked(
    places: dict[str, list[int]], middle: Sequence[float], gap: float = BOX
) -> list[tuple[tuple[str, list[int]], float]]:
    """Each name at the middle of its rows, and `gap` below the one before it at least."""
    wanted = sorted(places.items(), key=lambda item: sum(item[1]) / len(item[1]))
    middles = (sum(middle[place] for place in found) / len(found) for _, found in wanted)
    return list(zip(wanted, itertools.accumulate(middles, lambda before, y: max(y, before + gap)), strict=True))


def _cells(row: Row, y: float, height: float, scale: tuple[float, float]) -> list[str]:
    by_share = any(cell.share != 1.0 for cell in row.cells) or len(row.cells) == 1
    whole = CELLS_WIDTH if by_share else min(CELLS_WIDTH, 55.0 * len(row.cells))
    total = sum(cell.share for cell in row.cells) or 1.0
    drawn, x = [], float(CELLS_X)
    for cell in row.cells:
        width = whole * cell.share / total
        drawn.append(_rect(x, y, max(width - 1.5, 0.5), height, colour(cell.value, scale), cell.title))
        x += width
    return drawn


def colour(value: float | None, scale: tuple[float, float]) -> str:
    """From low over middle to high within the scale; grey for none."""
    if value is None:
        return NONE
    low, high = scale
    share = 1.0 if high <= low else min(1.0, max(0.0, (value - low) / (high - low)))
    begin, end, part = (LOW, MIDDLE, share * 2) if share < 0.5 else (MIDDLE, HIGH, share * 2 - 1)
    mixed = (round(a + (b - a) * part) for a, b in zip(begin, end, strict=True))
    return "#" + "".join(f"{one:02x}" for one in mixed)


def _scale(rows: Sequence[Row]) -> tuple[float, float]:
    """0 to 1 for rewards within it, else the least to the most."""
    values = [cell.value for row in rows for cell in row.cells if cell.value is not None] or [0.0]
    return min(0.0, *values), max(1.0, *values)


def _legend(rows: Sequence[Row], y: float) -> list[str]:
    low, high = _scale(rows)
    drawn = [_text(CELLS_X, y, f"reward {low:g}", "small")]
    for place in range(40):
        value = low + (high - low) * place / 39
        drawn.append(_rect(CELLS_X + 70 + place * 4, y - 9, 4, 10, colour(value, (low, high)), f"{value:.3g}"))
    return [*drawn, _text(CELLS_X + 236, y, f"{high:g}", "small")]


def _places(names: Iterable[Sequence[str]]) -> dict[str, list[int]]:
    """The rows that each name is found in."""
    found: dict[str, list[int]] = {}
    for place, several in enumerate(names):
        for name in several:
            found.setdefault(name, []).append(place)
    return found


def _box(x: float, y: float, width: float, name: str, title: str) -> list[str]:
    place = f'x="{x}" y="{y - 13:.1f}" width="{width}" height="26" rx="4"'
    return [
        f'<rect class="box" {place}><title>{escape(title)}</title></rect>',
        _text(x + 8, y + 4, _cut(name, int(width / 7.6)), "", title),
    ]


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    half = (x + to_x) / 2
    return f'<path class="flow" d="M{x:.1f} {y:.1f}C{half:.1f} {y:.1f} {half:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"/>'


def _text(x: float, y: float, text: str, style: str, title: str = "") -> str:
    hover = f"<title>{escape(title)}</title>" if title else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(text)}{hover}</text>'


def _cut(text: str, length: int) -> str:
    """The end of a long name tells more than its beginning."""
    return text if len(text) <= length else "…" + text[1 - length :]
