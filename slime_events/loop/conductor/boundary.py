"""The step boundary: where no batch may be sealed before the trainer's next commit."""

from __future__ import annotations

from slime_events.core.state.run import RunPhase, RunState
from slime_events.loop.conductor.plan import Plan


def at_boundary(next_step: int, state: RunState, plan: Plan) -> bool:
    """Whether `next_step`, the first that is not sealed, has to wait for a commit.

    Tokens made meanwhile would be more than `max_staleness` versions behind at the step that trains them first.
    """
    return next_step > state.version + plan.max_staleness


def rests(next_step: int, state: RunState, plan: Plan) -> bool:
    """Whether unfinished training rollouts are to rest now, and none is to be asked for."""
    return plan.partial_rollout and at_boundary(next_step, state, plan)


def may_decide(state: RunState, plan: Plan) -> bool:
    """Whether the run is on, and the state not between the two halves of one append.

    A commit that publishes is step.committed and weights.published in one append, but a reader may be handed them one
    after the other. What is asked for in between would be for weights that are behind already.
    """
    if state.phase is not RunPhase.RUNNING or state.published < 0:
        return False
    published_too = state.version % plan.publish_every == 0 or state.version == plan.steps
    return state.published == state.version or not published_too
