"""`Outsiders`: whether a run waits only for external parties. They have no deadline."""

from typing import Annotated, NamedTuple

from schemas.doc import doc
from slime_events.core.config.settings import TrainSettings
from slime_events.core.state.group import SamplePhase
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.plan import Plan
from slime_events.plugins.rewards.choice import OUTSIDE


class Outsiders(NamedTuple):
    """The external parties of a run."""

    prompts: Annotated[bool, doc("all prompts come from producers")] = False
    rewards: Annotated[bool, doc("all rewards are sent to the run")] = False

    @classmethod
    def of(cls, settings: TrainSettings) -> "Outsiders":
        """Return the external parties of a run's settings."""
        return cls(settings.data.waits_for_producers, settings.reward.rm_type == OUTSIDE)

    def are_waited_for(self, state: RunState, plan: Plan) -> bool:
        """Return whether the run waits only for external parties, so that its deadline must not end it."""
        return (self.prompts and lacks_prompts(state, plan)) or (self.rewards and lacks_rewards(state, plan))


def lacks_prompts(state: RunState, plan: Plan) -> bool:
    """Return whether a run that can generate has nothing to do until it gets prompts."""
    if plan.by_function or state.published < 0 or not state.activated or state.version >= plan.steps:
        return False
    busy = state.sealed or state.evals or state.waiting or state.offers
    return not busy and not state.index.requested


def lacks_rewards(state: RunState, plan: Plan) -> bool:
    """Return whether a run has nothing to do until finished samples get their rewards."""
    if plan.by_function or state.published < 0 or state.sealed:
        return False
    is_completed = False
    for group in state.index:
        for sample in group.samples.values():
            if sample.phase is SamplePhase.REQUESTED or sample.phase is SamplePhase.RUNNING:
                return False
            is_completed = is_completed or sample.phase is SamplePhase.COMPLETED
    return is_completed
