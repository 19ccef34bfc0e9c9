"""`Outlook`: what a learner would train on otherwise than its parent did, before anything is trained."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from slime_events.loop.learner.batches import Batches, Taken
from storage.log import Recorded


@dataclass(slots=True)
class Outlook:
    """steps: of the parent. differing: steps whose batch is another; empty: those of them with nothing left to train
    on. gone, joined: samples that the parent trained and the learner does not, and the other way round. regraded:
    samples that both train, with other rewards.
    """

    steps: int = 0
    differing: list[int] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    joined: set[str] = field(default_factory=set)
    regraded: set[str] = field(default_factory=set)

    @property
    def first(self) -> int | None:
        """The first step that differs; None where none does."""
        return self.differing[0] if self.differing else None

    def add(self, taken: Taken) -> None:
        """Take in what an event of the parent came to."""
        batch, parent = taken.batch, taken.parent
        if batch is None or parent is None:
            return
        self.steps = parent.step + 1
        if batch.digest == parent.digest:
            return
        self.differing.append(batch.step)
        if not batch.samples:
            self.empty.append(batch.step)
        mine = dict(zip(batch.samples, batch.raw_rewards, strict=True))
        theirs = dict(zip(parent.samples, parent.raw_rewards, strict=True))
        self.gone |= theirs.keys() - mine.keys()
        self.joined |= mine.keys() - theirs.keys()
        self.regraded |= {sample for sample in mine.keys() & theirs.keys() if mine[sample] != theirs[sample]}


async def look_ahead(parent: AsyncIterator[Recorded], batches: Batches) -> Outlook:
    """One pass over the parent's log."""
    outlook = Outlook()
    async for recorded in parent:
        outlook.add(batches.apply(recorded))
    return outlook
