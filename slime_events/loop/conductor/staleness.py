"""The bound on staleness, group by group: who can still be trained in time, and the verdict on who cannot."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from schemas.groups import GroupRejected, RejectionCause
from slime_events.core.state.group import GroupState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.plan import Plan


def bound_of(group: GroupState, plan: Plan) -> int:
    """Versions that the weights which train a group may be past its oldest: recorded rollouts have a bound of their
    own.
    """
    return plan.staleness_bound if group.recalled is UNSET else group.recalled.bound


def last_step(group: GroupState, plan: Plan) -> int:
    """The last step that may train a group."""
    return group.oldest + bound_of(group, plan)


def in_time(groups: Sequence[GroupState], step: int, plan: Plan) -> bool:
    """Whether steps from `step` on can train all these groups, each within its bound: oldest first, as many as a step
    takes.
    """
    last_steps = sorted(last_step(group, plan) for group in groups)
    return all(step + place // plan.groups <= last for place, last in enumerate(last_steps))


def stale(group: GroupState, accepted: Sequence[GroupState], state: RunState, plan: Plan) -> GroupRejected | None:
    """The verdict on a group that cannot be trained within the bound beside those that are accepted already.

    Sealing waits for groups that are still being made, so this is met only where an engine gave tokens of older
    versions than it was asked for, or recorded rollouts waited too long. What is accepted is in time, and stays so.
    """
    step = state.next_step + len(accepted) // plan.groups
    behind, bound = step - group.oldest, bound_of(group, plan)
    if behind <= bound or (not plan.in_prompt_order and in_time([*accepted, group], state.next_step, plan)):
        return None
    return GroupRejected(
        group=group.group,
        cause=RejectionCause.STALE,
        reason=f"step {step} is the first with a place for it, {behind} versions after its oldest token; {bound} is "
        "the most",
        samples=tuple(group.samples),
        rewards=group.graded,
        figures={"oldest_version": group.oldest, "step": step, "behind": behind, "bound": bound},
    )
