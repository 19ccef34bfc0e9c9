"""`OwnRewards`: an engine's rewards for its rollouts, where the rule is over at once.

They are said in the append that ends the rollout, which saves a step's last rollout the way over the grader: one append
and two readings. Everything else is the grader's, who lets alone what has a reward.
"""

from __future__ import annotations

from schemas.event import Event, Purpose
from schemas.rollouts import RolloutCompleted, RolloutRequested
from serve_apps.prompts import Prompts
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.inline import AtOnce
from slime_events.plugins.rewards.outcome import outcome_event
from slime_events.plugins.sample_view import completed_sample
from storage.log import EventLog


class OwnRewards:
    """settings: of the run's rewards. What a user's function grades is the grader's."""

    def __init__(self, settings: RewardSettings, log: EventLog) -> None:
        self._at_once, self._prompts = AtOnce(settings), Prompts(log)
        self._for_the_grader = settings.custom_rm_path is not None

    async def of(self, request: RolloutRequested, completed: RolloutCompleted) -> list[Event]:
        """The reward of a rollout that has ended; empty where it is the grader's."""
        if self._for_the_grader:
            return []
        sample = completed_sample(completed, await self._prompts.of(request.group))
        if not self._at_once.grades([sample]):
            return []
        (outcome,) = self._at_once.grade([sample], evaluation=request.purpose is Purpose.EVAL)
        return [outcome_event(completed.sample, completed.group, outcome)]
