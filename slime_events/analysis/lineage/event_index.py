"""`Reading`: the events that a lineage is made of, looked up by what they are about, many at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from schemas.batches import BatchSealed
from schemas.errors import RunNotFound
from schemas.event import Event, type_of
from schemas.rollouts import RolloutProgressed, WeightSpan
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from slime_events.analysis.model.ancestry import Part, Past
from slime_events.core.trajectory import merge_spans
from storage.log import Recorded

EventT = TypeVar("EventT", bound=Event)

AT_ONCE = 64
"""Batches looked through at once for the one that a group is in."""


class Said:
    """The last event of a type about an entity, and the run whose log has it."""

    def __init__(self, found: Mapping[tuple[str, str], tuple[Recorded, str]]) -> None:
        self._found = found

    def event(self, cls: type[EventT], entity: str) -> EventT | None:
        """The event, where there is one."""
        found = self._found.get((type_of(cls), entity))
        event = found[0].envelope.event if found else None
        return event if isinstance(event, cls) else None

    def recorded(self, cls: type[Event], entity: str) -> Recorded | None:
        """The same with its position and time."""
        found = self._found.get((type_of(cls), entity))
        return found[0] if found else None

    def run(self, cls: type[Event], entity: str) -> str:
        """Whose log has it; empty where nobody's has."""
        found = self._found.get((type_of(cls), entity))
        return found[1] if found else ""


class Reading:
    """Look-ups along a past."""

    def __init__(self, past: Past) -> None:
        self.past = past

    async def said(self, part: Part, classes: Sequence[type[Event]], entities: Iterable[str]) -> Said:
        """What `part` says of them, and of what it does not say and follows another run for, what that one says."""
        wanted = [(type_of(cls), entity) for entity in dict.fromkeys(entities) for cls in classes]
        found = {key: (one, part.run) for key, one in (await part.last_of_each(wanted)).items()}
        followed = await self.past.parent(part) if part.follows else None
        while followed is not None:
            missing = [key for key in wanted if key not in found]
            found |= {key: (one, followed.run) for key, one in (await followed.last_of_each(missing)).items()}
            followed = await self.past.parent(followed) if followed.follows else None
        return Said(found)

    async def spans_so_far(self, part: Part, sample: str) -> tuple[WeightSpan, ...]:
        """Who made the tokens that a rollout has which is still under way; those of turns are told when it is whole."""
        spans: tuple[WeightSpan, ...] = ()
        async for recorded in part.of_entity(type_of(RolloutProgressed), sample):
            event = recorded.envelope.event
            if isinstance(event, RolloutProgressed) and event.turn is None:
                spans = merge_spans(spans, event.spans)
        return spans

    async def batches(self, steps: Sequence[int]) -> dict[int, tuple[Part, Said]]:
        """Of each sealed step of the past: whose it is, and its batch.sealed and step.committed."""
        by_part: dict[int, tuple[Part, list[int]]] = {}
        for step in steps:
            part = await self.past.of_step(step)
            by_part.setdefault(part.first_step, (part, []))[1].append(step)
        found: dict[int, tuple[Part, Said]] = {}
        for part, own in by_part.values():
            said = await self.said(part, (BatchSealed, StepCommitted), map(str, own))
            found |= {step: (part, said) for step in own if said.event(BatchSealed, str(step)) is not None}
        return found

    async def sealed(self, steps: Sequence[int]) -> dict[int, BatchSealed]:
        """The batches of those of these steps that are sealed."""
        found = {step: said.event(BatchSealed, str(step)) for step, (_, said) in (await self.batches(steps)).items()}
        return {step: batch for step, batch in found.items() if batch is not None}

    async def newest_sealed(self, part: Part) -> int:
        """The last step of `part` within this past that has a batch; below its first where none has."""
        last = await part.opened.log.last(of_type(part.run, type_of(BatchSealed)))
        if last is None:
            return part.first_step - 1
        event = last.envelope.event
        assert isinstance(event, BatchSealed)
        return event.step if part.until is None else min(event.step, part.until - 1)

    async def step_of(self, group: str, origin: Part, decided: int) -> int | None:
        """The step of this past whose batch has a group that `origin` decided on at position `decided`; None for none.

        Looks no further back than that decision, and along the runs that follow `origin`.
        """
        async for part in self.past.parts():
            last = await self.newest_sealed(part)
            if part is origin:
                return await self._search(part, group, await self._first_after(part, last, decided), last)
            if part.follows and (found := await self._search(part, group, part.first_step, last)) is not None:
                return found
        raise RunNotFound(f"run {origin.run} is none of the runs that {self.past.own.run} comes from")

    async def _first_after(self, part: Part, last: int, position: int) -> int:
        """The first of its batches behind a position of its log: batches stand there in the order of their steps."""
        low, high = part.first_step, last
        while high - low > AT_ONCE:
            middle = (low + high) // 2
            found = await part.last_of_each([(type_of(BatchSealed), str(middle))])
            here = next(iter(found.values()), None)
            if here is not None and here.position < position:
                low = middle + 1
            else:
                high = middle
        return low

    async def _search(self, part: Part, group: str, first: int, last: int) -> int | None:
        for begin in range(first, last + 1, AT_ONCE):
            steps = range(begin, min(begin + AT_ONCE, last + 1))
            found = await part.last_of_each([(type_of(BatchSealed), str(step)) for step in steps])
            for recorded in found.values():
                event = recorded.envelope.event
                if isinstance(event, BatchSealed) and group in event.groups:
                    return event.step
        return None
