"""The doors of a run's inbox: each converts one kind of item (prompts, finished groups, rewards) to events."""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from actors.inbox import Doors, Taken
from schemas.doc import doc
from schemas.ids import INBOX, group_of
from schemas.inbox import PROMPTS, REWARDS, TRAJECTORIES, InboxPrompt
from schemas.outside import OutsideGroup, OutsideReward
from schemas.prompts import PromptSubmitted
from schemas.rewards import MOST_REWARD, RewardAssigned, is_reward
from schemas.subjects import of_type
from slime_events.core.config.per_source import NATS, quotas
from slime_events.core.config.reward import RewardSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.state.group import SamplePhase
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.outside_prompts import OutsidePrompts
from slime_events.loop.conductor.outside_rollouts import Limits, OutsideRollouts
from slime_events.loop.prompts.inbox_message import WrongField
from slime_events.plugins.rewards.choice import OUTSIDE, Place, choose
from slime_events.plugins.sample import Sample
from slime_events.plugins.tokenizer import load_tokenizer
from storage.log import EventLog


class Room(NamedTuple):
    """Limits on waiting prompts."""

    most: Annotated[int, doc("Limit on all waiting prompts.")]
    quotas: Annotated[Mapping[str, int], doc("Limit by source, for sources that have one.")]

    @classmethod
    def of(cls, settings: TrainSettings) -> "Room":
        """Return the limits of a run. A run that a client drives accepts no prompts."""
        most = 0 if settings.run.tinker else settings.rollout.max_waiting_prompts
        return cls(most, quotas(settings.data.source_quota))

    def left(self, state: RunState, sender: str) -> int:
        """Return how many more prompts of a sender may wait."""
        share = sender or NATS
        left = self.most - len(state.waiting) - len(state.offers)
        if (quota := self.quotas.get(share)) is None:
            return left
        return min(left, quota - len(state.index.by_share.get(share, ())))


class PromptDoor:
    """Handles prompts that the run will answer."""

    item, adds = InboxPrompt, True

    def __init__(self, prompts: OutsidePrompts) -> None:
        self._prompts = prompts

    async def events(self, items: Sequence[InboxPrompt], sender: str, state: RunState) -> list[Taken | WrongField]:
        results = self._prompts.submitted_all(items, sender)
        return [result if isinstance(result, WrongField) else (result.group, [result]) for result in results]


class TrajectoryDoor:
    """Handles finished groups, whose rollouts were made outside."""

    item, adds = OutsideGroup, True

    def __init__(self, rollouts: OutsideRollouts) -> None:
        self._rollouts = rollouts

    async def events(self, items: Sequence[OutsideGroup], sender: str, state: RunState) -> list[Taken | WrongField]:
        return [self._taken(item, sender, state) for item in items]

    def _taken(self, item: OutsideGroup, sender: str, state: RunState) -> Taken | WrongField:
        if state.published < 0:
            return WrongField("", "the run has no weights yet: try again")
        try:
            events = self._rollouts.events(item, sender, state.run, state.published)
        except WrongField as error:
            return error
        return group_of(events[-1].entity()), events


class RewardDoor:
    """Handles rewards of samples that wait for one."""

    item, adds = OutsideReward, False

    def __init__(self, log: EventLog, settings: RewardSettings) -> None:
        self._log, self._settings = log, settings

    async def events(self, items: Sequence[OutsideReward], sender: str, state: RunState) -> list[Taken | WrongField]:
        return [await self._taken(item, sender, state) for item in items]

    async def _taken(self, item: OutsideReward, sender: str, state: RunState) -> Taken | WrongField:
        if not is_reward(item.reward):
            return WrongField("reward", f"it is not a finite number of at most {MOST_REWARD:g}")
        group = state.groups.get(group_of(item.sample))
        sample = None if group is None else group.samples.get(item.sample)
        assigned = RewardAssigned(
            sample=item.sample,
            group=group_of(item.sample),
            value=item.reward,
            grader=f"{OUTSIDE}:{sender}" if sender else OUTSIDE,
            grader_digest="",
            detail=item.detail,
        )
        if group is None or sample is None or not await self._may(group.group, sender):
            return WrongField("sample", f"no sample of yours that waits for its reward is called {item.sample!r}")
        if sample.phase is SamplePhase.GRADED and sample.reward == item.reward:
            return item.sample, []
        if sample.phase in (SamplePhase.GRADED, SamplePhase.UNGRADED, SamplePhase.FAILED):
            return WrongField("sample", f"{item.sample} waits for no reward: it is {sample.phase}")
        if choose(self._settings, Sample(metadata=group.metadata)).place is not Place.OUTSIDE:
            return WrongField("sample", f"{item.sample} is graded by the run (--rm-type {OUTSIDE} leaves it to you)")
        if sample.phase is not SamplePhase.COMPLETED:
            return WrongField("", f"{item.sample} is not finished yet: try again")
        return item.sample, [assigned]

    async def _may(self, group: str, sender: str) -> bool:
        if sender in self._settings.reward_sources:
            return True
        last = await self._log.last(of_type(self._log.run, "prompt.submitted", group))
        prompt = last.envelope.event if last else None
        return isinstance(prompt, PromptSubmitted) and prompt.dataset == INBOX and prompt.source.sender == sender


def doors_of(settings: TrainSettings, log: EventLog) -> Doors:
    """Return all doors of a run. Loads its tokenizer, which takes a second."""
    tokenizer = load_tokenizer(settings.engine.hf_checkpoint)
    prompts, limits = OutsidePrompts.of(settings, tokenizer), Limits.of(settings, tokenizer)
    return {
        PROMPTS: PromptDoor(prompts),
        TRAJECTORIES: TrajectoryDoor(OutsideRollouts(prompts, limits, settings.data.apply_chat_template_kwargs)),
        REWARDS: RewardDoor(log, settings.reward),
    }
