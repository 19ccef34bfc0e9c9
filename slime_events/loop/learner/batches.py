"""`Batches`: the batches of a learner, as a fold of its parent's log. Pure.

group.accepted | group.rejected -> the samples of the group to train on (`select`)
batch.sealed of step s          -> the learner's batch of step s: the remaining groups of the parent's batch, then
                                   groups that the parent rejected since its last batch and the learner accepts
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

from schemas.batches import BatchSealed
from schemas.doc import doc
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
"""Fewest samples of a group that has lost some: a single sample has nothing to be compared with."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The samples of a group to train on."""

    group: GroupState
    samples: Annotated[tuple[SampleState, ...], doc("in the group's order, with the rewards to train on")]

    @property
    def oldest(self) -> int:
        """The oldest weight version of its samples, in the parent's numbering."""
        return min(s.min_version if s.oldest is None else s.oldest for s in self.samples)


def select(
    group: GroupState, verdict: Verdict, overrides: Overrides, group_filter: GroupFilter | None
) -> Selection | None:
    """Return the samples to train on; None if there are none. group: as its run had it at `verdict`.

    group_filter: the learner's own filter; None if it has its parent's: then only overridden verdicts differ. Raises
    PlugPointError if the filter is broken.
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
    """The result of an event of the parent for the learner."""

    batch: Annotated[BatchSealed | None, doc("the learner's batch; None: the event gives none")] = None
    parent: Annotated[BatchSealed | None, doc("the parent's batch that `batch` is made from")] = None
    unused: Annotated[tuple[str, ...], doc("samples that no batch of the learner has, now or later")] = ()


class Batches:
    """Folds a parent's log into the learner's batches.

    first: the learner's first step; earlier steps have no batches. least: fewest rollouts of a step, one for each of
    its optimizer steps; a batch with fewer is empty. recredit: from the credit rule of the overrides.
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
        self._normalise, self._filter = normalise, group_filter and self._with_texts(group_filter)
        self._overrides, self.first, self._least = overrides or Overrides(), first, least
        self._recredit = recredit
        self._selected: dict[str, Selection] = {}
        self._joining: list[Selection] = []

    def _with_texts(self, group_filter: GroupFilter) -> GroupFilter:
        return lambda group: group_filter(self._texts.with_texts(group))

    def apply(self, recorded: Recorded) -> DerivedBatch:
        """Fold the parent's next event in.

        Raises PlugPointError if the filter is broken, and InvalidValue if the credit rule makes samples that the parent
        does not have.
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
            recredit.forget([event.sample])  # belongs to an evaluation, or is the generation of a turn
        else:
            recredit.apply(event)

    def _is_trained(self, group: str) -> bool:
        state = self._parent.groups.get(group)
        return state is not None and state.purpose is Purpose.TRAIN

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
        """Return the group with only the samples of the credit rule."""
        recredit.check(tuple(group.samples))
        left = {name: sample for name, sample in group.samples.items() if recredit.is_sample(name)}
        return msgspec.structs.replace(group, samples=left)

    def _seal(self, parent: BatchSealed) -> DerivedBatch:
        accepted = [self._selected.pop(group, None) for group in parent.groups]
        selected = [*(selection for selection in accepted if selection is not None), *self._joining]
        self._joining = []
        pairs = [(selection.group.group, sample) for selection in selected for sample in selection.samples]
        samples = tuple(sample.sample for _, sample in pairs)
        if parent.step < self.first:
            return DerivedBatch(unused=samples)
        if len({(group, order_in_group(sample.sample)[0]) for group, sample in pairs}) < self._least:
            selected = []
        # Both runs share the versions up to `first`. Newer ones of the parent count as that one.
        oldest = min((min(selection.oldest, self.first) for selection in selected), default=parent.step)
        groups = [(selection.group.group, selection.samples) for selection in selected]
        batch = make_sealed(parent.step, groups, self._normalise, oldest=oldest)
        batch = msgspec.structs.replace(batch, removed=tuple(name for name in parent.removed if name in batch.samples))
        if self._recredit is not None:
            batch = msgspec.structs.replace(batch, columns=self._recredit.columns(batch.samples))
            self._recredit.forget((*samples, *parent.samples))
        return DerivedBatch(batch, parent, () if selected else samples)


@dataclass(slots=True)
class Preview:
    """Differences between a learner's batches and its parent's, before training."""

    steps: Annotated[int, doc("steps of the parent")] = 0
    differing: Annotated[list[int], doc("steps with a different batch")] = field(default_factory=list)
    empty: Annotated[list[int], doc("differing steps with an empty batch")] = field(default_factory=list)
    gone: Annotated[set[str], doc("samples that only the parent trains on")] = field(default_factory=set)
    joined: Annotated[set[str], doc("samples that only the learner trains on")] = field(default_factory=set)
    regraded: Annotated[set[str], doc("samples that both train on, with different rewards")] = field(
        default_factory=set
    )
    recredited: Annotated[set[str], doc("samples of batches with a different credit rule")] = field(default_factory=set)

    @property
    def first(self) -> int | None:
        """The first step that differs; None if no step does."""
        return self.differing[0] if self.differing else None

    def add(self, derived: DerivedBatch) -> None:
        """Compare a batch of the learner with its parent's."""
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
    """Read the parent's log once, and return how the batches differ."""
    result = Preview()
    async for recorded in parent:
        result.add(batches.apply(recorded))
    return result
