"""`decide`: everything the conductor says at one position of the log. Pure: same state and plan, same events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from schemas.event import Event
from schemas.prompts import PromptRejected, PromptSubmitted
from slime_events.core.state.group import SamplePhase
from slime_events.core.state.run import RunPhase, RunState
from slime_events.loop.conductor.accept import Judge, verdicts
from slime_events.loop.conductor.boundary import may_decide, rests
from slime_events.loop.conductor.draw import (
    groups_needed,
    groups_to_request,
    requests_again,
    requests_of,
    training_requests,
)
from slime_events.loop.conductor.evaluate import evals_completed, evals_due
from slime_events.loop.conductor.plan import Plan
from slime_events.loop.conductor.seal import Normalise, seal


def decide(state: RunState, plan: Plan, judge: Judge, normalise: Normalise) -> list[Event]:
    """Verdicts, a sealed batch, what is asked for again, completed evaluations and requests for prompts that wait."""
    if not may_decide(state, plan):
        return []
    decided = verdicts(state, plan, judge)
    sealed = seal(state, plan, decided, normalise)
    events: list[Event] = [*decided, *sealed]
    events += requests_again(state, plan, training=not rests(state.next_step + len(sealed), state, plan))
    events += evals_completed(state, plan)
    for group in state.waiting[: groups_to_request(state, plan)]:
        events += requests_of(state.groups[group], state, plan)
    return events


def prompts_to_draw(state: RunState, plan: Plan) -> int:
    """Prompts to take from the source now: what is asked for beyond those that wait, and while the trainer works what
    the next step will ask for, so that the requests alone have to follow its commit.
    """
    if not may_decide(state, plan):
        return 0
    wanted = groups_to_request(state, plan)
    if state.sealed and plan.draw is None:
        wanted = max(wanted, min(plan.groups, groups_needed(state, plan)))
    return max(0, wanted - len(state.waiting))


def with_requests(drawn: Sequence[PromptSubmitted | PromptRejected], state: RunState, plan: Plan) -> list[Event]:
    """The prompts that were drawn, each with its requests as long as there is room; the others wait.

    What was drawn by what the log says is asked for once it stands there: another conductor may draw otherwise.
    """
    room = groups_to_request(state, plan) - len(state.waiting)
    events: list[Event] = []
    for prompt in drawn:
        events.append(prompt)
        if isinstance(prompt, PromptSubmitted) and room > 0 and not prompt.source.seen:
            events += training_requests(prompt.group, prompt.tokens, state, plan)
            room -= 1
    return events


def is_complete(state: RunState, plan: Plan) -> bool:
    """All steps committed, all evaluations done, all checkpoints saved."""
    every = plan.checkpoint_every
    due = plan.steps // every - state.first // every if every else 0
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
        return f"the trainer to publish version {state.first}"
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
