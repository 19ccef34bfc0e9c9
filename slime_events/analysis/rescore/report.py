"""`Report`: what would differ, as figures and as text."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
import numpy as np

from schemas.doc import doc

VALUES = 12
"""Maximum number of different rewards with a bar each. More are divided into BINS equal intervals."""
BINS = 10


class RewardHistogram(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of training samples. The bars of a report's two histograms have the same ends."""

    count: Annotated[int, doc("number of rewards")]
    mean: Annotated[float | None, doc("mean reward; None if there are none")]
    std: Annotated[float | None, doc("standard deviation, unbiased; None for fewer than two")]
    bars: Annotated[list[tuple[float, float, int]], doc("bars of the histogram: (from, to, count), both ends included")]


class FlippedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group whose verdict would flip."""

    group: Annotated[str, doc("id of the group")]
    before: Annotated[list[float | None], doc("recorded rewards; None if grading failed")]
    after: Annotated[list[float | None], doc("rewards that it would have; None if grading fails")]
    reason: Annotated[str | None, doc("reason of the new verdict")]
    step: Annotated[int, doc("step whose batch has it; for a group accepted now, the next step at that moment")]


class Regraded(msgspec.Struct, frozen=True, kw_only=True):
    """A sample that is graded differently."""

    sample: Annotated[str, doc("id of the sample")]
    before: Annotated[float | None, doc("recorded reward; None if grading failed")]
    after: Annotated[float | None, doc("reward that it would have; None if grading fails")]
    failure: Annotated[str, doc("why grading fails")] = ""


class RescoredSamples(msgspec.Struct, kw_only=True):
    """Counts of training samples."""

    graded: Annotated[int, doc("graded samples")] = 0
    changed: Annotated[int, doc("samples with another outcome: a different reward, or one gained or lost")] = 0
    failed_before: Annotated[int, doc("samples whose grading failed in the run")] = 0
    failed: Annotated[Counter[str], doc("grading failures now, by kind")] = msgspec.field(default_factory=Counter)
    examples: Annotated[list[Regraded], doc("the first of those that changed")] = []


class Credits(msgspec.Struct, kw_only=True):
    """Effect of the credit rule on agents' sessions in accepted groups."""

    sessions: Annotated[int, doc("sessions to which the rule was applied, in all groups")] = 0
    rule: Annotated[str, doc("the rule")] = ""
    tokens_before: Annotated[int, doc("trained tokens in the run")] = 0
    tokens_after: Annotated[int, doc("trained tokens under the rule")] = 0
    samples_changed: Annotated[int, doc("samples that train on other tokens, or on the same with other weights")] = 0
    samples_gone: Annotated[int, doc("paths that are samples in the run only")] = 0
    samples_new: Annotated[int, doc("paths that are samples under the rule only")] = 0

    @property
    def differs(self) -> bool:
        """Whether anything would be trained differently."""
        return bool(self.samples_changed or self.samples_gone or self.samples_new)


class RescoredGroups(msgspec.Struct, kw_only=True):
    """Counts of decided training groups."""

    decided: Annotated[int, doc("decided groups")] = 0
    accepted_before: Annotated[int, doc("groups accepted in the run")] = 0
    accepted_after: Annotated[int, doc("groups that would be accepted")] = 0
    beyond: Annotated[int, doc("groups rejected for a failed rollout or staleness, regardless of rewards")] = 0
    by_fallback: Annotated[int, doc("groups that the filter drops only if others fill the step: verdicts stay")] = 0
    undecided: Annotated[int, doc("groups without a verdict in the log")] = 0
    rejected_now: Annotated[int, doc("accepted groups that would be rejected")] = 0
    accepted_now: Annotated[int, doc("rejected groups that would be accepted")] = 0
    rejected_examples: Annotated[list[FlippedGroup], doc("the first of the former")] = []
    accepted_examples: Annotated[list[FlippedGroup], doc("the first of the latter")] = []


class RescoredStep(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a sealed step."""

    step: Annotated[int, doc("number of the step")]
    samples: Annotated[int, doc("samples in its batch")]
    samples_after: Annotated[int, doc("samples of the groups that stay")]
    lost: Annotated[int, doc("its groups that would not be accepted")]
    offered: Annotated[int, doc("groups that would be accepted while it was the next step")]
    advantages: Annotated[int, doc("samples of the groups that stay whose advantage changes")]
    ess_before: Annotated[float, doc("Kish's effective sample size of the batch's advantage weights")]
    ess_after: Annotated[float, doc("the same for the groups that stay")]
    tokens: Annotated[int, doc("samples whose trained tokens, or their weights, change")] = 0

    @property
    def differs(self) -> bool:
        """Whether its batch, its advantages or its trained tokens would differ."""
        return bool(self.lost or self.offered or self.advantages or self.tokens)


class Evaluation(msgspec.Struct, frozen=True):
    """Mean of an evaluation, as recorded and as it would be."""

    dataset: Annotated[str, doc("name of the data set")]
    version: Annotated[int, doc("evaluated weight version")]
    before: Annotated[float, doc("recorded mean")]
    after: Annotated[float, doc("mean that it would have")]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a run with a change."""

    run: Annotated[str, doc("name of the run")]
    where: Annotated[str, doc("folder or URL that it was opened with")]
    changed: Annotated[list[str], doc("changed settings, `name before -> after`")]
    regraded: Annotated[bool, doc("whether samples were graded again")]
    graders_before: Annotated[list[tuple[str, str, int]], doc("recorded graders: name, digest, number of samples")]
    graders_after: Annotated[list[tuple[str, str, int]], doc("new graders: name, digest, number of samples")]
    filter_before: Annotated[str, doc("path of the run's filter, or `none`")]
    filter_after: Annotated[str, doc("path of the change's filter, or `none`")]
    events: Annotated[int, doc("number of events in the log")]
    samples: Annotated[RescoredSamples, doc("counts of samples")]
    groups: Annotated[RescoredGroups, doc("counts of groups")]
    rewards_before: Annotated[RewardHistogram, doc("recorded rewards")]
    rewards_after: Annotated[RewardHistogram, doc("rewards that there would be")]
    steps: Annotated[list[RescoredStep], doc("sealed steps")]
    evaluations: Annotated[list[Evaluation], doc("evaluations")]
    mismatched: Annotated[int, doc("batches whose normalised rewards do not follow from the settings")]
    without_kl: Annotated[bool, doc("whether advantages leave out a KL penalty, which the log does not hold")]
    without_critic: Annotated[bool, doc("whether advantages leave out a critic's values (not in the log)")] = False
    recredited: Annotated[bool, doc("whether the credit rule was applied to agents' sessions")] = False
    credit: Annotated[Credits, doc("effect of the credit rule")] = msgspec.field(default_factory=Credits)

    @property
    def first_difference(self) -> int | None:
        """The first step that would differ; None if none would."""
        return next((step.step for step in self.steps if step.differs), None)

    @property
    def is_same(self) -> bool:
        """Whether nothing would differ."""
        same = not self.samples.changed and self.first_difference is None and not self.credit.differs
        return same and not self.groups.rejected_now and not self.groups.accepted_now


def distributions(before: Sequence[float], after: Sequence[float]) -> tuple[RewardHistogram, RewardHistogram]:
    """Return two histograms with the same bins."""
    recorded, changed = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    values: list[float] = np.unique(np.concatenate([recorded, changed])).tolist()
    if len(values) <= VALUES:
        edges, ends = [*values, math.inf], list(zip(values, values, strict=True))
    else:
        edges = np.linspace(values[0], values[-1], BINS + 1).tolist()
        ends = list(itertools.pairwise(edges))
    return _distribution(recorded, edges, ends), _distribution(changed, edges, ends)


def _distribution(values: np.ndarray, edges: list[float], ends: list[tuple[float, float]]) -> RewardHistogram:
    counts = np.histogram(values, edges)[0].tolist()
    return RewardHistogram(
        count=len(values),
        mean=float(values.mean()) if len(values) else None,
        std=float(values.std(ddof=1)) if len(values) > 1 else None,
        bars=[(low, high, count) for (low, high), count in zip(ends, counts, strict=True)],
    )


WIDTH = 30
"""Width of the longest bar [characters]."""
NO_POLICY = """\
Limits: these are rollouts of the recorded policy. From step {step} on, a run under these settings would have trained
differently and so made other rollouts (and drawn other prompts, if verdicts flipped). Its later rewards, pass rates
and weights are not in this log. Nor can these rollouts be weighted towards that policy: importance weights need its
log-probs, and no such policy was trained. `retrain` and `branch` train one."""


def report_text(report: Report) -> str:
    """Return the report for people, in sections."""
    sections = [_head(report), _samples(report), _rewards(report), _credit(report), _groups(report), _steps(report)]
    if report.evaluations and report.regraded:
        sections.append(_evaluations(report))
    sections.append([_verdict(report)])
    return "\n\n".join(filter(None, ("\n".join(lines) for lines in sections)))


def _head(report: Report) -> Iterable[str]:
    yield (f"run {report.run}: {report.events:,} events, {report.samples.graded:,} rollouts of"
           f" {report.groups.decided:,} groups, {len(report.steps)} steps")  # fmt: skip
    yield from [f"  {change}" for change in report.changed] or ["  no setting is changed"]


def _samples(report: Report) -> Iterable[str]:
    samples = report.samples
    if not report.regraded:
        yield "samples were not graded again: rewards are as recorded"
        return
    share = f" ({samples.changed / samples.graded:.1%})" if samples.graded else ""
    yield f"graded differently {samples.changed:,} of {samples.graded:,}{share}"
    kinds = "".join(f", {kind} {count:,}" for kind, count in sorted(samples.failed.items()))
    yield f"without a reward   {sum(samples.failed.values()):,} ({samples.failed_before:,} in the run){kinds}"
    before, after = _graders(report.graders_before), _graders(report.graders_after)
    yield f"graded by          {after}" + ("" if after == before else f"; in the run {before}")
    for sample in samples.examples:
        yield f"  {sample.sample}  {_number(sample.before)} -> {_number(sample.after)}  {sample.failure}".rstrip()


def _graders(graders: Sequence[tuple[str, str, int]]) -> str:
    return ", ".join(f"{name} {digest[:12]}".strip() for name, digest, _ in graders) or "no grader"


def _rewards(report: Report) -> Iterable[str]:
    before, after = report.rewards_before, report.rewards_after
    most = max((count for rewards in (before, after) for _, _, count in rewards.bars), default=0)
    yield _row("reward", "before", "after")
    for (low, high, old), (_, _, new) in zip(before.bars, after.bars, strict=True):
        ends = _number(low) if low == high else f"{_number(low)} to {_number(high)}"
        yield _row(ends, _bar(old, most), _bar(new, most))
    yield _row("mean, std", *(f"{_number(rewards.mean)}, {_number(rewards.std)}" for rewards in (before, after)))


def _row(name: str, before: str, after: str) -> str:
    return f"{name:<15} {before:<{WIDTH + 8}} {after}".rstrip()


def _bar(count: int, most: int) -> str:
    return f"{count:>7,} " + "█" * round(WIDTH * count / most) if most else ""


def _credit(report: Report) -> Iterable[str]:
    if not report.recredited:
        return
    credit = report.credit
    yield f"credit             {credit.rule}, over {credit.sessions:,} agents' sessions"
    yield f"  trained tokens     {credit.tokens_before:,} -> {credit.tokens_after:,} in accepted groups"
    yield f"  samples changed    {credit.samples_changed:,}, gone {credit.samples_gone:,}, new {credit.samples_new:,}"


def _groups(report: Report) -> Iterable[str]:
    groups = report.groups
    yield f"groups accepted    {groups.accepted_before:,} -> {groups.accepted_after:,} of {groups.decided:,}"
    yield f"accepted -> rejected  {groups.rejected_now:,}"
    yield from map(_flipped, groups.rejected_examples)
    yield f"rejected -> accepted  {groups.accepted_now:,}"
    yield from map(_flipped, groups.accepted_examples)
    if groups.beyond:
        yield f"rejected for a failed rollout or staleness, regardless of rewards: {groups.beyond:,}"
    if groups.by_fallback:
        yield f"dropped by the filter only while others fill the step, verdict kept: {groups.by_fallback:,}"
    if groups.undecided:
        yield f"not decided yet: {groups.undecided:,}"


def _flipped(group: FlippedGroup) -> str:
    was, now = (" ".join(map(_number, rewards)) for rewards in (group.before, group.after))
    return f"  {group.group} (step {group.step})  {was} -> {now}  {group.reason or ''}".rstrip()


def _steps(report: Report) -> Iterable[str]:
    steps = report.steps
    if not steps:
        yield "steps              none was sealed"
        return
    yield f"steps that differ  {sum(step.differs for step in steps)} of {len(steps)}"
    yield f"  lose a group                     {_which([step.step for step in steps if step.lost])}"
    yield f"  could take another group         {_which([step.step for step in steps if step.offered])}"
    yield f"  have different advantages        {_which([step.step for step in steps if step.advantages])}"
    if report.recredited:
        yield f"  train on different tokens        {_which([step.step for step in steps if step.tokens])}"
    before, after, samples, left = (
        statistics.fmean(getattr(step, name) for step in steps)
        for name in ("ess_before", "ess_after", "samples", "samples_after")
    )
    each = f"{before:.1f} of {samples:.1f} -> {after:.1f} of {left:.1f} a step"
    yield f"effective samples  {each} (Kish: (sum w)^2 / sum w^2, w = |advantage|)"
    if report.without_kl:
        yield "  advantages leave out the KL penalty: it needs log-probs that are not in the log"
    if report.without_critic:
        yield "  advantages leave out the critic's values, which are not in the log"
    if report.mismatched:
        yield f"  {report.mismatched} batches have rewards that do not follow from the settings: see slime-events audit"


def _which(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:8])) + (", ..." if len(steps) > 8 else "")
    return f"{len(steps)}: {shown}" if steps else "0"


def _evaluations(report: Report) -> Iterable[str]:
    yield "evaluations"
    for result in report.evaluations:
        yield f"  {result.dataset} of version {result.version}  {result.before:.3f} -> {result.after:.3f}"


def _verdict(report: Report) -> str:
    if report.is_same:
        return "Nothing would differ: the same rewards, verdicts, batches and advantages."
    first = report.first_difference
    return "No sealed step would differ." if first is None else NO_POLICY.format(step=first)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
