"""`InlineRewards`: rewards that an engine computes for its own rollouts."""

from schemas.event import Event, Purpose
from schemas.rollouts import RolloutCompleted, RolloutRequested
from serve_apps.rollouts.rollout import Prompts
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.choice import choose
from slime_events.plugins.rewards.dispatcher import Dispatcher
from slime_events.plugins.rewards.outcome import outcome_event
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import completed_sample
from storage.log import EventLog


class InlineRewards:
    """Rewards that an engine computes for its own rollouts, if the built-in grader needs no process.

    They are part of the append that ends the rollout, which saves the last rollout of a step one append and two reads.
    The grader computes all other rewards, and skips samples that have one.
    """

    def __init__(self, settings: RewardSettings, log: EventLog) -> None:
        self._dispatcher, self._prompts = Dispatcher(settings), Prompts(log)
        self._needs_pool = choose(settings, Sample()).is_own

    async def of(self, request: RolloutRequested, completed: RolloutCompleted) -> list[Event]:
        """Return the reward of a completed rollout; empty if the grader computes it."""
        if self._needs_pool or request.purpose is Purpose.CALL:
            return []
        sample = completed_sample(completed, await self._prompts.of(request.group))
        outcome = self._dispatcher.inline(sample, evaluation=request.purpose is Purpose.EVAL)
        return [] if outcome is None else [outcome_event(completed.sample, completed.group, outcome)]
