"""When an evaluation is due, and when it is complete. It shares the engines, and the conductor does not wait for it.

How long one may keep an engine from newer weights is decided at the engine (`serve_apps/engine_weights.py`).
"""

from __future__ import annotations

from schemas.evals import EvalCompleted
from slime_events.core.state.run import EvalState, RunState
from slime_events.loop.conductor.accept import has_ended
from slime_events.loop.conductor.plan import Plan


def evals_due(state: RunState, plan: Plan) -> list[tuple[str, int]]:
    """(data set, version) to begin: the first version, every N-th and the last.

    An N-th that is not published (--update-weights-interval) has no weights to be evaluated with: the next one that is
    takes its place.
    """
    if plan.eval_every is None or state.published < 0:
        return []
    due = version = state.published
    if version < plan.steps:
        due = max(version - version % plan.eval_every, state.first)
    if due == state.first and not plan.eval_first:
        return []
    if not plan.eval_exact or due == state.first or due % plan.publish_every == 0:
        version = due
    return [(name, version) for name in plan.eval_names if state.evals_begun.get(name, -1) < due]


def evals_completed(state: RunState, plan: Plan) -> list[EvalCompleted]:
    """Evaluations of which every sample has ended."""
    return [_result(state, ev) for ev in state.evals.values() if _complete(state, ev, plan)]


def _complete(state: RunState, evaluation: EvalState, plan: Plan) -> bool:
    return all(has_ended(state.groups[group], plan) for group in evaluation.groups)


def _result(state: RunState, evaluation: EvalState) -> EvalCompleted:
    samples = [s for group in evaluation.groups for s in state.groups[group].samples.values()]
    graded = [s for s in samples if s.reward is not None]
    return EvalCompleted(
        dataset=evaluation.dataset,
        version=evaluation.version,
        mean=sum(s.reward or 0.0 for s in graded) / len(samples),
        samples=len(samples),
        failed=len(samples) - len(graded),
        mean_length=sum(s.length for s in samples) / len(samples),
        oldest_version=min((s.oldest for s in samples if s.oldest is not None), default=evaluation.version),
        newest_version=max((s.newest for s in samples if s.newest is not None), default=evaluation.version),
    )
