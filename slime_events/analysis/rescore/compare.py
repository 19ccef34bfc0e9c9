"""`Comparison`: recorded groups and batches beside what they would have been. A fold of both."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO, NamedTuple

import msgspec
import numpy as np

from schemas.arrays import EMPTY_TOKENS
from schemas.batches import BatchSealed
from schemas.errors import PlugPointError
from schemas.evals import EvalCompleted
from schemas.groups import GroupAccepted, RejectionCause
from schemas.rewards import RewardAssigned, RewardFailed, RewardFailureKind
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.analysis.model.advantages import Floats, Mask, sample_advantages, trained_tokens
from slime_events.analysis.model.records import Group, Sample
from slime_events.analysis.rescore.bulk_grading import Grade
from slime_events.analysis.rescore.change import Change, GroupChange, RuleChange, SampleChange, write_change
from slime_events.analysis.rescore.collect import completed_of, is_evaluation, prompt_of
from slime_events.analysis.rescore.recredit import Part, Recredit
from slime_events.analysis.rescore.report import Credits, Evaluation, FlippedGroup, Groups, Regraded, Samples, Step
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.state.group import GroupState, SampleState
from slime_events.loop.conductor.accept import GroupFilter
from slime_events.plugins.post_process import PostProcess
from slime_events.plugins.rewards.outcome import RewardFailure, failure
from slime_events.plugins.texts import Said


def advantage_weights(advantages: Floats, masks: Sequence[Mask], settings: AlgorithmSettings) -> Floats:
    """What each sample counts for in a policy gradient: |advantage|, times trained tokens under a per-token loss."""
    tokens = [trained_tokens(mask) if settings.calculate_per_token_loss else 1 for mask in masks]
    return np.abs(advantages) * np.array(tokens, dtype=np.float64)


def effective_sample_size(weights: Floats) -> float:
    """Kish's effective sample size, (sum w)^2 / sum w^2: between 1 and the number of samples; 0 where no weight is.

    As many equally weighted samples would give a mean of the same variance (Kish, Survey Sampling, 1965, 11.7; for
    importance weights: Owen, Monte Carlo theory, methods and examples, 2013, 9.3).
    """
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0


BEYOND = (RejectionCause.ROLLOUT_FAILED, RejectionCause.STALE)
"""Causes of rejections that do not depend on rewards or a filter."""


class Verdict(NamedTuple):
    """reason: as in the event. beyond: rejected whatever the rewards and the filter. fallback: the filter drops the
    group only while others fill the step.
    """

    accepted: bool
    reason: str | None = None
    beyond: bool = False
    fallback: bool = False


def recorded_verdict(group: Group) -> Verdict:
    """As the log has it."""
    assert group.verdict is not None, "an evaluation's group has no verdict"
    event = group.verdict.event
    return Verdict(isinstance(event, GroupAccepted), event.reason, getattr(event, "cause", None) in BEYOND)


_ACCEPTED = Verdict(True)


def verdict_on(group: Group, grades: Sequence[Grade], group_filter: GroupFilter | None) -> Verdict:
    """The verdict that these rewards lead to. grades: one per sample, in the group's order.

    Whether a group that the filter would drop fills a step all the same (slime's fallback) depends on how many others
    there were at that moment: a group that was accepted stays accepted, another one is rejected.
    """
    before = recorded_verdict(group)
    if before.beyond:
        return before
    if RewardFailure in set(map(type, grades)):
        for sample, one in zip(group.samples, grades, strict=True):
            if isinstance(one, RewardFailure):
                return Verdict(False, f"{sample}: {one.kind}: {one.message}")
    if group_filter is None:
        return _ACCEPTED
    rewards = [one for one in grades if not isinstance(one, RewardFailure)]
    try:
        decision = group_filter(_state(group, rewards))
    except PlugPointError as error:
        return Verdict(False, str(error))
    if decision.keep:
        return Verdict(True, decision.reason)
    fallback = decision.keep_when_insufficient
    return Verdict(fallback and before.accepted, decision.reason or "the filter gave no reason", fallback=fallback)


def _state(group: Group, rewards: Sequence[float]) -> GroupState:
    """The group as the run's filter saw it, with these rewards. What the recorded grader left in the metadata is there
    where the reward is the recorded one.
    """
    prompt = prompt_of(group)
    samples = {}
    for (name, sample), reward in zip(group.samples.items(), rewards, strict=True):
        done = completed_of(sample)
        state = SampleState(sample=name, length=done.length, stop=done.stop, text=done.text, reward=reward)
        said = Said.of(done)
        if sample.reward is not None and type(sample.reward.event) is RewardAssigned and sample.value == reward:
            said = said.graded(sample.reward.event)
        state.prompt_text = said.prompt or msgspec.UNSET
        state.left = said.left or msgspec.UNSET
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
    """An accepted group until its batch is sealed. before, after: its samples as they were and as they would be.
    rewards: as they would be; None where it would be rejected. states: the group with its rewards as they were and as
    they would be, where a user's function looks at them.
    """

    before: tuple[Part, ...] = ()
    after: tuple[Part, ...] = ()
    rewards: tuple[float, ...] | None = None
    states: tuple[GroupState, ...] = ()


@dataclass(slots=True)
class Comparison:
    """Takes everything in the log's order. judge: the filter of the change, None where every group is kept. recredit:
    the credit rule of the change. changes: where what would differ is written. most: of each kind of example.
    processes: the user's own normalisation of a batch's rewards, before and after. waiting: accepted groups that no
    batch has yet. before, after: rewards of training samples. mismatched: see `Report`.
    """

    change: Change
    judge: GroupFilter | None
    recredit: Recredit
    changes: IO[bytes] | None
    most: int = 5
    processes: tuple[PostProcess | None, PostProcess | None] = (None, None)
    waiting: dict[str, _Waiting] = field(default_factory=dict)
    samples: Samples = field(default_factory=Samples)
    credit: Credits = field(default_factory=Credits)
    groups: Groups = field(default_factory=Groups)
    steps: list[Step] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    mismatched: int = 0
    before: array[float] = field(default_factory=lambda: array("d"))
    after: array[float] = field(default_factory=lambda: array("d"))
    _eval_sums: defaultdict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    _offered: int = 0
    _rule_written: bool = False

    def group(self, group: Group, grades: Sequence[Grade] | None) -> None:
        """A decided group, or an evaluation's. grades: a grade per sample; None: as recorded."""
        grades = [_recorded_grade(sample) for sample in group.samples.values()] if grades is None else grades
        prompt = prompt_of(group)
        if is_evaluation(group):
            key = prompt.dataset, prompt.version or 0
            self._eval_sums[key] += sum(one for one in grades if not isinstance(one, RewardFailure))
            return
        self._compare_samples(group, grades)
        credited, parts = self.recredit.after(group)
        if credited is not group:
            given = dict(zip(group.samples, grades, strict=True))
            grades = [given[name] if name in given else _recorded_grade(one) for name, one in credited.samples.items()]
        before, after = recorded_verdict(group), verdict_on(credited, grades, self.judge)
        self._compare_verdicts(group, grades, before, after)
        if before.accepted:
            rewards = tuple([one for one in grades if not isinstance(one, RewardFailure)]) if after.accepted else None
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
            tokens = sum([trained_tokens(one.mask) for one in before])
            credit.tokens_before += tokens
            credit.tokens_after += tokens
            return
        old, new = ({one.name: one for one in parts} for parts in (before, after))
        credit.tokens_before += sum(trained_tokens(one.mask) for one in before)
        credit.tokens_after += sum(trained_tokens(one.mask) for one in after)
        credit.samples_gone += len(old.keys() - new.keys())
        credit.samples_new += len(new.keys() - old.keys())
        credit.samples_changed += sum(not old[name].trains_as(new[name]) for name in old.keys() & new.keys())
        if credit.differs and not self._rule_written:
            self._rule_written = True
            rule = self.change.rule
            write_change(self.changes, RuleChange(rule.credit, rule.discount))

    def _compare_samples(self, group: Group, grades: Sequence[Grade]) -> None:
        samples = self.samples
        for (name, sample), one in zip(group.samples.items(), grades, strict=True):
            if sample.reward is None:
                continue  # another of its group failed before it was graded
            recorded = sample.reward.event
            before = recorded.value if type(recorded) is RewardAssigned else None
            samples.graded += 1
            if before is None:
                samples.failed_before += 1
            else:
                self.before.append(before)
            if isinstance(one, RewardFailure):
                after, failure = None, one.message
                samples.failed[one.kind.value] += 1
            else:
                after, failure = one, ""
                self.after.append(one)
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
            now = [None if isinstance(one, RewardFailure) else one for one in grades]
            step = len(self.steps)
            shown.append(FlippedGroup(group=group.group, before=was, after=now, reason=after.reason, step=step))

    def batch(self, sealed: BatchSealed) -> None:
        """A batch, after its groups."""
        groups = [self.waiting.pop(group, _Waiting()) for group in sealed.groups]
        if sum(len(group.before) for group in groups) != len(sealed.raw_rewards):
            self.mismatched += 1  # not the groups that were decided
            return
        groups = _without(groups, sealed)
        was, now = self.processes
        processed = None if was is None else was([one.states[0] for one in groups]).rewards
        before = _trained_on(
            sealed.raw_rewards, [one.before for one in groups], self.change.before.algorithm, processed
        )
        if tuple(before.rewards) != sealed.rewards:
            self.mismatched += not all(map(_close, before.rewards, sealed.rewards))
        stay = [group for group in groups if group.rewards is not None]
        rewards = [reward for group in stay for reward in group.rewards or ()]
        processed = None if now is None else now([one.states[1] for one in stay]).rewards
        after = _trained_on(rewards, [one.after for one in stay], self.change.after.algorithm, processed)
        kept = [part.name for group in stay for part in group.before]
        changed = [group for group in stay if group.after is not group.before]
        parts = {part.name: part for group in changed for part in group.before}
        shared = [part for group in changed for part in group.after if part.name in parts]
        self.steps.append(
            Step(
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
        """An evaluation, after its groups. Samples without a reward count as 0, as in the run."""
        total = self._eval_sums.pop((event.dataset, event.version), 0.0)
        after = total / event.samples if event.samples else 0.0
        self.evaluations.append(Evaluation(event.dataset, event.version, event.mean, after))


def _recorded_grade(sample: Sample) -> Grade:
    event = None if sample.reward is None else sample.reward.event
    if isinstance(event, RewardFailed):
        return failure(event.kind, event.message)
    return failure(RewardFailureKind.NONE, "") if event is None else event.value


def _without(groups: Sequence[_Waiting], sealed: BatchSealed) -> list[_Waiting]:
    """The groups of a batch, nothing of its removed samples trained on."""
    if not sealed.removed:
        return list(groups)
    removed = frozenset(sealed.removed)

    def left(parts: Sequence[Part]) -> tuple[Part, ...]:
        return tuple(Part(part.name, 0) if part.name in removed else part for part in parts)

    return [group._replace(before=left(group.before), after=left(group.after)) for group in groups]


class _Trained(NamedTuple):
    """A batch. rewards: normalised. advantages: by sample, the mean over its trained tokens. ess: see `Step`."""

    rewards: Sequence[float]
    advantages: dict[str, float]
    ess: float


def _trained_on(
    raw: Sequence[float],
    groups: Sequence[Sequence[Part]],
    algorithm: AlgorithmSettings,
    processed: Sequence[float] | None,
) -> _Trained:
    """processed: the rewards as the user's own normalisation makes them. Raises PlugPointError."""
    parts = [part for group in groups for part in group]
    normalised = processed or normalize_rewards(raw, [len(group) for group in groups], algorithm)
    masks, credits = [part.mask for part in parts], [part.credit for part in parts]
    advantages = sample_advantages(normalised, masks, algorithm, credits).mean
    ess = effective_sample_size(advantage_weights(advantages, masks, algorithm))
    return _Trained(normalised, dict(zip((part.name for part in parts), advantages.tolist(), strict=True)), ess)


def _differing(before: Mapping[str, float], after: Mapping[str, float], kept: Sequence[str]) -> int:
    """Samples of the kept ones, and new ones, that have another advantage, or one of the two alone."""
    names = set(kept) | after.keys()
    if before == after and names == before.keys():
        return 0
    both = names & before.keys() & after.keys()
    return len(names) - sum(_close(before[name], after[name]) for name in both)


_close = partial(math.isclose, rel_tol=1e-9, abs_tol=1e-12)
