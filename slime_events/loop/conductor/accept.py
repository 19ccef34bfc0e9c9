"""Which groups are trained on: a verdict for each group whose samples have all ended."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from schemas.errors import PlugPointError
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.draw import may_retry
from slime_events.loop.conductor.plan import Plan
from slime_events.loop.conductor.staleness import stale
from slime_events.plugins.filters.base_types import should_drop
from slime_events.plugins.filters.decide import FilterDecision

Judge = Callable[[GroupState], FilterDecision]
"""The filter as the conductor calls it; raises PlugPointError where the user's function is broken."""

Verdict = GroupAccepted | GroupRejected

# Looked up once: a run asks of every open sample, at every turn.
_COMPLETED, _FAILED = SamplePhase.COMPLETED, SamplePhase.FAILED
_UNGRADED = SamplePhase.UNGRADED
_JUDGED = frozenset({SamplePhase.GRADED, _UNGRADED})


def has_ended(group: GroupState, plan: Plan) -> bool:
    """Nothing more will come of it. Where a rollout failed for good, completed ones beside it need no reward (a
    grader of whole groups would give them none).
    """
    failed = completed = False
    for sample in group.samples.values():
        phase = sample.phase
        if phase in _JUDGED:
            continue
        if phase is _COMPLETED:
            completed = True
        elif phase is _FAILED and not may_retry(sample, plan):
            failed = True
        else:
            return False
    return bool(group.samples) and (failed or not completed)


def verdicts(state: RunState, plan: Plan, judge: Judge) -> list[Verdict]:
    """A verdict for each decidable group; in prompt order a group waits for those that were asked for before it.

    Where verdicts are not said at once, since no filter rejects any, acceptances wait until they fill a batch: nothing
    follows from one alone, and until then nobody is judged.
    """
    found: list[Verdict] = []
    accepted = [state.groups[name] for name in state.accepted]
    remaining, ended = state.unsealed_groups, _ended(state, plan)
    judges = plan.verdicts_at_once or len(accepted) + len(ended) >= plan.groups
    for group in ended:
        verdict: Verdict | None = _broken(group) or stale(group, accepted, state, plan)
        if verdict is None and judges:
            verdict = _judged(group, judge, insufficient=remaining <= plan.groups)
        if isinstance(verdict, GroupRejected):
            remaining -= 1
        else:
            accepted.append(group)
        if verdict is not None:
            found.append(verdict)
    rejected: list[Verdict] = [verdict for verdict in found if isinstance(verdict, GroupRejected)]
    return found if plan.verdicts_at_once or len(accepted) >= plan.groups else rejected


def _ended(state: RunState, plan: Plan) -> list[GroupState]:
    """The groups that a verdict may be said of, in the order that they were asked for."""
    found = []
    for group in state.in_phase(GroupPhase.REQUESTED):
        if has_ended(group, plan):
            found.append(group)
        elif plan.in_prompt_order:
            break
    return found


def _broken(group: GroupState) -> GroupRejected | None:
    """The verdict on a group that a rollout or a reward is missing of."""
    for sample in group.samples.values():
        if sample.phase is _FAILED or sample.phase is _UNGRADED:
            failed = sample.phase is _FAILED
            return GroupRejected(
                group=group.group,
                cause=RejectionCause.ROLLOUT_FAILED if failed else RejectionCause.REWARD_FAILED,
                reason=f"{sample.sample}: {sample.failure}",
                samples=tuple(group.samples),
            )
    return None


def _judged(group: GroupState, judge: Judge, *, insufficient: bool) -> Verdict:
    """The filter's verdict. insufficient: dropping it would leave too few for the step (slime's fallback)."""
    samples, rewards = tuple(group.samples), group.graded
    try:
        decision = judge(group)
    except PlugPointError as error:
        return GroupRejected(
            group=group.group,
            cause=RejectionCause.FILTER_RAISED,
            reason=str(error),
            samples=samples,
            rewards=rewards,
        )
    if not should_drop(decision, insufficient=insufficient):
        return GroupAccepted(
            group=group.group,
            samples=samples,
            rewards=rewards,
            filter=decision.filter,
            filter_digest=decision.digest,
            reason=decision.reason,
            figures=_figures(decision),
        )
    return GroupRejected(
        group=group.group,
        cause=RejectionCause.FILTER,
        reason=decision.reason or "the filter gave no reason",
        samples=samples,
        rewards=rewards,
        filter=decision.filter,
        filter_digest=decision.digest,
        figures=_figures(decision),
    )


def _figures(decision: FilterDecision) -> dict[str, float]:
    return {name: float(value) for name, value in msgspec.structs.asdict(decision.figures).items() if value is not None}
