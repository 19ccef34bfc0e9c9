"""A lineage for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slime_events.analysis.lineage.lineage import Group, Kind, Lineage, Sample, Step
from slime_events.analysis.lineage.picture import source_of
from slime_events.app.cli.render import lineage_words as words
from slime_events.app.cli.render.event_line import figures_text, spans_text
from slime_events.app.cli.render.text import block, clock, fields, moment, shorten, table

FEW_REWARDS = 16


def lineage_text(answer: Lineage) -> str:
    """What was asked about, then what it was made of, or became."""
    if answer.asked.kind in (Kind.VERSION, Kind.STEP):
        parts = [_version_head(answer), _steps(answer) if len(answer.steps) > 1 else _groups(answer)]
    elif len(answer.samples) == 1:
        parts = [_sample(answer, answer.samples[0]), _prompt(answer.groups[0], answer.samples[0].prompt)]
    else:
        parts = [_sources_head(answer), *_groups_and_samples(answer)]
    return "\n\n".join(part for part in (*parts, *answer.notes, _runs(answer)) if part)


def _version_head(answer: Lineage) -> str:
    newest = answer.steps[0] if answer.steps else None
    version = answer.versions[0] if answer.versions else None
    own = version if version is not None and (newest is None or version.version == newest.version) else None
    return fields([
        ("version", f"{own.version} of run {own.run}" if own else f"not made yet, step {answer.asked.value}"),
        ("published", moment(own.published_at) if own and own.published_at else None),
        ("digest", own.digest if own else None),
        ("weights", own.url if own else None),
        ("made by", _made_by(newest) if newest else "nobody: the run begins with it"),
        ("told of", _told_of(answer.steps) if len(answer.steps) > 1 else None),
        ("comes of", words.versions_text(answer.ancestors) or None),
        ("come of it", words.versions_text(answer.descendants) or None),
        ("prompts of", words.files_text(answer.groups)),
    ])  # fmt: skip


def _made_by(step: Step) -> str:
    tokens = f", {step.tokens:,} tokens" if step.tokens is not None else ""
    counts = f"{len(step.groups)} prompts, {len(step.samples)} samples{tokens}, mean reward {step.mean_reward:.3f}"
    return f"step {step.step} of run {step.run} from v{step.parent}: {counts}"


def _told_of(steps: Sequence[Step]) -> str:
    samples = sum(len(step.samples) for step in steps)
    return f"{len(steps)} steps, {steps[-1].step} to {steps[0].step}: {samples:,} samples"


def _steps(answer: Lineage) -> str:
    files: dict[int, list[Group]] = {}
    for group in answer.groups:
        files.setdefault(group.step if group.step is not None else -1, []).append(group)
    rows = [
        (
            step.step,
            step.run,
            f"v{step.version}",
            len(step.groups),
            len(step.samples),
            f"{step.mean_reward:.3f}",
            f"v{step.oldest_version}",
            step.batch_digest[: words.SHORT],
            (step.weights_digest or "")[: words.SHORT] or None,
            words.files_text(files.get(step.step, [])),
        )
        for step in answer.steps
    ]
    head = ("step", "run", "made", "prompts", "samples", "reward", "oldest", "batch", "weights", "prompts of")
    return table(head, rows)


def _groups(answer: Lineage) -> str:
    """A line for each prompt: where it came from, and what its samples did."""
    if not answer.groups:
        return ""
    samples: dict[tuple[str, str], list[Sample]] = {}
    for sample in answer.samples:
        samples.setdefault((sample.run, sample.group), []).append(sample)
    rows = [_group_row(answer, group, samples.get((group.run, group.group), [])) for group in answer.groups]
    return table(("source", "prompt", "samples", "rewards", "advantages", "made by", "trained", "decision"), rows)


def _group_row(answer: Lineage, group: Group, samples: Sequence[Sample]) -> tuple[object, ...]:
    advantages = [sample.advantage.first for sample in samples if sample.advantage]
    trained = sum(sample.mask.trained for sample in samples if sample.mask)
    return (
        source_of(group),
        group.group,
        len(samples),
        _rewards(samples),
        f"{min(advantages):.3g} to {max(advantages):.3g}" if advantages else None,
        words.recalled_text(samples) or words.made_text(_made_by_of(samples), words.whose_text(answer, samples)),
        f"{trained:,} tokens",
        words.decision_text(group.decision),
    )


def _made_by_of(samples: Sequence[Sample]) -> Iterator[int]:
    return (version for sample in samples for version in sample.made_by)


def _rewards(samples: Sequence[Sample]) -> str:
    values = [sample.reward.value if sample.reward else None for sample in samples]
    known = [value for value in values if value is not None]
    mean = f"{sum(known) / len(known):.3g}" if known else "-"
    return mean if len(values) > FEW_REWARDS else " ".join("-" if v is None else f"{v:g}" for v in values)


def _sources_head(answer: Lineage) -> str:
    into = sorted({sample.trained_into for sample in answer.samples if sample.trained_into is not None})
    trained = sum(sample.step is not None for sample in answer.samples)
    return fields([
        (answer.asked.kind.value, f"{answer.asked.value} of run {answer.run}"),
        ("prompts", f"{len(answer.groups)}, with {len(answer.samples)} samples, {trained} of them in a batch"),
        ("prompts of", words.files_text(answer.groups)),
        ("trained into", words.numbers_text(into) or "no version"),
        ("come of it", words.versions_text(words.descendants(answer.samples)) or None),
    ])  # fmt: skip


def _groups_and_samples(answer: Lineage) -> list[str]:
    if len(answer.groups) > 1:
        return [_groups(answer)]
    rows = [
        (
            sample.sample,
            words.reward_text(sample.reward),
            sample.normalised,
            sample.advantage.first if sample.advantage else None,
            words.recalled_text([sample]) or f"{spans_text(sample.spans)}{words.whose_text(answer, [sample])}"
            if sample.spans
            else None,
            words.mask_text(sample.mask),
            words.into_text(sample),
        )
        for sample in answer.samples
    ]
    head = ("sample", "reward", "normalised", "advantage", "made by", "trained", "into")
    return [table(head, rows), *(_prompt(group) for group in answer.groups)]


def _sample(answer: Lineage, sample: Sample) -> str:
    group = answer.groups[0]
    made = f"{spans_text(sample.spans)}{words.whose_text(answer, [sample])}"
    if sample.origin is not None:
        made = f"{words.recalled_text([sample])} (counts here as {spans_text(sample.spans)})"
    made_by = f"{made}, {sample.length} tokens, {sample.stop or 'under way'}" if sample.spans else "nobody yet"
    asked = f"seed {sample.seed}, from weights v{sample.asked_version} on, attempt {sample.attempts}"
    return fields([
        ("sample", f"{sample.sample} of run {sample.run}"),
        ("asked for", asked if sample.attempts else None),
        ("made by", made_by),
        ("recorded as", words.origin_text(sample, group)),
        ("reward", words.graded_text(sample.reward)),
        ("decision", words.decision_text(group.decision)),
        ("normalised", None if sample.normalised is None else f"{sample.normalised:.6g}"),
        ("advantage", words.advantage_text(sample.advantage)),
        ("mask", words.mask_text(sample.mask)),
        ("trained into", words.into_text(sample)),
        ("come of it", words.versions_text(sample.descendants) or None),
        ("digest", sample.digest),
    ])  # fmt: skip


def _prompt(group: Group, own: str | None = None) -> str:
    """own: the text of a sample's own prompt, which it was made of in place of the group's."""
    source = group.source
    where = f"{source.path}:{source.line}, epoch {source.epoch}" if source.line else f"{source.path} {source.key}"
    head = fields([
        ("prompt", f"{group.group} of run {group.run}, {clock(group.submitted_at)}"),
        ("source", where),
        ("label", shorten(group.label, 80) if group.label is not None else None),
        ("figures", figures_text(group.decision.figures) if group.decision else None),
        ("text", None if own is None else "the sample's own" if own else "the sample's own, which is not in this log"),
    ])  # fmt: skip
    return f"{head}\n\n{block(group.text if own is None else own)}"


def _runs(answer: Lineage) -> str:
    lines = []
    for run in (*answer.runs, *answer.branches):
        if run.parent is not None:
            how = "is trained on the rollouts of" if run.follows else "goes on from"
            lines.append(f"{run.run} {how} {run.parent} at v{run.version}, position {run.position} of its log")
    return "\n".join(lines)
