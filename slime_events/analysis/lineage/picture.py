"""A lineage as one SVG, and as an HTML page without dependencies.

The top shows all versions in a line. Below it, from left to right: prompt files, a row of reward-coloured cells per
part of the answer, and the step that trained on it. A large answer has coarser rows:

several steps       a row per step (or per range of steps), a cell per prompt (or step)
one step            a row per prompt, a cell per sample
a few samples       a row per sample, a cell per span of tokens of one weight version

Why the layout is our own: docs/decisions/0021-lineage-draws-its-own-picture.md.
"""

import collections
import enum
import html as markup
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from schemas.doc import doc
from schemas.text import terminal_text
from slime_events.analysis.lineage.lineage import Group, Kind, Lineage, Sample, Step
from slime_events.model.agent_session import AgentSession

FEW_SAMPLES, MOST_ROWS, STRIP_CELLS = 16, 80, 120
WIDTH = 1120
FILE_X, FILE_WIDTH = 20, 150
LABEL_X, CELLS_X, CELLS_WIDTH = 240, 420, 440
TARGET_X, TARGET_WIDTH = 930, 170
STRIP_Y, STRIP_HEIGHT, TOP, BOX = 64, 22, 150, 30
LOW, MIDDLE, HIGH, NONE = (200, 84, 48), (242, 232, 207), (30, 110, 150), "#c9c9c9"
STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#222}.head{font-size:15px;font-weight:bold}"
    ".small{font-size:10px;fill:#555}.flow{fill:none;stroke:#8a8a8a;stroke-opacity:.35}.box{fill:#f4f4f4;stroke:#888}"
)
PAGE_STYLE = "body{font:14px system-ui,sans-serif;margin:2em;color:#222}pre{font-size:12px;overflow-x:auto}"


class Cell(NamedTuple):
    """A cell of a row."""

    value: Annotated[float | None, doc("mean reward; None if there is none")]
    title: Annotated[str, doc("text of its tooltip")]
    tokens: Annotated[int, doc("tokens that its width shows; 0: all cells of the row have the same width")] = 0


class Row(NamedTuple):
    """A row of cells."""

    label: Annotated[str, doc("text at its left")]
    title: Annotated[str, doc("tooltip of the label")]
    cells: Annotated[tuple[Cell, ...], doc("cells from left to right")]
    sources: Annotated[tuple[str, ...], doc("names of the files that its prompts came from")]
    target: Annotated[str, doc('step that trained on it; "" if there is none')]


class Mark(enum.Enum):
    """Relation of a version to the question, the most important first: its text and colour."""

    ASKED = ("selected", "#7b2d8b")
    TRAINED = ("trained on it", "#d17a00")
    MADE = ("generated its tokens", "#2e7d32")
    DESCENDANT = ("descendant", "#f2d3a0")
    ANCESTOR = ("ancestor", "#a9c4e0")
    OTHER = ("other", "#e4e4e4")


def escape(text: str) -> str:
    """Escape text for HTML and SVG. Control characters, which XML cannot hold, become escape sequences."""
    return markup.escape(terminal_text(text))


def html(answer: Lineage, text: str) -> str:
    """Return a page with the picture and `text`, the answer for a terminal."""
    title = escape(f"Lineage of {heading(answer)}")
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{PAGE_STYLE}</style></head>\n<body>\n{svg(answer)}\n<pre>{escape(text)}</pre>\n</body>\n</html>\n"
    )


def svg(answer: Lineage) -> str:
    """Return a complete SVG document. Every shape has a tooltip."""
    rows = rows_of(answer)
    pitch = 22 if len(rows) <= 16 else 14
    height = TOP + max(60, len(rows) * pitch) + 50
    values = [0.0, 1.0, *(cell.value for row in rows for cell in row.cells if cell.value is not None)]
    scale = min(values), max(values)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(20, 28, f"Lineage of {heading(answer)}", "head"),
        *_agents(answer),
        *_strip(answer),
        *_flow(rows, pitch, scale),
        *_legend(scale, height - 16),
        "</svg>",
        "",
    ])  # fmt: skip


def heading(answer: Lineage) -> str:
    """Return the question in words."""
    question = answer.asked
    several = question.kind in (Kind.VERSION, Kind.STEP) and question.depth != 1
    back = f", {len(answer.steps)} steps back" if several else ""
    return f"{question.kind.value} {question.value} of run {answer.run}{back}"


def rows_of(answer: Lineage) -> tuple[Row, ...]:
    """Return the rows of an answer, the oldest steps first."""
    steps: dict[int | None, Step] = {step.step: step for step in sorted(answer.steps, key=lambda step: step.step)}
    if len(answer.samples) <= FEW_SAMPLES:
        return tuple(_sample_row(answer, sample, steps.get(sample.step)) for sample in answer.samples)
    samples = collections.defaultdict[tuple[str, str], list[Sample]](list)
    for sample in answer.samples:
        samples[sample.run, sample.group].append(sample)
    if len(steps) <= 1:
        return tuple(_group_row(answer, g, samples[g.run, g.group], steps.get(g.step)) for g in answer.groups)
    groups = collections.defaultdict[int | None, list[Group]](list)
    for group in answer.groups:
        groups[group.step].append(group)
    size = -(-len(steps) // MOST_ROWS)
    if size == 1:
        return tuple(_step_row(step, groups[step.step], samples) for step in steps.values())
    ordered = list(steps.values())
    chunks = [ordered[first : first + size] for first in range(0, len(ordered), size)]
    return tuple(_steps_row(chunk, [group for step in chunk for group in groups[step.step]]) for chunk in chunks)


def _step_row(step: Step, groups: Sequence[Group], samples: Mapping[tuple[str, str], Sequence[Sample]]) -> Row:
    cells = [
        Cell(_mean(own), _group_title(group, own)) for group in groups for own in [samples[group.run, group.group]]
    ]
    title = f"{_step_title(step)}\nbatch {step.batch_digest[:12]}"
    return Row(f"step {step.step}", title, tuple(cells), _files(groups), _target(step))


def _steps_row(steps: Sequence[Step], groups: Sequence[Group]) -> Row:
    label = f"{steps[0].step} to {steps[-1].step}"
    cells = tuple(Cell(step.mean_reward, _step_title(step)) for step in steps)
    return Row(label, f"steps {label}", cells, _files(groups), _target(steps[-1]))


def _group_row(answer: Lineage, group: Group, samples: Sequence[Sample], step: Step | None) -> Row:
    title = f"{_group_title(group, samples)}\n{group.text[:300]}"
    cells = tuple(Cell(_mean([sample]), sample_title(sample, answer.session_of(sample))) for sample in samples)
    return Row(group.file_line, title, cells, _files([group]), _target(step))


def _sample_row(answer: Lineage, sample: Sample, step: Step | None) -> Row:
    """Return a sample's row. The group of a recorded rollout may belong to another run."""
    own = [group for group in answer.groups if group.group == sample.group]
    group = min(own, key=lambda group: group.run != sample.run)
    title, reward = sample_title(sample, answer.session_of(sample)), _mean([sample])
    cells = tuple(
        Cell(reward, f"tokens {span.start} to {span.end} by v{span.version}\n{title}", span.end - span.start)
        for span in sample.spans
    )
    return Row(sample.sample, title, cells, _files([group]), _target(step))


def sample_title(sample: Sample, session: AgentSession | None = None) -> str:
    """Return facts about a sample in a few lines. session: the one that made it."""
    makers = ", ".join(f"v{version}" for version in sample.made_by)
    if sample.origin is not None:
        makers = f"run {sample.origin.run} (its sample {sample.origin.sample})"
    lines = [sample.sample, f"{sample.length} tokens by {makers or 'no version yet'}"]
    if sample.reward is not None:
        lines.append(sample.reward.failure or _reward(sample.reward.value))
    if sample.advantage is not None:
        lines.append(f"advantage {sample.advantage.first:.4g}")
    if sample.mask is not None and sample.mask.trained != sample.mask.tokens:
        lines.append(f"{sample.mask.trained} of them trained on")
    if session is not None:
        how = ", ".join((*session.dialects, *session.clients))
        lines.append(f"session {session.session}, opened by {session.source}: {len(session.turns)} turns ({how})")
        lines.append(f"sealed by {session.sealed}; roots {', '.join(session.roots)}")
    return "\n".join(lines)


def _files(groups: Iterable[Group]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(group.file for group in groups))


def _target(step: Step | None) -> str:
    if step is None:
        return ""
    return f"step {step.step}" + (f" → v{step.version}" if step.committed_at is not None else ", not committed")


def _group_title(group: Group, samples: Sequence[Sample]) -> str:
    return f"{group.group}, {group.file_line}\n{len(samples)} samples, {_reward(_mean(samples))}"


def _step_title(step: Step) -> str:
    transition = f"step {step.step} of {step.run}: v{step.parent} → v{step.version}"
    return f"{transition}\n{len(step.samples)} samples, {_reward(step.mean_reward)}"


def _mean(samples: Iterable[Sample]) -> float | None:
    values = [s.reward.value for s in samples if s.reward is not None and s.reward.value is not None]
    return sum(values) / len(values) if values else None


def _reward(value: float | None) -> str:
    return "not graded" if value is None else f"reward {value:.4g}"


def _agents(answer: Lineage) -> list[str]:
    """Draw a line on the sessions that made the samples. Its tooltip lists their names."""
    sessions = answer.sessions
    if not sessions:
        return []
    sources = ", ".join(dict.fromkeys(session.source for session in sessions))
    turns = sum(len(session.turns) for session in sessions)
    summary = f"{len(sessions)} agents' sessions opened by {sources}, {turns} turns"
    names = "\n".join(f"{session.session} by {session.source}: {len(session.turns)} turns" for session in sessions)
    return [_text(20, 44, summary, "small", names)]


def _strip(answer: Lineage) -> list[str]:
    """Draw all versions in a line. If there are too many, neighbours share a cell, with the most important mark."""
    marks, count = _marks(answer), answer.newest + 1
    size = max(1, -(-count // STRIP_CELLS))
    cells = -(-count // size)
    width = (WIDTH - 40) / max(cells, 1)
    digests = {version.version: version.digest for version in answer.versions}
    order, drawn = list(Mark), []
    for cell in range(cells):
        first, last = cell * size, min((cell + 1) * size, count) - 1
        mark = min((marks.get(version, Mark.OTHER) for version in range(first, last + 1)), key=order.index)
        run = next((part.run for part in answer.line if part.first <= last <= part.last), answer.run)
        title = (f"v{first}" if first == last else f"v{first} to v{last}") + f" of {run}: {mark.value[0]}"
        title += f"\ndigest {digests[first]}" if digests.get(first) else ""
        drawn.append(_rect(20 + cell * width, STRIP_Y, width - 1, STRIP_HEIGHT, mark.value[1], title))
    for part in answer.line:
        x = 20 + part.first // size * width
        drawn.append(_text(x, STRIP_Y - 6, f"{part.run} v{part.first} to v{part.last}", "small"))
        drawn.append(f'<path class="flow" d="M{x:.1f} {STRIP_Y - 4}v{STRIP_HEIGHT + 8}"/>')
    x = 20
    shown = {marks.get(version, Mark.OTHER) for version in range(count)}
    for name, colour_of in (mark.value for mark in order if mark in shown):
        drawn += [_rect(x, STRIP_Y + 32, 10, 10, colour_of, name), _text(x + 15, STRIP_Y + 41, name, "small")]
        x += 30 + 7 * len(name)
    return drawn


def _marks(answer: Lineage) -> dict[int | None, Mark]:
    """Return the mark of each version; None is the version of samples that were never trained on."""
    of_samples = answer.asked.kind not in (Kind.VERSION, Kind.STEP)
    descendants = answer.samples_descendants if of_samples else ()
    marks: dict[int | None, Mark] = {}
    marks |= {version: Mark.ANCESTOR for part in answer.ancestors for version in range(part.first, part.last + 1)}
    marks |= {version: Mark.DESCENDANT for part in descendants for version in range(part.first, part.last + 1)}
    if not of_samples:
        return marks | {version.version: Mark.ASKED for version in answer.versions[:1]}
    for sample in answer.samples:
        marks |= {version: Mark.MADE for version in sample.made_by if answer.on_line(sample.run, version)}
    return marks | {sample.trained_into: Mark.TRAINED for sample in answer.samples}


def _flow(rows: Sequence[Row], pitch: int, scale: tuple[float, float]) -> list[str]:
    middle = [TOP + number * pitch + pitch / 2 for number in range(len(rows))]
    drawn: list[str] = []
    for name, numbers, y in _stacked((row.sources for row in rows), middle, BOX):
        drawn += [_curve(FILE_X + FILE_WIDTH, y, LABEL_X - 6, middle[number]) for number in numbers]
        drawn += _box(FILE_X, y, FILE_WIDTH, name, f"{name}\nsource of the prompts of {len(numbers)} rows")
    targets = [[row.target] if row.target else [] for row in rows]
    if len(rows) > 1 and len({row.target for row in rows if row.target}) == len(rows):  # each row has its own target
        arrows = (row.target.rpartition(" → ")[2] for row in rows)
        drawn += [_text(TARGET_X, y + 4, f"→ {target}", "") for target, y in zip(arrows, middle, strict=True)]
    else:
        for name, numbers, y in _stacked(targets, middle, BOX):
            drawn += [_curve(CELLS_X + CELLS_WIDTH + 8, middle[number], TARGET_X, y) for number in numbers]
            drawn += _box(TARGET_X, y, TARGET_WIDTH, name, f"{name}\nfrom {len(numbers)} rows")
    for row, y in zip(rows, middle, strict=True):
        drawn.append(_text(LABEL_X, y + 4, _cut(row.label, 23), "", row.title))
        drawn += _cells(row, y - pitch / 2 + 1, pitch - 3, scale)
    return drawn


def _stacked(names: Iterable[Sequence[str]], middle: Sequence[float], gap: float) -> list[tuple[str, list[int], float]]:
    """Return each name with the numbers of its rows and its y: the middle of its rows, at least `gap` below the
    previous one.
    """
    rows = collections.defaultdict[str, list[int]](list)
    for number, several in enumerate(names):
        for name in several:
            rows[name].append(number)
    ordered = sorted(rows.items(), key=lambda item: sum(item[1]) / len(item[1]))
    centres = (sum(middle[number] for number in numbers) / len(numbers) for _, numbers in ordered)
    ys = itertools.accumulate(centres, lambda before, y: max(y, before + gap))
    return [(name, numbers, y) for (name, numbers), y in zip(ordered, ys, strict=True)]


def _cells(row: Row, y: float, height: float, scale: tuple[float, float]) -> list[str]:
    count, tokens = len(row.cells), sum(cell.tokens for cell in row.cells)
    whole = CELLS_WIDTH if tokens or count == 1 else min(CELLS_WIDTH, 55.0 * count)
    drawn, x = [], float(CELLS_X)
    for cell in row.cells:
        width = whole * (cell.tokens / tokens if tokens else 1 / count)
        drawn.append(_rect(x, y, max(width - 1.5, 0.5), height, colour(cell.value, scale), cell.title))
        x += width
    return drawn


def colour(value: float | None, scale: tuple[float, float]) -> str:
    """Return a colour from low over middle to high within the scale; grey for None."""
    if value is None:
        return NONE
    low, high = scale
    mixed = (
        np.interp(value, (low, (low + high) / 2, high), channel) for channel in zip(LOW, MIDDLE, HIGH, strict=True)
    )
    return "#" + "".join(f"{round(channel):02x}" for channel in mixed)


def _legend(scale: tuple[float, float], y: float) -> list[str]:
    low, high = scale
    values = enumerate(low + (high - low) * number / 39 for number in range(40))
    return [
        _text(CELLS_X, y, f"reward {low:g}", "small"),
        *(_rect(CELLS_X + 70 + n * 4, y - 9, 4, 10, colour(value, scale), f"{value:.3g}") for n, value in values),
        _text(CELLS_X + 236, y, f"{high:g}", "small"),
    ]


def _box(x: float, y: float, width: float, name: str, title: str) -> list[str]:
    shape = f'x="{x}" y="{y - 13:.1f}" width="{width}" height="26" rx="4"'
    return [
        f'<rect class="box" {shape}><title>{escape(title)}</title></rect>',
        _text(x + 8, y + 4, _cut(name, int(width / 7.6)), "", title),
    ]


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str) -> str:
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {shape} fill="{fill}"><title>{escape(title)}</title></rect>'


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    half = (x + to_x) / 2
    return f'<path class="flow" d="M{x:.1f} {y:.1f}C{half:.1f} {y:.1f} {half:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"/>'


def _text(x: float, y: float, text: str, style: str, title: str = "") -> str:
    hover = f"<title>{escape(title)}</title>" if title else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(text)}{hover}</text>'


def _cut(text: str, length: int) -> str:
    """Shorten a name from the left: its end says more than its beginning."""
    return text if len(text) <= length else "…" + text[1 - length :]
