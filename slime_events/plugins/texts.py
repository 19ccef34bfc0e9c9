"""`Texts`: what completed samples of open groups say, and what users' code left on them, for filters that look at it. A
fold of the log beside the state.

No state and no snapshot holds a text: they would be most of its bytes, and are needed once, by a filter, if there is
one. A process that begins with a snapshot reads those of the open groups from the log again.
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from slime_events.core.state.group import GroupPhase, GroupState, Left, SampleState
from slime_events.core.state.run import RunState
from slime_events.plugins.sample_view import graded_metadata
from storage.log import Readable

LEAVING = (GroupRejected, StepCommitted, EvalCompleted)
"""Events by which groups leave the state."""
AT_ONCE = 16
"""Completed rollouts that are read in one question: each may have megabytes of tokens."""


class Said(NamedTuple):
    """response: of one sample. prompt: the text of a prompt of its own; empty where it has the group's. left: on the
    sample; None where it is nothing.
    """

    response: str
    prompt: str
    left: Left | None = None

    @classmethod
    def of(cls, event: RolloutCompleted) -> "Said":
        """What a completed rollout says."""
        versions = tuple(span.version for span in event.spans) if len(event.spans) > 1 else ()
        is_bare = not (event.metadata or event.attributes or versions)
        left = None if is_bare else Left(event.metadata, event.attributes, versions=versions)
        return cls(event.text, event.prompt_text, left)

    def graded(self, event: RewardAssigned) -> "Said":
        """With the metadata that its grader left."""
        metadata = graded_metadata(event)
        return self._replace(left=replace(self.left or Left(), graded=metadata)) if metadata else self


class Texts:
    """Of training groups without a verdict. until_trained: until they leave the state, since the rewards of a batch are
    made of them. of_all: of every group until it leaves the state, and nothing but texts, as states held them once:
    their digests cover them.
    """

    def __init__(self, *, of_all: bool = False, until_trained: bool = False) -> None:
        self._of_all, self._stays = of_all, of_all or until_trained
        self._said: dict[str, dict[str, Said]] = {}
        self._asked: dict[str, PromptSubmitted] = {}

    def apply(self, event: Event, state: RunState) -> None:
        """Fold one event in, after it was folded into the state."""
        if isinstance(event, RolloutCompleted):
            group = state.groups.get(event.group)
            if group is not None and (self._of_all or group.purpose is Purpose.TRAIN):
                self._said.setdefault(event.group, {})[event.sample] = Said.of(event)
        elif isinstance(event, PromptSubmitted):
            if event.purpose is Purpose.TRAIN and _says_more(event) and not self._of_all:
                self._asked[event.group] = event
        elif isinstance(event, RewardAssigned):
            said = self._said.get(event.group, {})
            if event.sample in said:
                said[event.sample] = said[event.sample].graded(event)
        elif isinstance(event, GroupAccepted | GroupRejected) and not self._stays:
            self._said.pop(event.group, None)
            self._asked.pop(event.group, None)
        elif isinstance(event, LEAVING):
            self._said = {name: said for name, said in self._said.items() if name in state.groups}
            self._asked = {name: asked for name, asked in self._asked.items() if name in state.groups}

    async def restore(self, log: Readable, state: RunState) -> None:
        """Read what was folded into a state that was not folded here."""
        self._said, self._asked = {}, {}
        groups = list(_open(state, accepted=self._stays))
        samples = [name for group in groups for name, sample in group.samples.items() if sample.stop is not None]
        prompts = [group.group for group in groups]
        entities = {"prompt.submitted": prompts, "rollout.completed": samples, "reward.assigned": samples}
        for kind, names in entities.items():
            for begin in range(0, len(names), AT_ONCE):
                subjects = [of_type(log.run, kind, name) for name in names[begin : begin + AT_ONCE]]
                for recorded in (await log.last_of_each(subjects)).values():
                    self.apply(recorded.envelope.event, state)

    def told(self, group: GroupState) -> GroupState:
        """The group with the texts of its samples, and what was left on them."""
        said = self._said.get(group.group, {})
        samples = {
            name: self._told(sample, said[name]) if name in said else sample for name, sample in group.samples.items()
        }
        return replace(group, samples=samples, asked=self._asked.get(group.group, UNSET))

    def _told(self, sample: SampleState, said: Said) -> SampleState:
        left = UNSET if said.left is None or self._of_all else said.left
        return replace(sample, text=said.response, prompt_text=said.prompt or UNSET, left=left)


def _says_more(asked: PromptSubmitted) -> bool:
    """Whether a sample of it has more than the state holds: tools, messages in the place of a text, paths, ..."""
    own = asked.generate_function_path or asked.custom_rm_path or asked.attributes
    return bool(asked.tools or asked.chat or own)


def _open(state: RunState, *, accepted: bool) -> Iterator[GroupState]:
    phases = [GroupPhase.SUBMITTED, GroupPhase.REQUESTED, *([GroupPhase.ACCEPTED] if accepted else ())]
    return (group for group in state.groups.values() if group.purpose is Purpose.TRAIN and group.phase in phases)
