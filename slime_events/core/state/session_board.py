"""`SessionBoard`: which rollouts wait for an agent, and which sessions are open, folded from a run's log."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.event import Event, type_of
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of
from schemas.rollouts import RolloutRequested
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
"""The event types that a board is made of, beside the run's own."""


@dataclass(slots=True)
class SessionBoard:
    """wanted: requests that no session was opened for, oldest first, by sample. open: the sessions that are not sealed,
    by sample; opened_at: when each was, ns of Unix time. given: what was opened, by source and its key. undecided:
    groups that agents make. published: the newest weights. over: whether the run has ended; interrupted: by its user,
    who may resume it. engines: those that run weights; ready_at: since when there is one, ns of Unix time, None while
    there is none. position: up to where the log is folded in.
    """

    wanted: dict[str, RolloutRequested] = field(default_factory=dict)
    open: dict[str, SessionOpened] = field(default_factory=dict)
    opened_at: dict[str, int] = field(default_factory=dict)
    given: dict[tuple[str, str], SessionOpened] = field(default_factory=dict)
    undecided: set[str] = field(default_factory=set)
    published: int = -1
    over: bool = False
    interrupted: bool = False
    engines: set[str] = field(default_factory=set)
    ready_at: int | None = None
    position: int = 0

    def apply(self, recorded: Recorded) -> None:
        """Fold the next event in."""
        event = recorded.envelope.event
        self.position = max(self.position, recorded.position)
        match event:
            case RolloutRequested() if event.agents:
                self.wanted[event.sample] = event
                self.undecided.add(event.group)
            case SessionOpened():
                if event.sample in self.wanted:
                    del self.wanted[event.sample]
                    self.open[event.sample], self.opened_at[event.sample] = event, recorded.envelope.at
                self.given[(event.sender, event.key)] = event
            case SessionSealed():
                self.open.pop(event.sample, None)
                self.opened_at.pop(event.sample, None)
            case GroupAccepted() | GroupRejected():
                self.undecided.discard(event.group)
                for sample in [sample for sample in self.wanted if group_of(sample) == event.group]:
                    del self.wanted[sample]
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
        """The oldest request that waits for an agent, of this group or of any."""
        return next((one for one in self.wanted.values() if group is None or one.group == group), None)

    def is_wanted(self, sample: str) -> bool:
        """Whether anything can still come of it: its group is not decided."""
        return group_of(sample) in self.undecided


def subjects_of_board(run: str) -> Sequence[str]:
    """What `read_board` reads, one after the other: a server finds the events of one type without the others."""
    return [about(run, "run", "run"), *(of_type(run, type_of(kind)) for kind in FOLDED)]


async def read_board(log: Readable, board: SessionBoard) -> None:
    """Fold in what has come since."""
    end = await log.end()
    if end <= board.position:
        return
    found: list[Recorded] = []
    for subject in subjects_of_board(log.run):
        async for recorded in log.read(board.position + 1, subject):
            if recorded.position <= end:
                found.append(recorded)
    for recorded in sorted(found, key=lambda one: one.position):
        board.apply(recorded)
    board.position = end
