"""What a picture of a lineage shows, in rows and cells, as coarse as its size asks for. Pure.

several steps       a row for each step (or for so many in a row), a cell for each of its prompts (or steps)
one step            a row for each prompt, a cell for each of its samples
a few samples       a row for each sample, a cell for each stretch of tokens that one version made
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from slime_events.analysis.lineage.lineage import Group, Lineage, Sample, Step

FEW_SAMPLES = 16
MOST_ROWS = 80


@dataclass(frozen=True, slots=True)
class Cell:
    """value: a mean reward, null where there is none. share: of the row's width. title: shown under the pointer."""

    value: float | None
    title: str
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """sources: the files (by name) that its prompts came from. target: where it leads to; empty where nowhere."""

    label: str
    title: str
    cells: tuple[Cell, ...]
    sources: tuple[str, ...]
    target: str


def rows_of(answer: Lineage) -> tuple[Row, ...]:
    """The rows of an answer, the oldest steps first."""
    if len(answer.steps) > 1 and len(answer.samples) > FEW_SAMPLES:
        return _steps(answer)
    if len(answer.samples) > FEW_SAMPLES:
        return _groups(answer)
    return _samples(answer)


def source_of(group: Group) -> str:
    """`train.jsonl:960`, or `inbox:key`."""
    source = group.source
    return f"{file_of(group)}:{source.line}" if source.line else f"{file_of(group)}:{source.key}".rstrip(":")


def file_of(group: Group) -> str:
    """The name of its file."""
    return PurePosixPath(group.source.path).name or group.source.path


def _steps(answer: Lineage) -> tuple[Row, ...]:
    groups = {(group.run, group.group): group for group in answer.groups}
    by_step: dict[int, list[Group]] = {}
    for group in groups.values():
        if group.step is not None:
            by_step.setdefault(group.step, []).append(group)
    steps = sorted(answer.steps, key=lambda step: step.step)
    size = -(-len(steps) // MOST_ROWS)
    rewards = {sample.sample: sample.reward.value for sample in answer.samples if sample.reward}
    if size == 1:
        return tuple(_step_row(step, by_step.get(step.step, []), rewards) for step in steps)
    return tuple(_steps_row(steps[i : i + size], by_step) for i in range(0, len(steps), size))


def _step_row(step: Step, groups: Sequence[Group], rewards: dict[str, float | None]) -> Row:
    cells = []
    for group in groups:
        mean = _mean(rewards.get(sample) for sample in group.samples)
        cells.append(Cell(mean, f"{group.group}, {source_of(group)}\n{len(group.samples)} samples, {_reward(mean)}"))
    return Row(
        label=f"step {step.step}",
        title=f"{_step_title(step)}\nbatch {step.batch_digest[:12]}",
        cells=tuple(cells),
        sources=_files(groups),
        target=_target(step),
    )


def _steps_row(steps: Sequence[Step], by_step: dict[int, list[Group]]) -> Row:
    return Row(
        label=f"{steps[0].step} to {steps[-1].step}",
        title=f"steps {steps[0].step} to {steps[-1].step}",
        cells=tuple(Cell(step.mean_reward, _step_title(step)) for step in steps),
        sources=_files([group for step in steps for group in by_step.get(step.step, [])]),
        target=_target(steps[-1]),
    )


def _groups(answer: Lineage) -> tuple[Row, ...]:
    steps, samples = {step.step: step for step in answer.steps}, _by_group(answer.samples)
    rows = []
    for group in answer.groups:
        own = samples.get((group.run, group.group), [])
        mean = _mean(sample.reward.value for sample in own if sample.reward)
        rows.append(
            Row(
                label=source_of(group),
                title=f"{group.group}, {source_of(group)}\n{len(own)} samples, {_reward(mean)}\n{group.text[:300]}",
                cells=tuple(
                    Cell(sample.reward.value if sample.reward else None, sample_title(sample)) for sample in own
                ),
                sources=(file_of(group),),
                target=_target(steps[group.step]) if group.step in steps else "",
            )
        )
    return tuple(rows)


def _samples(answer: Lineage) -> tuple[Row, ...]:
    groups = {(group.run, group.group): group for group in answer.groups}
    steps = {step.step: step for step in answer.steps}
    rows = []
    for sample in answer.samples:
        group = groups.get((sample.run, sample.group)) or next(g for g in answer.groups if g.group == sample.group)
        reward = sample.reward.value if sample.reward else None
        cells = tuple(
            Cell(
                reward,
                f"tokens {span.start} to {span.end} by v{span.version}\n{sample_title(sample)}",
                (span.end - span.start) / max(1, sample.length),
            )
            for span in sample.spans
        )
        target = _target(steps[sample.step]) if sample.step in steps else ""
        rows.append(Row(sample.sample, sample_title(sample), cells, (file_of(group),), target))
    return tuple(rows)


def sample_title(sample: Sample) -> str:
    """Its facts in a few lines."""
    made = ", ".join(f"v{version}" for version in sample.made_by)
    if sample.origin is not None:
        made = f"{sample.origin.run}, whose {sample.origin.sample} it is"
    lines = [sample.sample, f"{sample.length} tokens by {made or 'nobody yet'}"]
    if sample.reward is not None:
        lines.append(_reward(sample.reward.value) if sample.reward.failure is None else sample.reward.failure)
    if sample.advantage is not None:
        lines.append(f"advantage {sample.advantage.first:.4g}")
    if sample.mask is not None and sample.mask.trained != sample.mask.tokens:
        lines.append(f"{sample.mask.trained} of them trained on")
    return "\n".join(lines)


def _by_group(samples: Iterable[Sample]) -> dict[tuple[str, str], list[Sample]]:
    found: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        found.setdefault((sample.run, sample.group), []).append(sample)
    return found


def _files(groups: Iterable[Group]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(file_of, groups)))


def _target(step: Step) -> str:
    return (
        f"step {step.step} → v{step.version}" if step.committed_at is not None else f"step {step.step}, not committed"
    )


def _step_title(step: Step) -> str:
    made = f"step {step.step} of {step.run}: v{step.parent} → v{step.version}"
    return f"{made}\n{len(step.samples)} samples, {_reward(step.mean_reward)}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _reward(value: float | None) -> str:
    return "not graded" if value is None else f"reward {value:.4g}"
