"""`decide`: the conductor's events at a position of the log. Pure: equal state and plan give equal events.

Evaluations share the engines, and the conductor does not wait for them. The engine decides how long an evaluation may
keep it from newer weights (`serve_apps/version_choice.py`).
"""

from collections import Counter
from collections.abc import Sequence

from schemas.evals import EvalCompleted
from schemas.event import Event
from schemas.prompts import PromptRejected, PromptSubmitted
from slime_events.algorithms.pass_rate import pass_rate
from slime_events.core.state.group import GroupState, SamplePhase
from slime_events.core.state.run import EvalState, RunPhase, RunState
from slime_events.loop.conductor.accept import GroupFilter, has_ended, verdicts
from slime_events.loop.conductor.draw import groups_needed, groups_to_request, requests_again, requests_for, requests_of
from slime_events.loop.conductor.plan import Plan, is_suspended, may_decide
from slime_events.loop.conductor.seal import Normalise, seal
from slime_events.loop.conductor.turns import next_turns
from slime_events.plugins.post_process import PostProcess


def evals_due(state: RunState, plan: Plan) -> list[tuple[str, int]]:
    """Return (data set, version) of the evaluations to begin: of the first version, every N-th and the last.

    If an N-th version is not published (--update-weights-interval), the next published version is evaluated instead. A
    version is evaluated when its files are stored.
    """
    due, version = _due(_newest_stored(state, plan), state, plan)
    return [(name, version) for name in plan.evals if state.evals_begun.get(name, -1) < due]


def function_eval_due(state: RunState, plan: Plan) -> int | None:
    """Return the version for which the user's evaluation function is called next; None: none is due."""
    evaluated, every = state.by_function.evaluated, plan.publish_every
    newest = _newest_stored(state, plan)
    for published in range(max(evaluated + 1, state.first), newest + 1 if plan.evals_by_function else 0):
        due, version = _due(published, state, plan)
        if due > evaluated and (published % every == 0 or published in (state.first, plan.steps)):
            return version
    return None


def _newest_stored(state: RunState, plan: Plan) -> int:
    """Return the newest published version before which, and of which, all files are stored; -1 for none."""
    before = min(state.to_store, default=state.published + 1) - 1
    if before >= state.published:
        return state.published
    return max(before - before % plan.publish_every, state.first)


def _due(published: int, state: RunState, plan: Plan) -> tuple[int, int]:
    """Return the newest version to evaluate once `published` is, and the version to use for it; -1 for none."""
    if plan.eval_every is None or published < 0:
        return -1, -1
    due = version = published
    if version < plan.steps:
        due = max(version - version % plan.eval_every, state.first)
    if due == state.first and not plan.eval_first:
        return -1, -1
    if not plan.eval_exact or due == state.first or due % plan.publish_every == 0:
        version = due
    return due, version


def evals_completed(state: RunState, plan: Plan) -> list[EvalCompleted]:
    """Return the results of evaluations whose samples have all ended."""
    unsettled = state.index.unsettled
    candidates = [each for each in state.evals.values() if not unsettled[each.dataset, each.version]]
    every = [(evaluation, [state.groups[group] for group in evaluation.groups]) for evaluation in candidates]
    return [_result(evaluation, groups) for evaluation, groups in every if all(has_ended(g, plan) for g in groups)]


def _result(evaluation: EvalState, groups: Sequence[GroupState]) -> EvalCompleted:
    samples = [sample for group in groups for sample in group.samples.values()]
    graded = [s for s in samples if s.reward is not None]
    answers = [group.answers for group in groups]
    return EvalCompleted(
        dataset=evaluation.dataset,
        version=evaluation.version,
        mean=sum(s.reward or 0.0 for s in graded) / len(samples),
        samples=len(samples),
        failed=len(samples) - len(graded),
        mean_length=sum(s.length for s in samples) / len(samples),
        oldest_version=min((s.oldest for s in samples if s.oldest is not None), default=evaluation.version),
        newest_version=max((s.newest for s in samples if s.newest is not None), default=evaluation.version),
        pass_rates=pass_rate([reward for rewards in answers for reward in rewards], list(map(len, answers))),
    )


def decide(
    state: RunState,
    plan: Plan,
    group_filter: GroupFilter,
    normalise: Normalise,
    post_process: PostProcess | None = None,
) -> list[Event]:
    """Return verdicts, a sealed batch, repeated requests, completed evaluations, and requests for waiting prompts."""
    if not may_decide(state, plan):
        return []
    decided = verdicts(state, plan, group_filter)
    sealed = seal(state, plan, decided, normalise, post_process)
    events: list[Event] = [*decided, *sealed]
    events += requests_again(state, plan, training=not is_suspended(state.next_step + len(sealed), state, plan))
    events += evals_completed(state, plan)
    order = state.counts.groups_requested
    for group in next_turns(state, plan, groups_to_request(state, plan)).groups:
        events += requests_of(state.groups[group], state, plan, order)
        order += 1
    return events


def prompts_to_draw(state: RunState, plan: Plan) -> int:
    """Return the number of prompts to take from the source now, in addition to the waiting ones.

    They are those to request now and, while the trainer works, those that the next step will request. Then only the
    requests have to follow the step's commit.
    """
    if not may_decide(state, plan):
        return 0
    if plan.by_function:
        return state.by_function.wanted - state.by_function.drawn
    count = groups_to_request(state, plan)
    if state.sealed and plan.draw is None:
        count = max(count, min(plan.groups, groups_needed(state, plan)))
    return next_turns(state, plan, count).draws


def with_requests(drawn: Sequence[PromptSubmitted | PromptRejected], state: RunState, plan: Plan) -> list[Event]:
    """Return the drawn prompts, each with its requests while there is room; the rest wait.

    A prompt from a sampler is requested only once it is in the log: another conductor may draw a different one.
    """
    turns = next_turns(state, plan, groups_to_request(state, plan))
    room = turns.draws
    order = state.counts.groups_requested + len(turns.groups)  # those are requested first
    events: list[Event] = []
    for prompt in drawn:
        events.append(prompt)
        if isinstance(prompt, PromptSubmitted) and room > 0 and not prompt.source.seen:
            events += requests_for(prompt.group, prompt.tokens, plan, version=state.published, order=order)
            room -= 1
            order += 1
    return events


def decides_with_more_waiting(state: RunState, plan: Plan) -> bool:
    """Return whether more waiting prompts may change a decision, so that a flood of prompts does not cost one each.

    Waiting prompts are requested if there is room for a group. Otherwise they can only replace prompts that the run
    would draw ahead; with shares that is harder to tell, so a decision is made.
    """
    return groups_to_request(state, plan) > 0 or bool(plan.shares and state.sealed)


def is_complete(state: RunState, plan: Plan) -> bool:
    """Return whether all steps are stored, all evaluations done, and the last checkpoint or a newer one is saved."""
    if state.version < plan.steps:  # nearly always; the rest is slow
        return False
    newest = min(state.batch_starts, default=plan.steps)  # checkpoint: batches before it are forgotten
    return (
        state.phase is RunPhase.RUNNING
        and not state.evals
        and not evals_due(state, plan)
        and function_eval_due(state, plan) is None
        and not state.to_store
        and newest >= plan.saves.newest(plan.steps)
    )


def is_broken(state: RunState, plan: Plan) -> str | None:
    """Return why the run cannot continue: too many consecutive groups failed for reasons other than the filter.

    Groups of producers' prompts do not count, or any producer could end the run.
    """
    if [] in state.by_function.returned.values():
        return "nothing that the rollout function returned for a step can be trained on"
    broken = state.broken_in_a_row - state.outside_in_a_row
    if broken < plan.broken_limit:
        return None
    causes = ", ".join(f"{cause} {count}" for cause, count in sorted(state.rejections.items()))
    return (
        f"{broken} groups in a row could not be trained on ({causes}): see "
        f"`slime-events tail {state.run} --type group.rejected` for their reasons"
    )


def waits_for(state: RunState, plan: Plan) -> str:
    """Return what the run waits for, as text for deadlines and the terminal."""
    if state.published < 0:
        return f"the trainer to publish version {state.first}"
    if not state.activated and not plan.by_function:
        return f"an engine to activate version {state.published}"
    if state.sealed:
        return f"the trainer to commit step {min(state.sealed)}"
    phases = Counter(s.phase for g in state.index for s in g.samples.values())
    ungraded = phases.pop(SamplePhase.COMPLETED, 0)
    running = phases[SamplePhase.REQUESTED] + phases[SamplePhase.RUNNING]
    if running:
        by = "made by agents" if plan.agents else "generated"
        return f"{running} samples to be {by}" + (f" and {ungraded} to be graded" if ungraded else "")
    if ungraded:
        return f"{ungraded} samples to be graded"
    if state.evals:
        return f"the evaluation {min(state.evals)}"
    if state.version >= plan.steps and state.to_store:
        return f"the trainer to store weight version {min(state.to_store)}"
    if state.version >= plan.steps:
        return "a checkpoint to be saved"
    if plan.by_function:
        return f"the rollout function to return step {state.by_function.next}"
    return f"prompts for step {state.next_step}"


class Stall:
    """Measures how long a run has made no progress, by the caller's clock.

    deadline_s: seconds after which the run has stalled. look_s: most seconds that a call counts, because a pause of the
    machine or of the log stops all processes.
    """

    def __init__(self, deadline_s: float, look_s: float, now: float) -> None:
        self._deadline_s, self._look_s = deadline_s, look_s
        self._moved, self._idle, self._looked = -1, 0.0, now

    def seconds(self, moved: int, now: float, *, excused: bool = False) -> float | None:
        """Return the seconds without progress, if they have reached the deadline.

        moved: position of the newest progress. excused: the run waits for external parties, so the time does not count.
        """
        counts = moved == self._moved and not excused
        self._idle = self._idle + min(now - self._looked, self._look_s) if counts else 0.0
        self._moved, self._looked = moved, now
        return self._idle if self._idle >= self._deadline_s else None
