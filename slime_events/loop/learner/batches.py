"""`Batches`: the batches of a learner, as a fold of its parent's log. Pure.

group.accepted | group.rejected -> what of it is trained on (`choose`)
batch.sealed of step s          -> the learner's batch of step s: what is left of that batch's groups, then the
                                   groups that the parent refused since its last batch and the learner accepts
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from schemas.batches import BatchSealed
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import place_of
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.accept import Judge, Verdict
from slime_events.loop.conductor.seal import Normalise, batch_digest
from slime_events.loop.learner.overrides import Changes
from slime_events.loop.learner.select import Choice, choose
from storage.log import Recorded


class Taken(NamedTuple):
    """What an event of the parent comes to. batch: the learner's, with `parent`, the one that it is made from. unused:
    samples that no batch of the learner has or will have."""

    batch: BatchSealed | None = None
    parent: BatchSealed | None = None
    unused: tuple[str, ...] = ()


NOTHING = Taken()


class Batches:
    """first: the learner's first step; of those before it there are no batches. least: rollouts that a step takes at
    least (one for each of its optimizer steps): a batch of fewer is empty.
    """

    def __init__(
        self,
        run: str,
        normalise: Normalise,
        *,
        changes: Changes | None = None,
        judge: Judge | None = None,
        first: int = 0,
        least: int = 1,
    ) -> None:
        self._parent = RunState(run=run)
        self._normalise, self._judge = normalise, judge
        self._changes, self.first, self._least = changes or Changes(), first, least
        self._chosen: dict[str, Choice] = {}
        self._joining: list[Choice] = []

    def apply(self, recorded: Recorded) -> Taken:
        """Fold the parent's next event in. Raises PlugPointError where the filter is broken."""
        event = recorded.envelope.event
        taken = NOTHING
        if isinstance(event, GroupAccepted | GroupRejected):
            taken = self._decide(event)
        elif isinstance(event, BatchSealed):
            taken = self._seal(event)
        apply(self._parent, recorded)
        return taken

    def _decide(self, verdict: Verdict) -> Taken:
        group = self._parent.groups.get(verdict.group)
        chosen = None if group is None else choose(group, verdict, self._changes, self._judge)
        if chosen is None:
            return Taken(unused=verdict.samples)
        if isinstance(verdict, GroupAccepted):
            self._chosen[verdict.group] = chosen
        else:
            self._joining.append(chosen)
        kept = {sample.sample for sample in chosen.samples}
        return Taken(unused=tuple(sample for sample in verdict.samples if sample not in kept))

    def _seal(self, parent: BatchSealed) -> Taken:
        found = [self._chosen.pop(group, None) for group in parent.groups]
        chosen = [*(one for one in found if one is not None), *self._joining]
        self._joining = []
        every = tuple(sample.sample for one in chosen for sample in one.samples)
        if parent.step < self.first:
            return Taken(unused=every)
        batch = sealed(parent.step, chosen, self._normalise, self._least, shared=self.first)
        return Taken(batch, parent, () if batch.samples else every)


def sealed(step: int, chosen: Sequence[Choice], normalise: Normalise, least: int, *, shared: int) -> BatchSealed:
    """The batch of these groups in their order; empty where they are fewer than `least` rollouts.

    shared: the newest version that both runs have. What later ones of the parent made, none of the learner's did: it
    counts as made by that one.
    """
    rollouts = {(one.group.group, place_of(sample.sample)[0]) for one in chosen for sample in one.samples}
    if len(rollouts) < least:
        chosen = ()
    samples = [sample for one in chosen for sample in one.samples]
    raw = [reward for one in chosen for reward in one.rewards]
    rewards = normalise(raw, [len(one.samples) for one in chosen])
    lines = [(sample.sample, sample.digest, reward) for sample, reward in zip(samples, rewards, strict=True)]
    return BatchSealed(
        step=step,
        groups=tuple(one.group.group for one in chosen),
        samples=tuple(sample.sample for sample in samples),
        rewards=tuple(rewards),
        raw_rewards=tuple(raw),
        digest=batch_digest(step, lines),
        oldest_version=min((min(one.oldest, shared) for one in chosen), default=step),
    )
