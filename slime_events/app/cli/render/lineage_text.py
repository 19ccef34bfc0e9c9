"""`lineage_text`: a lineage for a terminal."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from schemas.ids import INBOX
from schemas.prompts import as_text
from schemas.rollouts import spans_text
from slime_events.analysis.lineage.lineage import Advantage, Decision, Group, Kind, Lineage, Mask, Reward, Sample
from slime_events.app.cli.render.session_text import session_paragraph, sessions_summary, sessions_table
from slime_events.app.cli.render.text import (
    block,
    clock,
    fields,
    figures_text,
    moment,
    paragraphs,
    shorten,
    table,
    versions_range,
)
from slime_events.core.config.per_source import NATS
from slime_events.model.ancestry import VersionRange

FEW_REWARDS = 16
DIGEST = 12
"""Characters of a digest to show."""


def lineage_text(answer: Lineage) -> str:
    """Return the subject of the lineage, then its ancestors or descendants."""
    if answer.asked.kind in (Kind.VERSION, Kind.STEP):
        parts = [
            _version_head(answer),
            _steps(answer) if len(answer.steps) > 1 else _groups(answer),
            *_commands(answer),
            sessions_table(answer.sessions) if len(answer.steps) == 1 else "",
        ]
    elif len(answer.samples) == 1:
        parts = [
            _sample(answer, answer.samples[0]),
            *map(session_paragraph, answer.sessions),
            _prompt(answer.groups[0], answer.samples[0].prompt),
        ]
    else:
        parts = [_sources_head(answer), *_groups_and_samples(answer), sessions_table(answer.sessions)]
    return paragraphs(*parts, *answer.notes, _runs(answer))


def _version_head(answer: Lineage) -> str:
    newest = answer.steps[0] if answer.steps else None
    version = answer.versions[0] if answer.versions else None
    own = version if version is not None and (newest is None or version.version == newest.version) else None
    maker, several = "nobody: the run begins with it", None
    if newest:
        tokens = f", {newest.tokens:,} tokens" if newest.tokens is not None else ""
        counts = f"{len(newest.groups)} prompts, {len(newest.samples)} samples{tokens}"
        counts += f", mean reward {newest.mean_reward:.3f}"
        if newest.commands:
            datums = sum(command.datums for command in newest.commands)
            counts = f"{len(newest.commands)} commands, {datums} datums{tokens}"
        maker = f"step {newest.step} of run {newest.run} from v{newest.parent}: {counts}"
    if newest and len(answer.steps) > 1:
        samples = sum(len(step.samples) for step in answer.steps)
        several = f"{len(answer.steps)} steps, {answer.steps[-1].step} to {newest.step}: {samples:,} samples"
    return fields([
        ("version", f"{own.version} of run {own.run}" if own else f"not made yet, step {answer.asked.value}"),
        ("published", moment(own.published_at) if own and own.published_at else None),
        ("digest", own.digest if own else None),
        ("weights", own.url if own else None),
        ("made by", maker),
        ("optimizer", f"approximate since v{own.approximate_since}: a replacement trainer trained steps again with a "
                      "different result" if own and own.approximate_since is not None else None),
        ("shown", several),
        ("ancestors", _versions(answer.ancestors)),
        ("descendants", _versions(answer.descendants)),
        ("prompts of", _files(answer.groups)),
        ("agents", sessions_summary(answer.sessions)),
    ])  # fmt: skip


def _steps(answer: Lineage) -> str:
    groups: dict[int | None, list[Group]] = defaultdict(list)
    for group in answer.groups:
        groups[group.step].append(group)
    rows = [
        (step.step, step.run, f"v{step.version}", len(step.groups), len(step.samples), f"{step.mean_reward:.3f}",
         f"v{step.oldest_version}", step.batch_digest[:DIGEST], (step.weights_digest or "")[:DIGEST] or None,
         _files(groups[step.step]))
        for step in answer.steps
    ]  # fmt: skip
    head = ("step", "run", "made", "prompts", "samples", "reward", "oldest", "batch", "weights", "prompts of")
    return table(head, rows)


def _commands(answer: Lineage) -> list[str]:
    """Return a table of a client's commands, with the weight versions that made their samples."""
    made_by = {sample.sample: sample.made_by for sample in answer.samples}
    rows = [
        (f"v{step.version}", command.command, command.kind, command.loss or None, command.datums or None,
         len(command.samples) or None,
         _range((version for name in command.samples for version in made_by.get(name, ())), ""), command.source)
        for step in answer.steps
        for command in step.commands
    ]  # fmt: skip
    head = ("made", "command", "kind", "loss", "datums", "samples", "made by", "of")
    return [table(head, rows)] if rows else []


def _groups(answer: Lineage) -> str:
    """Return a table of prompts with their sources and samples."""
    samples: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in answer.samples:
        samples[sample.run, sample.group].append(sample)
    rows = [_group_row(answer, group, samples[group.run, group.group]) for group in answer.groups]
    head = ("source", "prompt", "samples", "rewards", "advantages", "made by", "trained", "decision")
    return table(head, rows) if rows else ""


def _group_row(answer: Lineage, group: Group, samples: Sequence[Sample]) -> tuple[object, ...]:
    advantages = [sample.advantage.first for sample in samples if sample.advantage]
    trained = sum(sample.mask.trained for sample in samples if sample.mask)
    made_by = _range((version for sample in samples for version in sample.made_by), _owner(answer, samples))
    between = f"{min(advantages):.3g} to {max(advantages):.3g}" if advantages else None
    made_by = _recorded_by(samples) or made_by
    if any(_is_finished(sample, group) for sample in samples):
        made_by = _finished_by(group)
    rewards, decision = _rewards(samples), _decision(group.decision)
    return group.file_line, group.group, len(samples), rewards, between, made_by, f"{trained:,} tokens", decision


def _rewards(samples: Sequence[Sample]) -> str:
    values = [sample.reward.value if sample.reward else None for sample in samples]
    if len(values) <= FEW_REWARDS:
        return " ".join("-" if value is None else f"{value:g}" for value in values)
    graded = [value for value in values if value is not None]
    return f"{sum(graded) / len(graded):.3g}" if graded else "-"


def _sources_head(answer: Lineage) -> str:
    into = sorted({sample.trained_into for sample in answer.samples if sample.trained_into is not None})
    trained = sum(sample.step is not None for sample in answer.samples)
    shown = ", ".join(f"v{version}" for version in into[:8]) or "no version"
    shown += f", ... v{into[-1]} ({len(into)} in all)" if len(into) > 8 else ""
    return fields([
        (answer.asked.kind.value, f"{answer.asked.value} of run {answer.run}"),
        ("prompts", f"{len(answer.groups)}, with {len(answer.samples)} samples, {trained} of them in a batch"),
        ("prompts of", _files(answer.groups)),
        ("trained into", shown),
        ("descendants", _versions(answer.samples_descendants)),
        ("agents", sessions_summary(answer.sessions)),
    ])  # fmt: skip


def _groups_and_samples(answer: Lineage) -> list[str]:
    if len(answer.groups) > 1:
        return [_groups(answer)]
    rows = [
        (sample.sample, _reward(sample.reward), sample.normalised, sample.advantage and sample.advantage.first,
         _recorded_by([sample]) or _spans(answer, sample), _mask(sample.mask), _into(sample))
        for sample in answer.samples
    ]  # fmt: skip
    head = ("sample", "reward", "normalised", "advantage", "made by", "trained", "into")
    return [table(head, rows), *(_prompt(group) for group in answer.groups)]


def _sample(answer: Lineage, sample: Sample) -> str:
    group, origin, reward = answer.groups[0], sample.origin, sample.reward
    maker, recorded = _spans(answer, sample), None
    if origin is not None and _is_finished(sample, group):
        maker, recorded = _finished_by(group), f"finished outside, position {origin.position} of the log"
    elif origin is not None:
        maker = f"{_recorded_by([sample])} (counts here as {spans_text(sample.spans)})"
        recorded = f"{origin.sample} of run {origin.run}, position {origin.position} of its log, at {group.source.path}"
    request = f"seed {sample.seed}, weights v{sample.asked_version} or newer, attempt {sample.attempts}"
    graded = f"{_reward(reward)} by {reward.grader} {reward.grader_digest[:DIGEST]}" if reward else "none yet"
    return fields([
        ("sample", f"{sample.sample} of run {sample.run}"),
        ("requested", request if sample.attempts else None),
        ("made by", f"{maker}, {sample.length} tokens, {sample.stop or 'under way'}" if maker else "nobody yet"),
        ("recorded as", recorded),
        ("reward", graded),
        ("decision", _decision(group.decision)),
        ("normalised", None if sample.normalised is None else f"{sample.normalised:.6g}"),
        ("advantage", _advantage(sample.advantage)),
        ("mask", _mask(sample.mask)),
        ("trained into", _into(sample)),
        ("descendants", _versions(sample.descendants)),
        ("digest", sample.digest),
    ])  # fmt: skip


def _prompt(group: Group, own: str | None = None) -> str:
    """Return a prompt with its source. own: the text of the sample's own prompt, shown instead of the group's."""
    source = group.source
    where = f"{source.path}:{source.line}, epoch {source.epoch}" if source.line else f"{source.path} {source.key}"
    where += f" of {source.sender}" if source.sender else ""
    head = fields([
        ("prompt", f"{group.group} of run {group.run}, {clock(group.submitted_at)}"),
        ("source", where),
        ("label", shorten(as_text(group.label), 80) if group.label is not None else None),
        ("figures", figures_text(group.decision.figures) if group.decision else None),
        ("text", None if own is None else "the sample's own" if own else "the sample's own, which is not in this log"),
    ])  # fmt: skip
    return f"{head}\n\n{block(group.text if own is None else own)}"


def _runs(answer: Lineage) -> str:
    return "\n".join(
        f"{run.run} {'is trained on the rollouts of' if run.follows else 'continues from'} {run.parent} "
        f"at v{run.version}, position {run.position} of its log"
        for run in (*answer.runs, *answer.branches)
        if run.parent is not None
    )


def _versions(ranges: Iterable[VersionRange]) -> str | None:
    """Return `v0 to v4 of demo, v5 to v9 of hotter`."""
    return ", ".join(str(_range((part.first, part.last), f" of {part.run}")) for part in ranges) or None


def _range(versions: Iterable[int], of_run: str) -> str | None:
    """Return the oldest and newest version as `v3 to v5 of demo`; None for no versions."""
    distinct = set(versions)
    return versions_range(min(distinct), max(distinct)) + of_run if distinct else None


def _owner(answer: Lineage, samples: Iterable[Sample]) -> str:
    """Return ` of demo`, if weight versions of another line of ancestors made the tokens."""
    runs = {s.run for s in samples if not all(answer.on_line(s.run, version) for version in s.made_by)}
    return f" of {runs.pop()}" if runs else ""


def _recorded_by(samples: Iterable[Sample]) -> str | None:
    """Return the versions that made recorded rollouts, with their run: `v3 to v5 of demo`."""
    origins = [sample.origin for sample in samples if sample.origin is not None]
    versions = (span.version for origin in origins for span in origin.spans)
    return _range(versions, f" of {origins[0].run}") if origins else None


def _is_finished(sample: Sample, group: Group) -> bool:
    """Whether a producer sent the finished sample: its origin is then a recorded rollout of the same run."""
    return sample.origin is not None and sample.origin.run == sample.run == group.run and group.source.path == INBOX


def _finished_by(group: Group) -> str:
    return f"a producer outside ({group.source.sender or NATS})"


def _spans(answer: Lineage, sample: Sample) -> str | None:
    return f"{spans_text(sample.spans)}{_owner(answer, [sample])}" if sample.spans else None


def _into(sample: Sample) -> str:
    """Return `step 4 -> v5`: the step with the sample in its batch, and the resulting version."""
    if sample.step is None:
        return "no version"
    return f"step {sample.step} -> " + ("not committed" if sample.trained_into is None else f"v{sample.trained_into}")


def _reward(reward: Reward | None) -> str | None:
    """Return the reward, or why there is none."""
    if reward is None:
        return None
    return f"{reward.value:g}" if reward.value is not None else f"none ({reward.failure})"


def _advantage(advantage: Advantage | None) -> str | None:
    """Return `0.5 for each trained token (grpo)`."""
    if advantage is None:
        return None
    first, last = f"{advantage.first:.6g}", f"{advantage.last:.6g}"
    value = f"{first} for each trained token"
    if first != last:
        value = f"{first} for the first token to {last} for the last"
    left = f", without {' and '.join(advantage.left_out)}, which need log-probs" if advantage.left_out else ""
    return f"{value} ({advantage.estimator}){left}"


def _mask(mask: Mask | None) -> str | None:
    """Return the tokens that were trained on: `12 of 40 tokens [0:12]`."""
    if mask is None:
        return None
    if mask.trained == mask.tokens:
        return f"all {mask.tokens} tokens"
    ranges = " ".join(f"[{begin}:{end}]" for begin, end in mask.ranges[:8]) + (" ..." if len(mask.ranges) > 8 else "")
    return f"{mask.trained} of {mask.tokens} tokens {ranges}".rstrip()


def _decision(decision: Decision | None) -> str:
    """Return `rejected (filtered) by check_reward_nonzero_std: all rewards are 0`."""
    if decision is None:
        return "not decided"
    verdict = "accepted" if decision.accepted else f"rejected ({decision.cause})"
    by = f" by {decision.filter}" if decision.filter != "none" else ""
    return verdict + by + (f": {decision.reason}" if decision.reason else "")


def _files(groups: Iterable[Group]) -> str | None:
    """Return the files that the prompts were read from."""
    return ", ".join(dict.fromkeys(group.file for group in groups)) or None
