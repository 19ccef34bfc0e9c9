"""`decide`: everything the conductor says at one position of the log. Pure: same state and plan, same events."""

from __future__ import annotations

from collections import Counter

from schemas.event import Event
from slime_events.conductor.accept import Judge, verdicts
from slime_events.conductor.draw import groups_to_request, retries, training_requests
from slime_events.conductor.evaluate import evals_completed, evals_due
from slime_events.conductor.plan import Plan
from slime_events.conductor.seal import Normalise, seal
from slime_events.state.group import SamplePhase
from slime_events.state.run import RunPhase, RunState


def decide(state: RunState, plan: Plan, judge: Judge, normalise: Normalise) -> list[Event]:
    """Verdicts, a sealed batch, retries, completed evaluations and requests for prompts that wait (the inbox's)."""
    if state.phase is not RunPhase.RUNNING or state.published < 0:
        return []
    decided = verdicts(state, plan, judge)
    events: list[Event] = [*decided, *seal(state, plan, decided, normalise)]
    events += retries(state, plan)
    events += evals_completed(state, plan)
    for group in state.waiting[: groups_to_request(state, plan)]:
        events += training_requests(group, state.groups[group].prompt, state, plan)
    return events


def prompts_to_draw(state: RunState, plan: Plan) -> int:
    """Prompts to take from the source now: what is asked for beyond those that wait."""
    if state.phase is not RunPhase.RUNNING or state.published < 0:
        return 0
    return max(0, groups_to_request(state, plan) - len(state.waiting))


def is_complete(state: RunState, plan: Plan) -> bool:
    """All steps committed, all evaluations done, all checkpoints saved."""
    due = plan.steps // plan.checkpoint_every if plan.checkpoint_every else 0
    return (
        state.phase is RunPhase.RUNNING
        and state.version >= plan.steps
        and not state.evals
        and not evals_due(state, plan)
        and state.counts.checkpoints >= due
    )


def is_broken(state: RunState, plan: Plan) -> str | None:
    """Why the run cannot go on: too many groups in a row failed for other reasons than the filter."""
    if state.broken_in_a_row < plan.broken_limit:
        return None
    causes = ", ".join(f"{cause} {count}" for cause, count in sorted(state.rejections.items()))
    return (
        f"{state.broken_in_a_row} groups in a row could not be trained on ({causes}): see "
        f"`slime-events tail {state.run} --type group.rejected` for their reasons"
    )


def waits_for(state: RunState, plan: Plan) -> str:
    """What the run is waiting for, in words, for deadlines and the terminal."""
    if state.published < 0:
        return "the trainer to publish version 0"
    if not state.activated:
        return f"an engine to activate version {state.published}"
    if state.sealed:
        return f"the trainer to commit step {min(state.sealed)}"
    phases = Counter(s.phase for g in state.groups.values() for s in g.samples.values())
    ungraded = phases.pop(SamplePhase.COMPLETED, 0)
    running = phases[SamplePhase.REQUESTED] + phases[SamplePhase.RUNNING]
    if running:
        return f"{running} samples to be generated" + (f" and {ungraded} to be graded" if ungraded else "")
    if ungraded:
        return f"{ungraded} samples to be graded"
    if state.evals:
        return f"the evaluation {min(state.evals)}"
    if state.version >= plan.steps:
        return "a checkpoint to be saved"
    return f"prompts for step {state.next_step}"
