"""`Lookup`: the record of one sample, group, step or version, fetched by its subjects without reading the rest of the
log.

Subjects are `slime.<run>.<type>.<entity>` (schemas/subjects.py), so a live JetStream log, a memory log and an archive
find the events about one entity in their indexes. Only an abbreviated or misspelt id and a producer's key must be
searched for among the ids of a run, which reads all events of one type.
"""

import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar, cast

from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.doc import doc
from schemas.errors import InvalidSubject, RunNotFound
from schemas.evals import EvalCompleted
from schemas.event import Event, type_of
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import evaluation_id, group_of, is_inbox_group, requested_sample, sample_id, session_of, sibling_id
from schemas.prompts import PromptOffered, PromptRejected, PromptSubmitted
from schemas.registry import BY_TYPE
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutRequested, RolloutSuspended
from schemas.runs import RunFailed, RunFinished, RunResumed, RunStarted
from schemas.sessions import SessionOpened, SessionSealed
from schemas.steps import StepCommitted
from schemas.subjects import check_token, of_type
from schemas.trainers import TrainerRestored
from schemas.turns import TurnBegun, TurnRecorded
from schemas.weights import WeightsActivated, WeightsPublished, WeightsStored
from slime_events.core.config.per_source import NATS
from slime_events.model.records import Group, Run, Sample, Step, Version, fold_run
from storage.log import Readable, Recorded

SAMPLE_EVENTS = (RolloutRequested, RolloutCompleted, RewardAssigned, RewardFailed)
ALL_SAMPLE_EVENTS = (*SAMPLE_EVENTS, RolloutProgressed, RolloutSuspended, RolloutFailed, TurnRecorded)
SESSION_EVENTS = (SessionOpened, TurnBegun, SessionSealed)
RUN_EVENTS = (RunStarted, RunResumed, RunFinished, RunFailed)
GROUP_EVENTS = (PromptSubmitted, GroupAccepted, GroupRejected)
STEP_EVENTS = (BatchSealed, StepCommitted)
RECURRING: tuple[type[Event], ...] = (
    *(RunResumed, RunFinished, RunFailed, WeightsActivated, TrainerRestored),
    *(RolloutRequested, RolloutProgressed, RolloutSuspended, RolloutFailed, TurnBegun, TurnRecorded),
    *(SessionOpened, SessionSealed),
)
"""Event types of which one entity may have several."""
BY_ATTEMPT = (RolloutRequested, RolloutSuspended, RolloutFailed, SessionOpened, SessionSealed)
"""Event types with one event per attempt: if the last one belongs to the first attempt, it is the only one."""
AT_ONCE = 32
"""Subjects, or batches, per request if their number is unknown."""

EventKey = tuple[str, str]
"""Type and entity of an event."""
E = TypeVar("E", bound=Event)


def event_keys(classes: Iterable[type[Event]], entities: Iterable[object]) -> list[EventKey]:
    """Return a key for every class and entity, class by class: a fold needs the events in this order."""
    names = list(dict.fromkeys(map(str, entities)))
    return [(type_of(cls), name) for cls in classes for name in names]


def record_events(
    *,
    samples: Iterable[str] = (),
    groups: Iterable[str] = (),
    steps: Iterable[int] = (),
    versions: Iterable[int] = (),
) -> list[EventKey]:
    """Return the keys of the last events that make the records of these samples, groups, steps and versions."""
    steps, versions = list(steps), list(versions)
    names = [name for sample in samples for name in (requested_sample(sample), sample)]
    made_by = [version - 1 for version in versions]
    return [
        *event_keys(GROUP_EVENTS, groups),
        *event_keys(SAMPLE_EVENTS, names),
        *event_keys(STEP_EVENTS, steps),
        *event_keys((StepCommitted,), made_by),
        *event_keys((WeightsPublished, WeightsStored), versions),
    ]


@dataclass(frozen=True, eq=False)
class LogPart:
    """A log up to position `end`."""

    log: Annotated[Readable, doc("the log")]
    end: Annotated[int, doc("its last position")] = sys.maxsize

    async def last_of_each(self, keys: Sequence[EventKey]) -> dict[EventKey, Recorded]:
        """Return the last event for each key that has any, in the order of `keys`."""
        subjects = {of_type(self.log.run, kind, entity): (kind, entity) for kind, entity in keys}
        last = await self.log.last_of_each(list(subjects))
        return {
            key: event
            for subject, key in subjects.items()
            if (event := last.get(subject)) is not None and event.position <= self.end
        }

    async def last_events(self, **of: Iterable[object]) -> list[Recorded]:
        """Return the events of `record_events`."""
        return list((await self.last_of_each(record_events(**of))).values())  # type: ignore[arg-type]

    async def records(self, **of: Iterable[object]) -> Run:
        """Return the records that `last_events` fold to."""
        return fold_run(self.log.run, await self.last_events(**of))

    async def newest(self, cls: type[E]) -> E | None:
        """Return the last event of one type in the whole log."""
        last = await self.log.last(of_type(self.log.run, type_of(cls)))
        return None if last is None else cast(E, last.envelope.event)

    async def events(self, cls: type[E], entity: str = "*") -> AsyncIterator[E]:
        """Yield all events of one type, as `of_type` does."""
        async for recorded in self.of_type(cls, entity):
            yield cast(E, recorded.envelope.event)

    async def of_type(self, cls: type[Event], entity: str = "*", *, start: int = 1) -> AsyncIterator[Recorded]:
        """Yield all events of one type, or only those about one entity, in order, from a position on."""
        async for recorded in self.log.read(start, of_type(self.log.run, type_of(cls), entity)):
            if recorded.position > self.end:
                return
            yield recorded

    async def about(self, classes: Sequence[type[Event]], entities: Iterable[str]) -> list[Recorded]:
        """Return all events of these types about these entities, in order.

        Subjects are complete: for a subject with wildcards a server searches a whole long log.
        """
        events: list[Recorded] = []
        for (event_type, entity), last in (await self.last_of_each(event_keys(classes, entities))).items():
            cls, event = BY_TYPE[event_type], last.envelope.event
            recurs = cls in RECURRING and not (isinstance(event, BY_ATTEMPT) and event.attempt == 0)
            events += [recorded async for recorded in self.of_type(cls, entity)] if recurs else [last]
        return sorted(events, key=lambda recorded: recorded.position)

    async def step_of(self, group: str, first: int, last: int, decided: int = 0) -> int | None:
        """Return the step from `first` to `last` whose batch has the group. decided: position of the verdict on the
        group.
        """
        for begin in range(await self._step_before(decided, first, last), last + 1, AT_ONCE):
            steps = range(begin, min(begin + AT_ONCE, last + 1))
            for step, record in (await self._batches(steps)).items():
                if group in record.sealed.event.groups:
                    return step
        return None

    async def _step_before(self, position: int, first: int, last: int) -> int:
        """Return a step shortly before the first step, from `first` to `last`, whose batch is behind a position.

        Batches are sealed at a roughly even pace, so two or three probes are enough in a long log. A probe costs a
        server 5 ms if it does not have that part in memory.
        """
        begin, end, margin = 0, (await self._sealed_at([last])).get(last, position), AT_ONCE // 4
        while position and last - first > AT_ONCE // 2:
            even = first + (last - first) * (position - begin) // max(1, end - begin)
            steps = [min(max(even + by, first), last - 1) for by in (-margin, margin)]
            sealed_at = await self._sealed_at(steps)
            for step in steps:
                if sealed_at.get(step, end) < position:
                    first, begin = step + 1, sealed_at[step]
                elif step < last:
                    last, end = step, sealed_at.get(step, end)
            margin = min(2 * margin, (last - first) // 4)
        return first

    async def _sealed_at(self, steps: Iterable[int]) -> dict[int, int]:
        return {step: record.sealed.position for step, record in (await self._batches(steps)).items()}

    async def _batches(self, steps: Iterable[int]) -> dict[int, Step]:
        """Return the sealed steps among these, without the result of training."""
        return fold_run(self.log.run, (await self.last_of_each(event_keys((BatchSealed,), steps))).values()).steps


class Lookup:
    """Records of one run's log. `run` holds the records that were fetched so far, and those that belong to them.
    `events` holds all events of the last sample and of its rollout.

    Every method raises RunNotFound if the record does not exist. The message lists the names or numbers that do.
    """

    def __init__(self, log: Readable) -> None:
        self.run, self.events = Run(log.run), list[Recorded]()
        self._part, self._folded = LogPart(log), set[int]()

    async def sample(self, name: str) -> Sample:
        """Return a sample with all its events, its group, and the step that trained it. name: an id, a unique prefix of
        an id, or the name of a session that was opened to make the sample.
        """
        if (session := session_of(name)) is not None and await self._has(SessionOpened, session[0]):
            name = session[0]
        is_id = await self._has(RolloutRequested, name) or await self._has(RolloutCompleted, name)
        sample = name if is_id else await self._find(name, (RolloutRequested, RolloutCompleted), "sample")
        await self.verdict(group_of(sample))
        about = requested_sample(sample), sample
        self.events = await self._part.about((*ALL_SAMPLE_EVENTS, *SESSION_EVENTS), about)
        self._fold(self.events)
        return self.run.samples[sample]

    async def group(self, name: str) -> Group:
        """Return a group with all its samples. name: as for `group_id`."""
        group = await self.group_id(name)
        record = await self.verdict(group)
        self._fold(await self._part.about(ALL_SAMPLE_EVENTS, await self._members(group)))
        return record

    async def verdict(self, name: str) -> Group:
        """Return a group from its own events, without samples, and fold the step whose batch it is in. The group is
        empty if it is unknown.
        """
        self._fold(await self._part.about(GROUP_EVENTS, [name]))
        group = self.run.group(name)
        last = await self._part.newest(BatchSealed)
        decided = group.verdict.position if group.verdict is not None else 0
        # A run that is trained on another's rollouts has neither their prompts nor verdicts on them.
        if last is not None and (decided or group.prompt is None):
            await self.lifetime()
            first, newest = self.run.branched.version if self.run.branched else 0, last.step
            step = await self._part.step_of(name, first, newest, decided)
            self._fold(await self._part.last_events(steps=[step] if step is not None else []))
        return group

    async def step(self, step: int) -> Step:
        """Return a sealed step with the last events of its groups and samples."""
        self._fold(await self._part.last_events(steps=[step]))
        if step not in self.run.steps:
            raise await self._no_number("step", step, BatchSealed)
        batch = self.run.steps[step].sealed.event
        self._fold(await self._part.last_events(groups=batch.groups, samples=batch.samples))
        return self.run.steps[step]

    async def version(self, version: int) -> Version:
        """Return a weight version with its engines, evaluations, checkpoint and trainers, and where the run begins."""
        self._fold(await self._part.last_events(versions=[version]))
        if version not in self.run.versions:
            raise await self._no_number("weight version", version, WeightsPublished)
        self._fold(await self._part.about((CheckpointSaved, TrainerRestored), [str(version)]))
        published = self.run.versions[version].published
        start, begin, end = published.position if published else 1, f"{version}-", evaluation_id("", version)
        for cls in (WeightsActivated, EvalCompleted):  # a version is only a part of their entities
            names = [name for name in await self._entities(cls, start) if name.startswith(begin) or name.endswith(end)]
            events = await self._part.about((cls,), names)
            self._fold(recorded for recorded in events if recorded.envelope.event.version == version)  # type: ignore[attr-defined]
        await self.lifetime()
        return self.run.versions[version]

    async def lifetime(self) -> None:
        """Fold the run's starts, resumptions and ends: its settings."""
        if not self.run.lifetime:
            self._fold(await self._part.about(RUN_EVENTS, ["run"]))

    async def group_id(self, name: str) -> str:
        """Return the id of a group. name: the id, a unique prefix of the id, or the key that a producer gave to its
        prompt.
        """
        if await self._has(PromptSubmitted, name):
            return name
        return await self._of_key(name) or await self._find(name, (PromptSubmitted, BatchSealed), "group")

    async def _of_key(self, key: str) -> str | None:
        """Return the group of a prompt from outside. Raises RunNotFound if several sources have used the key."""
        outside = [name for name in await self._entities(PromptSubmitted) if is_inbox_group(name)]
        last = await self._part.last_of_each(event_keys((PromptSubmitted,), outside))
        prompts = (cast(PromptSubmitted, recorded.envelope.event) for recorded in last.values())
        senders = {prompt.group: prompt.source.sender or NATS for prompt in prompts if prompt.source.key == key}
        if len(senders) > 1:
            which = ", ".join(f"{group} of {sender}" for group, sender in senders.items())
            raise RunNotFound(
                f"{len(senders)} sources of run {self.run.run} have used the key {key!r}. Give a group's id: {which}"
            )
        if not senders:
            await self._check_taken_in(key)
        return next(iter(senders), None)

    async def _check_taken_in(self, name: str) -> None:
        """Raises RunNotFound with the fate of a prompt that was offered and not taken in. name: its group's id, or its
        key.
        """
        last = await self._part.last_of_each(event_keys((PromptOffered,), await self._entities(PromptOffered)))
        offers = (cast(PromptOffered, recorded.envelope.event) for recorded in last.values())
        offer = next((offer for offer in offers if name in (offer.group, offer.key)), None)
        if offer is None:
            return
        refused = await self._part.last_of_each(event_keys((PromptRejected,), [offer.group]))
        reasons = [
            f"was refused: {cast(PromptRejected, rejected.envelope.event).reason}" for rejected in refused.values()
        ]
        waits = "waits in the log until the run is resumed"
        raise RunNotFound(f"prompt {offer.group} of run {self.run.run}, key {offer.key!r}, {(*reasons, waits)[0]}")

    def _fold(self, events: Iterable[Recorded]) -> None:
        for recorded in events:
            if recorded.position not in self._folded:
                self._folded.add(recorded.position)
                self.run.apply(recorded)

    async def _members(self, group: str) -> list[str]:
        """Return the ids of all samples of a group, in no order."""
        members: list[str] = []
        for first in itertools.count(0, AT_ONCE):
            names = [sample_id(group, index) for index in range(first, first + AT_ONCE)]
            members += await self._existing(RolloutRequested, names)
            if len(members) < first + AT_ONCE:
                break
        number, rollouts = 1, members
        while rollouts:  # further samples of one rollout
            siblings = await self._existing(RolloutCompleted, [sibling_id(name, number) for name in rollouts])
            rollouts = [requested_sample(name) for name in siblings]
            members, number = [*members, *siblings], number + 1
        return members

    async def _existing(self, cls: type[Event], names: Sequence[str]) -> list[str]:
        return [entity for _, entity in await self._part.last_of_each(event_keys((cls,), names))]

    async def _has(self, cls: type[Event], entity: str) -> bool:
        with contextlib.suppress(InvalidSubject):
            return bool(await self._existing(cls, [check_token(entity, "id")]))
        return False

    async def _find(self, name: str, classes: tuple[type[Event], ...], what: str) -> str:
        """Return the run's only id with this prefix, among entities of events of these types and groups of batches."""
        from slime_events.core.config.nearest import nearest  # only needed for an unknown name

        events = [event for cls in classes async for event in self._part.events(cls)]
        ids = dict.fromkeys(id_ for event in events for id_ in getattr(event, "groups", (event.entity(),)))
        begun = [name] if name in ids else [id_ for id_ in ids if id_.startswith(name)]
        if len(begun) == 1:
            return begun[0]
        what = f"{what} of run {self.run.run}"
        if begun:
            more = ", ..." if len(begun) > 5 else ""
            raise RunNotFound(
                f"{len(begun)} ids begin with {name!r}. Give more of the id of one {what}: {', '.join(begun[:5])}{more}"
            )
        near = nearest(name, ids, 5) or tuple(ids)[:5]
        raise RunNotFound(f"no {what} is called {name!r}. {'Nearest: ' + ', '.join(near) if near else 'There is none'}")

    async def _entities(self, cls: type[Event], start: int = 1) -> list[str]:
        subjects = await self._part.log.subjects(of_type(self.run.run, type_of(cls)), start)
        return [subject.rpartition(".")[2] for subject in subjects]

    async def _no_number(self, what: str, number: int, cls: type[Event]) -> RunNotFound:
        numbers = [int(entity) for entity in await self._existing(cls, await self._entities(cls))]
        there = f"there are {min(numbers)} to {max(numbers)}" if numbers else "there is none yet"
        return RunNotFound(f"run {self.run.run} has no {what} {number}: {there}")
