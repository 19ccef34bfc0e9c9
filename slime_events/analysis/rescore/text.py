"""A report as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slime_events.analysis.rescore.report import Distribution, Report, Step, Turned

WIDTH = 30
"""Characters of the longest bar."""
NO_POLICY = """\
What this cannot say: these are the rollouts that the recorded policy made. From step {step} on a run under these
settings would have trained otherwise and so made other rollouts (and, where groups changed sides, drawn other prompts):
its later rewards, pass rates and weights are not in this log. Nor can these rollouts be weighed towards that policy,
since importance weights need its log-probs, and it never was. `retrain` and `branch` make one."""


def report_text(report: Report) -> str:
    """For people, in sections."""
    parts = [_head(report), _samples(report), _rewards(report), _groups(report), _steps(report)]
    if report.evaluations and report.regraded:
        parts.append(_evaluations(report))
    parts.append(_verdict(report))
    return "\n\n".join(part for part in parts if part)


def _head(report: Report) -> str:
    lines = [f"run {report.run}: {report.events:,} events, {report.samples.graded:,} rollouts of"
             f" {report.groups.decided:,} groups, {len(report.steps)} steps"]  # fmt: skip
    lines += [f"  {said}" for said in report.changed] or ["  no setting is changed"]
    return "\n".join(lines)


def _samples(report: Report) -> str:
    samples = report.samples
    if not report.regraded:
        return "samples were not graded again: rewards as recorded"
    lines = [
        f"graded otherwise   {_share(samples.otherwise, samples.graded)}",
        f"without a reward   {sum(samples.failed.values()):,} ({samples.failed_before:,} in the run)"
        + "".join(f", {kind} {count:,}" for kind, count in sorted(samples.failed.items())),
    ]
    before, after = _graders(report.graders_before), _graders(report.graders_after)
    lines.append(f"graded by          {after}" + ("" if after == before else f"; in the run {before}"))
    for one in samples.examples:
        lines.append(f"  {one.sample}  {_number(one.before)} -> {_number(one.after)}  {one.failure}".rstrip())
    return "\n".join(lines)


def _graders(graders: Sequence[tuple[str, str, int]]) -> str:
    return ", ".join(f"{name} {digest[:12]}".strip() for name, digest, _ in graders) or "nobody"


def _rewards(report: Report) -> str:
    before, after = report.rewards_before, report.rewards_after
    lines = [f"{'reward':<15} {'before':<{WIDTH + 8}} after"]
    most = max((count for one in (before, after) for _, _, count in one.bars), default=0)
    for (low, high, old), (_, _, new) in zip(before.bars, after.bars, strict=True):
        ends = _number(low) if low == high else f"{_number(low)} to {_number(high)}"
        lines.append(f"{ends:<15} {_bar(old, most):<{WIDTH + 8}} {_bar(new, most)}".rstrip())
    lines.append(f"{'mean, std':<15} {_moments(before):<{WIDTH + 8}} {_moments(after)}")
    return "\n".join(lines)


def _bar(count: int, most: int) -> str:
    return f"{count:>7,} " + "█" * round(WIDTH * count / most) if most else ""


def _moments(one: Distribution) -> str:
    return f"{_number(one.mean)}, {_number(one.std)}"


def _groups(report: Report) -> str:
    groups = report.groups
    lines = [f"groups accepted    {groups.accepted_before:,} -> {groups.accepted_after:,} of {groups.decided:,}"]
    lines.append(f"accepted -> rejected  {groups.rejected_now:,}")
    lines += _turned(groups.rejected_examples)
    lines.append(f"rejected -> accepted  {groups.accepted_now:,}")
    lines += _turned(groups.accepted_examples)
    if groups.beyond:
        lines.append(f"rejected for a failed rollout or staleness, whatever the rewards: {groups.beyond:,}")
    if groups.by_fallback:
        lines.append(f"left by the filter to what else there was, and so as they were: {groups.by_fallback:,}")
    if groups.undecided:
        lines.append(f"not decided yet: {groups.undecided:,}")
    return "\n".join(lines)


def _turned(examples: Sequence[Turned]) -> Iterator[str]:
    for one in examples:
        was, now = (" ".join(map(_number, rewards)) for rewards in (one.before, one.after))
        yield f"  {one.group} (step {one.step})  {was} -> {now}  {one.reason or ''}".rstrip()


def _steps(report: Report) -> str:
    steps = report.steps
    if not steps:
        return "steps              none was sealed"
    lines = [
        f"steps otherwise    {sum(step.differs for step in steps)} of {len(steps)}",
        f"  lose a group                     {_which([step for step in steps if step.lost])}",
        f"  would have had another to take   {_which([step for step in steps if step.offered])}",
        f"  train on other advantages        {_which([step for step in steps if step.advantages])}",
        f"effective samples  {_effective(steps)}",
    ]
    if report.without_kl:
        lines.append("  advantages without the KL in the reward: the reference's log-probs are not in the log")
    if report.unlike:
        lines.append(
            f"  {report.unlike} batches hold other rewards than the run's settings give: see slime-events audit"
        )
    return "\n".join(lines)


def _effective(steps: Sequence[Step]) -> str:
    before, after, samples, left = (
        sum(figures) / len(steps)
        for figures in zip(*((s.ess_before, s.ess_after, s.samples, s.samples_after) for s in steps), strict=True)
    )
    each = f"{before:.1f} of {samples:.1f} -> {after:.1f} of {left:.1f} a step"
    return f"{each} (Kish: (sum w)^2 / sum w^2, w = |advantage|)"


def _which(steps: Sequence[Step]) -> str:
    numbers = [step.step for step in steps]
    shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    return f"{len(numbers)}: {shown}" if numbers else "0"


def _evaluations(report: Report) -> str:
    lines = ["evaluations"]
    for one in report.evaluations:
        lines.append(f"  {one.dataset} of version {one.version}  {one.before:.3f} -> {one.after:.3f}")
    return "\n".join(lines)


def _verdict(report: Report) -> str:
    if report.is_same:
        return "Nothing would have been otherwise: the same rewards, verdicts, batches and advantages."
    first = report.first_difference
    if first is None:
        return "No step that was sealed would have been otherwise."
    return NO_POLICY.format(step=first)


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}" + (f" ({part / whole:.1%})" if whole else "")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
