"""The doors of a run's inbox: prompts, finished groups, and rewards that samples wait for."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from actors.inbox import Door
from schemas.event import Event
from schemas.ids import INBOX, group_of
from schemas.inbox import PROMPTS, REWARDS, TRAJECTORIES, InboxPrompt
from schemas.outside import OutsideGroup, OutsideReward
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from slime_events.core.config.per_source import NATS
from slime_events.core.config.reward import RewardSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.state.group import SamplePhase
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.outside_rollouts import Limits, OutsideRollouts
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.prompts.inbox_message import WrongField
from slime_events.plugins.rewards.dispatch import OUTSIDE, grader_name
from slime_events.plugins.sample import Sample
from storage.log import EventLog

GetState = Callable[[], RunState]


class Room(NamedTuple):
    """How many prompts may wait. most: of all. quotas: of a source, where it has one."""

    most: int
    quotas: Mapping[str, int]
    state: GetState

    def left(self, sender: str) -> int:
        """How many more of a sender."""
        state, share = self.state(), sender or NATS
        left = self.most - len(state.waiting) - len(state.offers)
        if (quota := self.quotas.get(share)) is None:
            return left
        return min(left, quota - len(state.index.by_share.get(share, ())))


class PromptDoor:
    """Prompts, which the run is to answer."""

    item, adds = InboxPrompt, True

    def __init__(self, feed: PromptFeed) -> None:
        self._feed = feed

    async def events(self, item: InboxPrompt, sender: str) -> tuple[str, list[Event]]:
        """See `Door`."""
        made = self._feed.from_inbox(item, sender)
        return made.group, [made]


class TrajectoryDoor:
    """Groups that were answered outside."""

    item, adds = OutsideGroup, True

    def __init__(self, rollouts: OutsideRollouts, state: GetState) -> None:
        self._rollouts, self._state = rollouts, state

    async def events(self, item: OutsideGroup, sender: str) -> tuple[str, list[Event]]:
        """See `Door`."""
        state = self._state()
        if state.published < 0:
            raise WrongField("", "the run has no weights yet: try again")
        events = self._rollouts.events(item, sender, state.run, state.published)
        return group_of(events[-1].entity()), events


class RewardDoor:
    """Rewards of samples that wait for them. allowed: sources that may reward samples of others too."""

    item, adds = OutsideReward, False

    def __init__(self, log: EventLog, settings: RewardSettings, state: GetState) -> None:
        self._log, self._settings, self._state = log, settings, state

    async def events(self, item: OutsideReward, sender: str) -> tuple[str, list[Event]]:
        """See `Door`."""
        if not math.isfinite(item.reward):
            raise WrongField("reward", "it is no finite number")
        group = self._state().groups.get(group_of(item.sample))
        sample = None if group is None else group.samples.get(item.sample)
        given = RewardAssigned(
            sample=item.sample,
            group=group_of(item.sample),
            value=item.reward,
            grader=f"{OUTSIDE}:{sender}" if sender else OUTSIDE,
            grader_digest="",
            detail=item.detail,
        )
        if group is None or sample is None or not await self._may(group.group, sender):
            raise WrongField("sample", f"no sample of yours that waits for its reward is called {item.sample!r}")
        if sample.phase is SamplePhase.GRADED and sample.reward == item.reward:
            return item.sample, []
        if sample.phase in (SamplePhase.GRADED, SamplePhase.UNGRADED, SamplePhase.FAILED):
            raise WrongField("sample", f"{item.sample} waits for no reward: it is {sample.phase}")
        if grader_name(self._settings, Sample(metadata=group.metadata)) != OUTSIDE:
            raise WrongField("sample", f"{item.sample} is graded by the run (--rm-type {OUTSIDE} leaves it to you)")
        if sample.phase is not SamplePhase.COMPLETED:
            raise WrongField("", f"{item.sample} is not finished yet: try again")
        return item.sample, [given]

    async def _may(self, group: str, sender: str) -> bool:
        if sender in self._settings.reward_sources:
            return True
        last = await self._log.last(f"slime.{self._log.run}.prompt.submitted.{group}")
        prompt = last.envelope.event if last else None
        return isinstance(prompt, PromptSubmitted) and prompt.dataset == INBOX and prompt.source.sender == sender


def doors_of(settings: TrainSettings, feed: PromptFeed, log: EventLog, state: GetState) -> Mapping[str, Door]:
    """All doors of a run."""
    rollouts = OutsideRollouts(feed, Limits.of(settings, feed.tokenizer), settings.data.apply_chat_template_kwargs)
    return {
        PROMPTS: PromptDoor(feed),
        TRAJECTORIES: TrajectoryDoor(rollouts, state),
        REWARDS: RewardDoor(log, settings.reward, state),
    }
