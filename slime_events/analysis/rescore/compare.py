"""`Comparison`: recorded groups and batches beside those under a change. A fold of both."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Annotated, NamedTuple

import msgspec
import numpy as np

from schemas.arrays import EMPTY_TOKENS
from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.errors import PlugPointError
from schemas.evals import EvalCompleted
from schemas.groups import GroupAccepted, RejectionCause
from schemas.rewards import RewardAssigned, RewardFailed, RewardFailureKind
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.analysis.rescore.bulk_grading import Grade
from slime_events.analysis.rescore.change import Change, GroupChange, RuleChange, SampleChange, write_change
from slime_events.analysis.rescore.collect import completed_of, is_evaluation, prompt_of
from slime_events.analysis.rescore.recredit import Part, Recredit
from slime_events.analysis.rescore.report import (
    Credits,
    Evaluation,
    FlippedGroup,
    Regraded,
    RescoredGroups,
    RescoredSamples,
    RescoredStep,
)
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.state.group import GroupState, SampleState
from slime_events.loop.conductor.accept import GroupFilter
from slime_events.model.advantages import Floats, Mask, sample_advantages, trained_tokens
from slime_events.model.records import Group, Sample
from slime_events.plugins.post_process import PostProcess
from slime_events.plugins.rewards.outcome import RewardFailure, failure
from slime_events.plugins.texts import SampleTexts


def advantage_weights(advantages: Floats, masks: Sequence[Mask], settings: AlgorithmSettings) -> Floats:
    """Return the weight of each sample in a policy gradient: |advantage|, times trained tokens for a per-token loss."""
    tokens = [trained_tokens(mask) if settings.calculate_per_token_loss else 1 for mask in masks]
    return np.abs(advantages) * np.array(tokens, dtype=np.float64)


def effective_sample_size(weights: Floats) -> float:
    """Return Kish's effective sample size, (sum w)^2 / sum w^2: from 1 to the number of samples; 0 if all weights are
    0.

    That many equally weighted samples would give a mean of the same variance (Kish, Survey Sampling, 1965, 11.7; for
    importance weights: Owen, Monte Carlo theory, methods and examples, 2013, 9.3).
    """
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0


BEYOND = (RejectionCause.ROLLOUT_FAILED, RejectionCause.STALE)
"""Causes of rejections that depend neither on rewards nor on a filter."""


OnGrade = Callable[[str, float | None], None]
"""Takes a sample's id and its reward under the change; None if grading fails."""


class Verdict(NamedTuple):
    """A verdict on a group."""

    accepted: Annotated[bool, doc("whether the group is trained on")]
    reason: Annotated[str | None, doc("reason, as in the event")] = None
    beyond: Annotated[bool, doc("whether it is rejected regardless of rewards and filter")] = False
    fallback: Annotated[bool, doc("whether the filter drops the group only while others fill the step")] = False


def recorded_verdict(group: Group) -> Verdict:
    """Return the verdict in the log."""
    assert group.verdict is not None, "an evaluation's group has no verdict"
    event = group.verdict.event
    return Verdict(isinstance(event, GroupAccepted), event.reason, getattr(event, "cause", None) in BEYOND)


_ACCEPTED = Verdict(True)


def verdict_on(group: Group, grades: Sequence[Grade], group_filter: GroupFilter | None) -> Verdict:
    """Return the verdict that follows from these rewards. grades: one per sample, in the group's order.

    If the filter drops the group only while others fill the step (slime's fallback), the outcome depended on the number
    of other groups at that moment: an accepted group stays accepted, another is rejected.
    """
    before = recorded_verdict(group)
    if before.beyond:
        return before
    if RewardFailure in set(map(type, grades)):
        for sample, grade in zip(group.samples, grades, strict=True):
            if isinstance(grade, RewardFailure):
                return Verdict(False, f"{sample}: {grade.kind}: {grade.message}")
    if group_filter is None:
        return _ACCEPTED
    rewards = [grade for grade in grades if not isinstance(grade, RewardFailure)]
    try:
        decision = group_filter(_state(group, rewards))
    except PlugPointError as error:
        return Verdict(False, str(error))
    if decision.keep:
        return Verdict(True, decision.reason)
    fallback = decision.keep_when_insufficient
    return Verdict(fallback and before.accepted, decision.reason or "the filter gave no reason", fallback=fallback)


def _state(group: Group, rewards: Sequence[float]) -> GroupState:
    """Return the group as the run's filter saw it, with these rewards. Metadata from the recorded grader is kept if the
    reward is the recorded one.
    """
    prompt = prompt_of(group)
    samples = {}
    for (name, sample), reward in zip(group.samples.items(), rewards, strict=True):
        done = completed_of(sample)
        state = SampleState(sample=name, length=done.length, stop=done.stop, text=done.text, reward=reward)
        texts = SampleTexts.of(done)
        if sample.reward is not None and type(sample.reward.event) is RewardAssigned and sample.value == reward:
            texts = texts.graded(sample.reward.event)
        state.prompt_text = texts.prompt or msgspec.UNSET
        state.left = texts.left or msgspec.UNSET
        state.add_spans(done.spans)
        samples[name] = state
    return GroupState(
        group=prompt.group,
        prompt=EMPTY_TOKENS,
        order=group.order,
        text=prompt.text,
        label=prompt.label,
        metadata=prompt.metadata,
        samples=samples,
        asked=prompt,
    )


class _Waiting(NamedTuple):
    """An accepted group until its batch is sealed."""

    before: Annotated[tuple[Part, ...], doc("its samples as recorded")] = ()
    after: Annotated[tuple[Part, ...], doc("its samples under the change")] = ()
    rewards: Annotated[tuple[float, ...] | None, doc("rewards under the change; None if it would be rejected")] = None
    states: Annotated[tuple[GroupState, ...], doc("the group before and after the change, if a user normalises")] = ()


@dataclass(slots=True)
class Comparison:
    """Takes in everything in the log's order."""

    change: Annotated[Change, doc("the change")]
    judge: Annotated[GroupFilter | None, doc("filter of the change; None if every group is kept")]
    recredit: Annotated[Recredit, doc("credit rule of the change")]
    changes: Annotated[IO[bytes] | None, doc("file for the changes")]
    most: Annotated[int, doc("number of examples of each kind")] = 5
    processes: Annotated[
        tuple[PostProcess | None, PostProcess | None],
        doc("the user's normalisation of a batch's rewards, before and after"),
    ] = (None, None)
    waiting: Annotated[dict[str, _Waiting], doc("accepted groups without a batch, by id")] = field(default_factory=dict)
    samples: Annotated[RescoredSamples, doc("counts of samples")] = field(default_factory=RescoredSamples)
    credit: Annotated[Credits, doc("effect of the credit rule")] = field(default_factory=Credits)
    groups: Annotated[RescoredGroups, doc("counts of groups")] = field(default_factory=RescoredGroups)
    steps: Annotated[list[RescoredStep], doc("compared steps")] = field(default_factory=list)
    evaluations: Annotated[list[Evaluation], doc("compared evaluations")] = field(default_factory=list)
    mismatched: Annotated[int, doc("batches whose rewards do not follow from the settings")] = 0
    before: Annotated[array[float], doc("recorded training rewards")] = field(default_factory=lambda: array("d"))
    after: Annotated[array[float], doc("changed training rewards")] = field(default_factory=lambda: array("d"))
    on_grade: Annotated[OnGrade | None, doc("called for each training sample that the run graded")] = None
    _eval_sums: defaultdict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    _offered: int = 0
    _rule_written: bool = False

    def group(self, group: Group, grades: Sequence[Grade] | None) -> None:
        """Take in a decided group, or an evaluation's. grades: one per sample; None: as recorded."""
        grades = [recorded_grade(sample) for sample in group.samples.values()] if grades is None else grades
        prompt = prompt_of(group)
        if is_evaluation(group):
            key = prompt.dataset, prompt.version or 0
            self._eval_sums[key] += sum(grade for grade in grades if not isinstance(grade, RewardFailure))
            return
        self._compare_samples(group, grades)
        credited, parts = self.recredit.after(group)
        if credited is not group:
            by_sample = dict(zip(group.samples, grades, strict=True))
            grades = [
                by_sample[name] if name in by_sample else recorded_grade(sample)
                for name, sample in credited.samples.items()
            ]
        before, after = recorded_verdict(group), verdict_on(credited, grades, self.judge)
        self._compare_verdicts(group, grades, before, after)
        if before.accepted:
            rewards = (
                tuple([grade for grade in grades if not isinstance(grade, RewardFailure)]) if after.accepted else None
            )
            recorded = parts if credited is group else self.recredit.before(group)
            self._compare_credit(recorded, parts)
            states = self._states(group, credited, rewards)
            self.waiting[prompt.group] = _Waiting(recorded, parts, rewards, states)

    def _states(self, group: Group, after: Group, rewards: tuple[float, ...] | None) -> tuple[GroupState, ...]:
        if self.processes == (None, None):
            return ()
        was = [sample.value for sample in group.samples.values() if sample.value is not None]
        return _state(group, was), _state(after, rewards) if rewards is not None else _state(group, was)

    def _compare_credit(self, before: Sequence[Part], after: Sequence[Part]) -> None:
        credit = self.credit
        if before is after:  # the rule was not applied
            tokens = sum([trained_tokens(part.mask) for part in before])
            credit.tokens_before += tokens
            credit.tokens_after += tokens
            return
        old, new = ({part.name: part for part in parts} for parts in (before, after))
        credit.tokens_before += sum(trained_tokens(part.mask) for part in before)
        credit.tokens_after += sum(trained_tokens(part.mask) for part in after)
        credit.samples_gone += len(old.keys() - new.keys())
        credit.samples_new += len(new.keys() - old.keys())
        credit.samples_changed += sum(not old[name].trains_as(new[name]) for name in old.keys() & new.keys())
        if credit.differs and not self._rule_written:
            self._rule_written = True
            rule = self.change.rule
            write_change(self.changes, RuleChange(rule.credit, rule.discount))

    def _compare_samples(self, group: Group, grades: Sequence[Grade]) -> None:
        samples = self.samples
        for (name, sample), grade in zip(group.samples.items(), grades, strict=True):
            if sample.reward is None:
                continue  # another sample of its group failed before this one was graded
            recorded = sample.reward.event
            before = recorded.value if type(recorded) is RewardAssigned else None
            samples.graded += 1
            if before is None:
                samples.failed_before += 1
            else:
                self.before.append(before)
            if isinstance(grade, RewardFailure):
                after, failure = None, grade.message
                samples.failed[grade.kind.value] += 1
            else:
                after, failure = grade, ""
                self.after.append(grade)
            if self.on_grade is not None:
                self.on_grade(name, after)
            if after == before:
                continue
            samples.changed += 1
            if after is not None and self.changes is not None:
                write_change(self.changes, SampleChange(name, after))
            if len(samples.examples) < self.most:
                samples.examples.append(Regraded(sample=name, before=before, after=after, failure=failure))

    def _compare_verdicts(self, group: Group, grades: Sequence[Grade], before: Verdict, after: Verdict) -> None:
        groups = self.groups
        groups.decided += 1
        groups.accepted_before += before.accepted
        groups.accepted_after += after.accepted
        groups.beyond += before.beyond
        groups.by_fallback += after.fallback
        if before.accepted == after.accepted:
            return
        self._offered += after.accepted
        groups.accepted_now += after.accepted
        groups.rejected_now += not after.accepted
        write_change(self.changes, GroupChange(group.group, after.accepted, after.reason))
        shown = groups.accepted_examples if after.accepted else groups.rejected_examples
        if len(shown) < self.most:
            was = [sample.value for sample in group.samples.values()]
            now = [None if isinstance(grade, RewardFailure) else grade for grade in grades]
            step = len(self.steps)
            shown.append(FlippedGroup(group=group.group, before=was, after=now, reason=after.reason, step=step))

    def batch(self, sealed: BatchSealed) -> None:
        """Take in a batch, after its groups."""
        groups = [self.waiting.pop(group, _Waiting()) for group in sealed.groups]
        if sum(len(group.before) for group in groups) != len(sealed.raw_rewards):
            self.mismatched += 1  # other groups than were decided
            return
        groups = _without(groups, sealed)
        was, now = self.processes
        processed = None if was is None else was([group.states[0] for group in groups]).rewards
        before = _trained_on(
            sealed.raw_rewards, [group.before for group in groups], self.change.before.algorithm, processed
        )
        if tuple(before.rewards) != sealed.rewards:
            self.mismatched += not all(map(_close, before.rewards, sealed.rewards))
        stay = [group for group in groups if group.rewards is not None]
        rewards = [reward for group in stay for reward in group.rewards or ()]
        processed = None if now is None else now([group.states[1] for group in stay]).rewards
        after = _trained_on(rewards, [group.after for group in stay], self.change.after.algorithm, processed)
        kept = [part.name for group in stay for part in group.before]
        changed = [group for group in stay if group.after is not group.before]
        parts = {part.name: part for group in changed for part in group.before}
        shared = [part for group in changed for part in group.after if part.name in parts]
        self.steps.append(
            RescoredStep(
                step=sealed.step,
                samples=len(before.advantages),
                samples_after=len(after.advantages),
                lost=len(groups) - len(stay),
                offered=self._offered,
                advantages=_differing(before.advantages, after.advantages, kept),
                tokens=sum(not part.trains_as(parts[part.name]) for part in shared),
                ess_before=before.ess,
                ess_after=after.ess,
            )
        )
        self._offered = 0

    def evaluation(self, event: EvalCompleted) -> None:
        """Take in an evaluation, after its groups. RescoredSamples without a reward count as 0, as in the run."""
        total = self._eval_sums.pop((event.dataset, event.version), 0.0)
        after = total / event.samples if event.samples else 0.0
        self.evaluations.append(Evaluation(event.dataset, event.version, event.mean, after))


def recorded_grade(sample: Sample) -> Grade:
    """Return the reward of a sample as recorded, or the failure of its grading."""
    event = None if sample.reward is None else sample.reward.event
    if isinstance(event, RewardFailed):
        return failure(event.kind, event.message)
    return failure(RewardFailureKind.NONE, "") if event is None else event.value


def _without(groups: Sequence[_Waiting], sealed: BatchSealed) -> list[_Waiting]:
    """Return the groups of a batch, with no trained tokens in its removed samples."""
    if not sealed.removed:
        return list(groups)
    removed = frozenset(sealed.removed)

    def left(parts: Sequence[Part]) -> tuple[Part, ...]:
        return tuple(Part(part.name, 0) if part.name in removed else part for part in parts)

    return [group._replace(before=left(group.before), after=left(group.after)) for group in groups]


class _Trained(NamedTuple):
    """A batch with its advantages."""

    rewards: Annotated[Sequence[float], doc("normalised rewards")]
    advantages: Annotated[dict[str, float], doc("mean advantage over the trained tokens, by sample")]
    ess: Annotated[float, doc("Kish's effective sample size")]


def _trained_on(
    raw: Sequence[float],
    groups: Sequence[Sequence[Part]],
    algorithm: AlgorithmSettings,
    processed: Sequence[float] | None,
) -> _Trained:
    """Return a batch's advantages. processed: rewards from the user's normalisation. Raises PlugPointError."""
    parts = [part for group in groups for part in group]
    normalised = processed or normalize_rewards(raw, [len(group) for group in groups], algorithm)
    masks, credits = [part.mask for part in parts], [part.credit for part in parts]
    advantages = sample_advantages(normalised, masks, algorithm, credits).mean
    ess = effective_sample_size(advantage_weights(advantages, masks, algorithm))
    return _Trained(normalised, dict(zip((part.name for part in parts), advantages.tolist(), strict=True)), ess)


def _differing(before: Mapping[str, float], after: Mapping[str, float], kept: Sequence[str]) -> int:
    """Return the number of samples, kept or new, whose advantage differs or exists only once."""
    names = set(kept) | after.keys()
    if before == after and names == before.keys():
        return 0
    both = names & before.keys() & after.keys()
    return len(names) - sum(_close(before[name], after[name]) for name in both)


_close = partial(math.isclose, rel_tol=1e-9, abs_tol=1e-12)
