"""`Texts`: texts of completed samples in open groups, and the values that user code left on them, for filters that need
them. A fold of the log beside the state.

States and snapshots hold no texts: texts would be most of their bytes, and only a filter needs them, once. A process
that begins with a snapshot reads the texts of open groups from the log again.
"""

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from schemas.doc import doc
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
AT_ONCE = 16  # completed rollouts per query: each may have megabytes of tokens


class SampleTexts(NamedTuple):
    """Texts of one sample."""

    response: str
    prompt: Annotated[str, doc("Text of the sample's own prompt; empty if it has the group's.")]
    left: Annotated[Left | None, doc("Values that user code left on the sample; None without any.")] = None

    @classmethod
    def of(cls, event: RolloutCompleted) -> "SampleTexts":
        """Return the texts of a completed rollout."""
        versions = tuple(span.version for span in event.spans) if len(event.spans) > 1 else ()
        is_bare = not (event.metadata or event.attributes or versions)
        left = None if is_bare else Left(event.metadata, event.attributes, versions=versions)
        return cls(event.text, event.prompt_text, left)

    def graded(self, event: RewardAssigned) -> "SampleTexts":
        """Return a copy with the metadata that the grader left."""
        metadata = graded_metadata(event)
        return self._replace(left=replace(self.left or Left(), graded=metadata)) if metadata else self


class Texts:
    """Texts of training groups without a verdict.

    With `until_trained` a group stays until it leaves the state, since the batch's rewards are computed from its texts.
    With `of_all` every group stays until it leaves the state, and only the texts are added: earlier states held exactly
    these, and recorded digests cover them.
    """

    def __init__(self, *, of_all: bool = False, until_trained: bool = False) -> None:
        self._of_all, self._stays = of_all, of_all or until_trained
        self._texts: dict[str, dict[str, SampleTexts]] = {}
        self._prompts: dict[str, PromptSubmitted] = {}

    def apply(self, event: Event, state: RunState) -> None:
        """Fold one event in, after it was folded into the state."""
        if isinstance(event, RolloutCompleted):
            group = state.groups.get(event.group)
            if group is not None and (self._of_all or group.purpose is Purpose.TRAIN):
                self._texts.setdefault(event.group, {})[event.sample] = SampleTexts.of(event)
        elif isinstance(event, PromptSubmitted):
            if event.purpose is Purpose.TRAIN and _has_more(event) and not self._of_all:
                self._prompts[event.group] = event
        elif isinstance(event, RewardAssigned):
            texts = self._texts.get(event.group, {})
            if event.sample in texts:
                texts[event.sample] = texts[event.sample].graded(event)
        elif isinstance(event, GroupAccepted | GroupRejected) and not self._stays:
            self._texts.pop(event.group, None)
            self._prompts.pop(event.group, None)
        elif isinstance(event, LEAVING):
            self._texts = {name: texts for name, texts in self._texts.items() if name in state.groups}
            self._prompts = {name: prompt for name, prompt in self._prompts.items() if name in state.groups}

    async def restore(self, log: Readable, state: RunState) -> None:
        """Read from the log the texts of a state that was not folded in this process."""
        self._texts, self._prompts = {}, {}
        groups = list(_open(state, accepted=self._stays))
        samples = [name for group in groups for name, sample in group.samples.items() if sample.stop is not None]
        prompts = [group.group for group in groups]
        entities = {"prompt.submitted": prompts, "rollout.completed": samples, "reward.assigned": samples}
        for kind, names in entities.items():
            for begin in range(0, len(names), AT_ONCE):
                subjects = [of_type(log.run, kind, name) for name in names[begin : begin + AT_ONCE]]
                for recorded in (await log.last_of_each(subjects)).values():
                    self.apply(recorded.envelope.event, state)

    def with_texts(self, group: GroupState) -> GroupState:
        """Return the group with the texts of its samples, and the values left on them."""
        texts = self._texts.get(group.group, {})
        samples = {
            name: self._with(sample, texts[name]) if name in texts else sample for name, sample in group.samples.items()
        }
        return replace(group, samples=samples, asked=self._prompts.get(group.group, UNSET))

    def _with(self, sample: SampleState, texts: SampleTexts) -> SampleState:
        left = UNSET if texts.left is None or self._of_all else texts.left
        return replace(sample, text=texts.response, prompt_text=texts.prompt or UNSET, left=left)


def _has_more(prompt: PromptSubmitted) -> bool:
    """Return whether the prompt has values that the state does not hold: tools, messages, paths, attributes."""
    own = prompt.generate_function_path or prompt.custom_rm_path or prompt.attributes
    return bool(prompt.tools or prompt.chat or own)


def _open(state: RunState, *, accepted: bool) -> Iterator[GroupState]:
    phases = [GroupPhase.SUBMITTED, GroupPhase.REQUESTED, *([GroupPhase.ACCEPTED] if accepted else ())]
    return (group for group in state.groups.values() if group.purpose is Purpose.TRAIN and group.phase in phases)
