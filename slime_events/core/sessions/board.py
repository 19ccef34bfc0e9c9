"""`SessionBoard`: the rollouts that wait for an agent and the open sessions, folded from a run's log."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from schemas.doc import doc
from schemas.event import Event, type_of
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of
from schemas.rollouts import Maker, RolloutRequested
from schemas.runs import FinishReason, RunFailed, RunFinished, RunResumed
from schemas.sessions import SessionOpened, SessionSealed
from schemas.subjects import about, of_type
from schemas.weights import WeightsActivated, WeightsPublished
from schemas.workers import WorkerLost
from storage.log import Readable, Recorded

FOLDED: tuple[type[Event], ...] = (
    *(RolloutRequested, SessionOpened, SessionSealed, GroupAccepted, GroupRejected, WeightsPublished),
    *(WeightsActivated, WorkerLost),
)
"""The event types that a board is folded from, besides those of the run itself."""


@dataclass(slots=True)
class SessionBoard:
    """Sessions of a run, and what they depend on."""

    waiting: Annotated[dict[str, RolloutRequested], doc("requests without a session, oldest first, by sample")] = field(
        default_factory=dict
    )
    open: Annotated[dict[str, SessionOpened], doc("sessions that are not sealed, by sample")] = field(
        default_factory=dict
    )
    opened_at: Annotated[dict[str, int], doc("sample to when its session was opened, Unix nanoseconds")] = field(
        default_factory=dict
    )
    by_key: Annotated[
        dict[tuple[str, str], SessionOpened], doc("sessions that were opened, by source and the source's key")
    ] = field(default_factory=dict)
    undecided: Annotated[set[str], doc("open groups that agents make")] = field(default_factory=set)
    published: Annotated[int, doc("newest published weights; -1: none")] = -1
    over: Annotated[bool, doc("the run has ended")] = False
    interrupted: Annotated[bool, doc("the user ended the run, and may resume it")] = False
    engines: Annotated[set[str], doc("engines that have loaded weights")] = field(default_factory=set)
    ready_at: Annotated[int | None, doc("since when there is an engine, Unix nanoseconds; None: there is none")] = None
    position: Annotated[int, doc("log position up to which events are folded in")] = 0

    def apply(self, recorded: Recorded) -> None:
        """Fold the next event in."""
        event = recorded.envelope.event
        self.position = max(self.position, recorded.position)
        match event:
            case RolloutRequested() if event.maker is Maker.AGENT:
                self.waiting[event.sample] = event
                self.undecided.add(event.group)
            case SessionOpened():
                if event.sample in self.waiting:
                    del self.waiting[event.sample]
                    self.open[event.sample], self.opened_at[event.sample] = event, recorded.envelope.at
                self.by_key[(event.sender, event.key)] = event
            case SessionSealed():
                self.open.pop(event.sample, None)
                self.opened_at.pop(event.sample, None)
            case GroupAccepted() | GroupRejected():
                self.undecided.discard(event.group)
                for sample in [sample for sample in self.waiting if group_of(sample) == event.group]:
                    del self.waiting[sample]
            case WeightsPublished():
                self.published = event.version
            case WeightsActivated():
                self.engines.add(event.engine)
                self.ready_at = recorded.envelope.at if self.ready_at is None else self.ready_at
            case WorkerLost():
                self.engines.discard(event.worker)
                self.ready_at = self.ready_at if self.engines else None
            case RunFinished() | RunFailed():
                self.over = True
                self.interrupted = isinstance(event, RunFinished) and event.reason is FinishReason.INTERRUPTED
            case RunResumed():
                self.over = self.interrupted = False
                self.engines.clear()
                self.ready_at = None

    def next(self, group: str | None = None) -> RolloutRequested | None:
        """Return the oldest request that waits for an agent, of this group or of any."""
        return next((request for request in self.waiting.values() if group is None or request.group == group), None)

    def is_undecided(self, sample: str) -> bool:
        """Return whether a sample's group is undecided, so that the sample can still be used."""
        return group_of(sample) in self.undecided


def subjects_of_board(run: str) -> Sequence[str]:
    """Return the subjects that `read_board` reads one by one: a server finds the events of a single type quickly."""
    return [about(run, "run", "run"), *(of_type(run, type_of(kind)) for kind in FOLDED)]


async def read_board(log: Readable, board: SessionBoard) -> None:
    """Fold in the new events of the log."""
    end = await log.end()
    if end <= board.position:
        return
    new: list[Recorded] = []
    for subject in subjects_of_board(log.run):
        async for recorded in log.read(board.position + 1, subject):
            if recorded.position <= end:
                new.append(recorded)
    for recorded in sorted(new, key=lambda recorded: recorded.position):
        board.apply(recorded)
    board.position = end
