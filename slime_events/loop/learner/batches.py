"""`Batches`: the batches of a learner, as a fold of its parent's log. Pure.

group.accepted | group.rejected -> the samples of it that are trained on (`select`)
batch.sealed of step s          -> the learner's batch of step s: what remains of that batch's groups, then the groups
                                   that the parent rejected since its last batch and the learner accepts
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from schemas.batches import BatchSealed
from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.ids import order_in_group
from schemas.rollouts import RolloutCompleted
from slime_events.core.state.apply import apply
from slime_events.core.state.group import GroupState, SampleState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.accept import GroupFilter, Verdict
from slime_events.loop.conductor.seal import Normalise, make_sealed
from slime_events.loop.learner.overrides import Overrides
from slime_events.loop.learner.recredit import Recredit
from slime_events.plugins.texts import Texts
from storage.log import Recorded

MIN_SAMPLES = 2
"""Samples that a group must keep once it has lost some: a single one has nothing to be compared with."""


@dataclass(frozen=True, slots=True)
class Selection:
    """samples: of the group, in its order, with the rewards that are trained on."""

    group: GroupState
    samples: tuple[SampleState, ...]

    @property
    def oldest(self) -> int:
        """The oldest weight version in it, as the parent counts versions."""
        return min(s.min_version if s.oldest is None else s.oldest for s in self.samples)


def select(
    group: GroupState, verdict: Verdict, overrides: Overrides, group_filter: GroupFilter | None
) -> Selection | None:
    """The samples that are trained on; None if there are none. group: as its run had it at `verdict`.

    group_filter: the learner's own; None if it is its parent's: then only overridden verdicts differ. Raises
    PlugPointError where the filter is broken.
    """
    if group.group in overrides.dropped_groups:
        return None
    samples = []
    for sample in group.samples.values():
        reward = overrides.rewards.get(sample.sample, sample.reward)
        if sample.stop is not None and reward is not None and sample.sample not in overrides.dropped:
            samples.append(msgspec.structs.replace(sample, reward=reward))
    if not samples or (len(samples) < MIN_SAMPLES and len(samples) < len(group.samples)):
        return None
    accepted = overrides.verdicts.get(group.group)
    filtered = isinstance(verdict, GroupAccepted) or verdict.cause is RejectionCause.FILTER
    if accepted is None and group_filter is not None and filtered:
        kept = {sample.sample: sample for sample in samples}
        accepted = group_filter(msgspec.structs.replace(group, samples=kept)).keep
    elif accepted is None:
        accepted = isinstance(verdict, GroupAccepted)
    return Selection(group, tuple(samples)) if accepted else None


class DerivedBatch(NamedTuple):
    """What follows for the learner from an event of its parent. batch: the learner's, made from the batch `parent`.
    unused: samples that are in no batch of the learner, now or later."""

    batch: BatchSealed | None = None
    parent: BatchSealed | None = None
    unused: tuple[str, ...] = ()


class Batches:
    """first: the learner's first step; earlier steps have no batches. least: minimum of rollouts of a step (one for
    each of its optimizer steps): with fewer its batch is empty. recredit: of the overrides' credit rule.
    """

    def __init__(
        self,
        run: str,
        normalise: Normalise,
        *,
        overrides: Overrides | None = None,
        group_filter: GroupFilter | None = None,
        first: int = 0,
        least: int = 1,
        recredit: Recredit | None = None,
    ) -> None:
        self._parent, self._texts = RunState(run=run), Texts()
        self._normalise, self._filter = normalise, group_filter and self._telling(group_filter)
        self._overrides, self.first, self._least = overrides or Overrides(), first, least
        self._recredit = recredit
        self._selected: dict[str, Selection] = {}
        self._joining: list[Selection] = []

    def _telling(self, group_filter: GroupFilter) -> GroupFilter:
        return lambda group: group_filter(self._texts.with_texts(group))

    def apply(self, recorded: Recorded) -> DerivedBatch:
        """Fold the parent's next event in. Raises PlugPointError where the filter is broken, InvalidValue where the
        credit rule makes samples that the parent has not.
        """
        event = recorded.envelope.event
        if self._recredit is not None:
            self._fold_sessions(event, self._recredit)
        derived = DerivedBatch()
        if isinstance(event, GroupAccepted | GroupRejected):
            derived = self._decide(event)
        elif isinstance(event, BatchSealed):
            derived = self._seal(event)
        apply(self._parent, recorded)
        if self._filter is not None:
            self._texts.apply(event, self._parent)
        return derived

    def _fold_sessions(self, event: Event, recredit: Recredit) -> None:
        if isinstance(event, RolloutCompleted) and not self._is_trained(event.group):
            recredit.forget([event.sample])  # of an evaluation, or the generation of a turn
        else:
            recredit.apply(event)

    def _is_trained(self, group: str) -> bool:
        known = self._parent.groups.get(group)
        return known is not None and known.purpose is Purpose.TRAIN

    def _decide(self, verdict: Verdict) -> DerivedBatch:
        group = self._parent.groups.get(verdict.group)
        if group is not None and self._recredit is not None:
            group = self._credited(group, self._recredit)
        selected = None if group is None else select(group, verdict, self._overrides, self._filter)
        if selected is None:
            if self._recredit is not None:
                self._recredit.forget(verdict.samples)
            return DerivedBatch(unused=verdict.samples)
        if isinstance(verdict, GroupAccepted):
            self._selected[verdict.group] = selected
        else:
            self._joining.append(selected)
        kept = {sample.sample for sample in selected.samples}
        return DerivedBatch(unused=tuple(sample for sample in verdict.samples if sample not in kept))

    def _credited(self, group: GroupState, recredit: Recredit) -> GroupState:
        """With the samples that the credit rule makes."""
        recredit.check(tuple(group.samples))
        left = {name: sample for name, sample in group.samples.items() if recredit.is_sample(name)}
        return msgspec.structs.replace(group, samples=left)

    def _seal(self, parent: BatchSealed) -> DerivedBatch:
        accepted = [self._selected.pop(group, None) for group in parent.groups]
        selected = [*(one for one in accepted if one is not None), *self._joining]
        self._joining = []
        samples = tuple(sample.sample for one in selected for sample in one.samples)
        if parent.step < self.first:
            return DerivedBatch(unused=samples)
        rollouts = {(one.group.group, order_in_group(sample.sample)[0]) for one in selected for sample in one.samples}
        if len(rollouts) < self._least:
            selected = []
        # Both runs share the versions up to `first`. Newer ones of the parent count as that one.
        oldest = min((min(one.oldest, self.first) for one in selected), default=parent.step)
        groups = [(one.group.group, one.samples) for one in selected]
        batch = make_sealed(parent.step, groups, self._normalise, oldest=oldest)
        batch = msgspec.structs.replace(batch, removed=tuple(name for name in parent.removed if name in batch.samples))
        if self._recredit is not None:
            batch = msgspec.structs.replace(batch, columns=self._recredit.columns(batch.samples))
            self._recredit.forget((*samples, *parent.samples))
        return DerivedBatch(batch, parent, () if selected else samples)


@dataclass(slots=True)
class Preview:
    """How a learner's batches differ from its parent's, before anything is trained. steps: of the parent. differing:
    steps whose batch is another; empty: those of them with nothing left to train on. gone, joined: samples that only
    the parent, only the learner trains on. regraded: samples that both train on, with other rewards. recredited: those
    of batches that are credited by another rule.
    """

    steps: int = 0
    differing: list[int] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    joined: set[str] = field(default_factory=set)
    regraded: set[str] = field(default_factory=set)
    recredited: set[str] = field(default_factory=set)

    @property
    def first(self) -> int | None:
        """The first step that differs; None where none does."""
        return self.differing[0] if self.differing else None

    def add(self, derived: DerivedBatch) -> None:
        """Compare one of the learner's batches with its parent's."""
        batch, parent = derived.batch, derived.parent
        if batch is None or parent is None:
            return
        self.steps = parent.step + 1
        if batch.digest == parent.digest and not batch.columns:
            return
        self.differing.append(batch.step)
        if not batch.samples:
            self.empty.append(batch.step)
        own = dict(zip(batch.samples, batch.raw_rewards, strict=True))
        parents = dict(zip(parent.samples, parent.raw_rewards, strict=True))
        self.recredited |= own.keys() if batch.columns else set()
        self.gone |= parents.keys() - own.keys()
        self.joined |= own.keys() - parents.keys()
        self.regraded |= {sample for sample in own.keys() & parents.keys() if own[sample] != parents[sample]}


async def preview(parent: AsyncIterator[Recorded], batches: Batches) -> Preview:
    """One pass over the parent's log."""
    found = Preview()
    async for recorded in parent:
        found.add(batches.apply(recorded))
    return found
