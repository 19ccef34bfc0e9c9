"""`Report`: what would have been different, as figures and as text."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

VALUES = 12
"""Up to so many different rewards each has its own bar; more are cut into BINS equal stretches."""
BINS = 10


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of training samples. std: unbiased; mean, std: None for none. bars: (from, to, how many), both ends in.

    The bars of the two distributions of a report have the same ends.
    """

    count: int
    mean: float | None
    std: float | None
    bars: list[tuple[float, float, int]]


class FlippedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group whose verdict would flip. before, after: rewards, None where grading failed. reason: of the new verdict.
    step: whose batch has it, or (accepted now) the next step at that moment.
    """

    group: str
    before: list[float | None]
    after: list[float | None]
    reason: str | None
    step: int


class Regraded(msgspec.Struct, frozen=True, kw_only=True):
    """A sample that is graded differently. before, after: None where grading failed, for the reason in `failure`."""

    sample: str
    before: float | None
    after: float | None
    failure: str = ""


class Samples(msgspec.Struct, kw_only=True):
    """Training samples. changed: another reward, or one where there was none, or the reverse. failed: by kind."""

    graded: int = 0
    changed: int = 0
    failed_before: int = 0
    failed: Counter[str] = msgspec.field(default_factory=Counter)
    examples: list[Regraded] = []


class Credits(msgspec.Struct, kw_only=True):
    """What the credit rule makes of agents' sessions in accepted groups. sessions: of all groups that the rule was
    applied to. rule: as asked. tokens_before, tokens_after: trained. samples_changed: that train on other tokens, or on
    the same with other weights; samples_gone, samples_new: paths that only the one rule makes samples of.
    """

    sessions: int = 0
    rule: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    samples_changed: int = 0
    samples_gone: int = 0
    samples_new: int = 0

    @property
    def differs(self) -> bool:
        """Whether anything would be trained otherwise."""
        return bool(self.samples_changed or self.samples_gone or self.samples_new)


class Groups(msgspec.Struct, kw_only=True):
    """Decided training groups. beyond: rejected for a failed rollout or for staleness, whatever the rewards.

    by_fallback: the filter drops them only while others fill the step; they stay as recorded. undecided: without a
    verdict in the log.
    """

    decided: int = 0
    accepted_before: int = 0
    accepted_after: int = 0
    beyond: int = 0
    by_fallback: int = 0
    undecided: int = 0
    rejected_now: int = 0
    accepted_now: int = 0
    rejected_examples: list[FlippedGroup] = []
    accepted_examples: list[FlippedGroup] = []


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed step. lost: its groups that would not be accepted. offered: groups that would be accepted while it was
    the next. advantages: samples (of groups that stay) with another advantage; tokens: those with other trained tokens,
    or other credit for them. ess_before, ess_after: Kish's effective sample size of the advantage weights of its
    `samples`, and of those of the groups that stay, `samples_after`.
    """

    step: int
    samples: int
    samples_after: int
    lost: int
    offered: int
    advantages: int
    ess_before: float
    ess_after: float
    tokens: int = 0

    @property
    def differs(self) -> bool:
        """Whether its batch, its advantages or what is trained of it would differ."""
        return bool(self.lost or self.offered or self.advantages or self.tokens)


class Evaluation(msgspec.Struct, frozen=True):
    """An evaluation's mean, as recorded and as it would be."""

    dataset: str
    version: int
    before: float
    after: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """graders: name, source digest and count of samples. mismatched: batches whose normalised rewards do not follow
    from the run's settings (0 in every run that audit finds clean). without_kl: advantages are compared without the KL
    in the reward, without_critic: without its values; the log holds neither. recredited: the credit rule was applied
    to the sessions of agents, with what `credit` says.
    """

    run: str
    where: str
    changed: list[str]
    regraded: bool
    graders_before: list[tuple[str, str, int]]
    graders_after: list[tuple[str, str, int]]
    filter_before: str
    filter_after: str
    events: int
    samples: Samples
    groups: Groups
    rewards_before: Distribution
    rewards_after: Distribution
    steps: list[Step]
    evaluations: list[Evaluation]
    mismatched: int
    without_kl: bool
    without_critic: bool = False
    recredited: bool = False
    credit: Credits = msgspec.field(default_factory=Credits)

    @property
    def first_difference(self) -> int | None:
        """The first step that would differ; None where none would."""
        return next((step.step for step in self.steps if step.differs), None)

    @property
    def is_same(self) -> bool:
        """Whether nothing at all would differ."""
        same = not self.samples.changed and self.first_difference is None and not self.credit.differs
        return same and not self.groups.rejected_now and not self.groups.accepted_now


def distributions(before: Sequence[float], after: Sequence[float]) -> tuple[Distribution, Distribution]:
    """Both over the same bars."""
    one, other = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    values: list[float] = np.unique(np.concatenate([one, other])).tolist()
    if len(values) <= VALUES:
        edges, ends = [*values, math.inf], list(zip(values, values, strict=True))
    else:
        edges = np.linspace(values[0], values[-1], BINS + 1).tolist()
        ends = list(itertools.pairwise(edges))
    return _distribution(one, edges, ends), _distribution(other, edges, ends)


def _distribution(values: np.ndarray, edges: list[float], ends: list[tuple[float, float]]) -> Distribution:
    counts = np.histogram(values, edges)[0].tolist()
    return Distribution(
        count=len(values),
        mean=float(values.mean()) if len(values) else None,
        std=float(values.std(ddof=1)) if len(values) > 1 else None,
        bars=[(low, high, count) for (low, high), count in zip(ends, counts, strict=True)],
    )


WIDTH = 30
"""Characters of the longest bar."""
NO_POLICY = """\
What this cannot say: these are the rollouts that the recorded policy made. From step {step} on a run under these
settings would have trained differently and so made other rollouts (and, where verdicts flipped, drawn other prompts):
its later rewards, pass rates and weights are not in this log. Nor can these rollouts be weighed towards that policy,
since importance weights need its log-probs, and it never was. `retrain` and `branch` make one."""


def report_text(report: Report) -> str:
    """For people, in sections."""
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
        yield "samples were not graded again: rewards as recorded"
        return
    share = f" ({samples.changed / samples.graded:.1%})" if samples.graded else ""
    yield f"graded differently {samples.changed:,} of {samples.graded:,}{share}"
    kinds = "".join(f", {kind} {count:,}" for kind, count in sorted(samples.failed.items()))
    yield f"without a reward   {sum(samples.failed.values()):,} ({samples.failed_before:,} in the run){kinds}"
    before, after = _graders(report.graders_before), _graders(report.graders_after)
    yield f"graded by          {after}" + ("" if after == before else f"; in the run {before}")
    for one in samples.examples:
        yield f"  {one.sample}  {_number(one.before)} -> {_number(one.after)}  {one.failure}".rstrip()


def _graders(graders: Sequence[tuple[str, str, int]]) -> str:
    return ", ".join(f"{name} {digest[:12]}".strip() for name, digest, _ in graders) or "nobody"


def _rewards(report: Report) -> Iterable[str]:
    before, after = report.rewards_before, report.rewards_after
    most = max((count for one in (before, after) for _, _, count in one.bars), default=0)
    yield _row("reward", "before", "after")
    for (low, high, old), (_, _, new) in zip(before.bars, after.bars, strict=True):
        ends = _number(low) if low == high else f"{_number(low)} to {_number(high)}"
        yield _row(ends, _bar(old, most), _bar(new, most))
    yield _row("mean, std", *(f"{_number(one.mean)}, {_number(one.std)}" for one in (before, after)))


def _row(name: str, before: str, after: str) -> str:
    return f"{name:<15} {before:<{WIDTH + 8}} {after}".rstrip()


def _bar(count: int, most: int) -> str:
    return f"{count:>7,} " + "█" * round(WIDTH * count / most) if most else ""


def _credit(report: Report) -> Iterable[str]:
    if not report.recredited:
        return
    credit = report.credit
    yield f"credit             {credit.rule}, over {credit.sessions:,} sessions of agents"
    yield f"  trained tokens     {credit.tokens_before:,} -> {credit.tokens_after:,} of accepted groups"
    yield f"  samples changed    {credit.samples_changed:,}, gone {credit.samples_gone:,}, new {credit.samples_new:,}"


def _groups(report: Report) -> Iterable[str]:
    groups = report.groups
    yield f"groups accepted    {groups.accepted_before:,} -> {groups.accepted_after:,} of {groups.decided:,}"
    yield f"accepted -> rejected  {groups.rejected_now:,}"
    yield from map(_flipped, groups.rejected_examples)
    yield f"rejected -> accepted  {groups.accepted_now:,}"
    yield from map(_flipped, groups.accepted_examples)
    if groups.beyond:
        yield f"rejected for a failed rollout or staleness, whatever the rewards: {groups.beyond:,}"
    if groups.by_fallback:
        yield f"dropped by the filter only while others fill the step: {groups.by_fallback:,}, as recorded"
    if groups.undecided:
        yield f"not decided yet: {groups.undecided:,}"


def _flipped(one: FlippedGroup) -> str:
    was, now = (" ".join(map(_number, rewards)) for rewards in (one.before, one.after))
    return f"  {one.group} (step {one.step})  {was} -> {now}  {one.reason or ''}".rstrip()


def _steps(report: Report) -> Iterable[str]:
    steps = report.steps
    if not steps:
        yield "steps              none was sealed"
        return
    yield f"steps that differ  {sum(step.differs for step in steps)} of {len(steps)}"
    yield f"  lose a group                     {_which([step.step for step in steps if step.lost])}"
    yield f"  would have had another to take   {_which([step.step for step in steps if step.offered])}"
    yield f"  train on other advantages        {_which([step.step for step in steps if step.advantages])}"
    if report.recredited:
        yield f"  train on other tokens            {_which([step.step for step in steps if step.tokens])}"
    before, after, samples, left = (
        statistics.fmean(getattr(step, name) for step in steps)
        for name in ("ess_before", "ess_after", "samples", "samples_after")
    )
    each = f"{before:.1f} of {samples:.1f} -> {after:.1f} of {left:.1f} a step"
    yield f"effective samples  {each} (Kish: (sum w)^2 / sum w^2, w = |advantage|)"
    if report.without_kl:
        yield "  advantages without the KL: the log-probs of the other model are not in the log"
    if report.without_critic:
        yield "  advantages without what the critic expected: its values are not in the log"
    if report.mismatched:
        yield f"  {report.mismatched} batches hold other rewards than the run's settings give: see slime-events audit"


def _which(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:8])) + (", ..." if len(steps) > 8 else "")
    return f"{len(steps)}: {shown}" if steps else "0"


def _evaluations(report: Report) -> Iterable[str]:
    yield "evaluations"
    for one in report.evaluations:
        yield f"  {one.dataset} of version {one.version}  {one.before:.3f} -> {one.after:.3f}"


def _verdict(report: Report) -> str:
    if report.is_same:
        return "Nothing would differ: the same rewards, verdicts, batches and advantages."
    first = report.first_difference
    return "No sealed step would differ." if first is None else NO_POLICY.format(step=first)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
