"""`Collector`: decided groups, batches and evaluations in the log's order, as records of the read model.

A group leaves the memory as soon as it is decided, so that a long run takes no more of it. Events are folded as they
are, and those that rescoring does not need are not decoded.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from schemas.batches import BatchSealed
from schemas.codec import WholeEnvelope, decode_whole
from schemas.envelope import Envelope
from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose, type_of
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutProgressed, RolloutRequested
from schemas.sessions import SessionSealed
from schemas.turns import TurnRecorded
from slime_events.analysis.model.records import Entry, Group, Run, Sample
from slime_events.core.credit import SealedSessions
from slime_events.core.trajectory import FOLDED, Fetch, Trajectories

Item = Group | BatchSealed | EvalCompleted
NEEDED: dict[str, type[Event]] = {
    type_of(kind): kind
    for kind in (
        PromptSubmitted, RolloutRequested, RolloutCompleted, RewardAssigned, RewardFailed, GroupAccepted, GroupRejected,
        BatchSealed, EvalCompleted,
    )
}  # fmt: skip
"""By the tag in an event's subject."""


OF_SESSIONS = frozenset({type_of(TurnRecorded), type_of(SessionSealed)})


class Collector:
    """Groups have their completed samples alone, in order. graders: name and source digest of the recorded graders.

    fetch: for graders that see tokens. trajectories: then those of the groups so far, until they are forgotten.
    recredit: sessions are needed too, which whoever takes a group forgets.
    """

    def __init__(self, run: str, fetch: Fetch | None = None, *, recredit: bool = False) -> None:
        self.graders: Counter[tuple[str, str]] = Counter()
        self.trajectories = None if fetch is None else Trajectories(fetch)
        self.sessions = SealedSessions() if recredit else None
        self._needed = NEEDED if fetch is None else NEEDED | {type_of(RolloutProgressed): RolloutProgressed}
        self._run = Run(run)
        self._evaluations: dict[tuple[str, int], list[str]] = {}

    def apply(self, subject: str, data: bytes) -> Iterable[Item]:
        """Take one stored event in; the items that are complete by it."""
        tag, _, entity = subject.split(".", 2)[2].rpartition(".")
        kind = self._needed.get(tag)
        if self.trajectories is not None and kind in FOLDED:
            self.trajectories.apply(decode_whole(data).event, 0)
        if kind is RolloutRequested:  # the subject has all that is needed: whose group it is
            self._requested(group_of(entity))
        elif kind is RewardAssigned or kind is RolloutCompleted:  # two of three that are decoded: no iterator for them
            self._of_sample(decode_whole(data))
        elif self.sessions is not None and tag in OF_SESSIONS:
            self.sessions.apply(decode_whole(data).event)
        elif kind is not None and kind is not RolloutProgressed:
            return self._applied(decode_whole(data))
        return ()

    def _of_sample(self, envelope: Envelope | WholeEnvelope) -> None:
        """A completion or a reward of a group that is open: what came later, its group was decided without."""
        event, run = envelope.event, self._run
        if isinstance(event, RewardAssigned):
            sample = run.samples.get(event.sample)
            if sample is not None:
                self.graders[event.grader, event.grader_digest] += 1
                sample.reward = Entry(event, 0, envelope.at, envelope.producer, run.run)
        elif event.group in run.groups:
            run.add(Entry(event, 0, envelope.at, envelope.producer, run.run))

    def _applied(self, envelope: Envelope | WholeEnvelope) -> Iterator[Item]:
        event, run = envelope.event, self._run
        match event:
            case BatchSealed():
                yield event
                return
            case EvalCompleted():
                for name in self._evaluations.pop((event.dataset, event.version), ()):
                    yield from self._taken(name)
                yield event
                return
            case PromptSubmitted() if event.purpose is Purpose.EVAL:
                self._evaluations.setdefault((event.dataset, event.version or 0), []).append(event.group)
        run.add(Entry(event, 0, envelope.at, envelope.producer, run.run))
        if isinstance(event, GroupAccepted | GroupRejected):
            yield from self._taken(event.group)

    @property
    def undecided(self) -> int:
        """Training groups without a verdict so far."""
        return sum(not is_evaluation(group) for group in self._run.groups.values())

    def _requested(self, name: str) -> None:
        group = self._run.groups.get(name)
        if group is not None and group.order < 0 and not is_evaluation(group):
            group.order = self._run.requested
            self._run.requested += 1

    def _taken(self, name: str) -> Iterator[Group]:
        group = self._run.forget(name)
        if group is not None and group.prompt is not None:
            group.samples = {sample.sample: sample for sample in group.members}
            yield group


def prompt_of(group: Group) -> PromptSubmitted:
    """Every collected group has one."""
    assert group.prompt is not None
    return group.prompt.event


def completed_of(sample: Sample) -> RolloutCompleted:
    """Every collected sample is completed."""
    assert sample.completed is not None
    return sample.completed.event


def is_evaluation(group: Group) -> bool:
    """Whether nothing is trained on it."""
    return prompt_of(group).purpose is Purpose.EVAL
