"""`facts_of`: everything that is to be said of a run at one moment, as JSON values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from schemas.event import Purpose
from slime_events.analysis.timetravel.moment import Moment
from slime_events.core.run.run_settings import settings_in_force
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase, SampleState
from slime_events.core.state.run import RunPhase, RunState
from slime_events.loop.conductor.decide import waits_for
from slime_events.loop.conductor.plan import Plan, make_plan

UNDER_WAY = (SamplePhase.REQUESTED, SamplePhase.RUNNING)
NANO = 1e-9


class Later(NamedTuple):
    """engine: that had a rollout. began_at: when it began to generate (UTC nanoseconds), where that was said."""

    engine: str
    began_at: int | None


def facts_of(moment: Moment, end: int, later: Mapping[str, Later] | None = None) -> dict[str, Any]:
    """See docs/time-travel.md for each field. end: the log's last position. later: who had what, as was said since."""
    state, around, plan = moment.state, moment.around, plan_at(moment)
    rollouts = _rollouts(moment, later or {})
    groups = [_group(group, moment) for group in state.groups.values()]
    open_groups = [group for group in groups if group["behind"] is not None]
    return {
        "run": state.run,
        "position": moment.position,
        "end": end,
        "at": around.at,
        "seconds": (around.at - around.first_at) * NANO,
        "phase": state.phase.value,
        "failure": state.failure,
        "waits_for": waits_for(state, plan) if plan and state.phase is RunPhase.RUNNING else None,
        "steps": state.steps,
        "steps_wanted": plan.steps if plan else None,
        "version": state.version,
        "published": state.published,
        "weights_digest": state.weights_digest,
        "backpressure": {
            "open": state.open_groups,
            "room": plan.room if plan else None,
            "unsealed": state.unsealed_groups,
            "prompts_waiting": len(state.waiting),
        },
        "staleness": {
            "bound": plan.staleness_bound if plan else None,
            "behind": {str(behind): n for behind, n in sorted(Counter(g["behind"] for g in open_groups).items())},
        },
        "engines": [
            {
                "engine": engine,
                "version": state.activated.get(engine),
                "rollouts": [rollout for rollout in rollouts if rollout["begun"] and rollout["engine"] == engine],
            }
            for engine in sorted({*state.activated, *(r["engine"] for r in rollouts if r["begun"])})
        ],
        "queued": [rollout for rollout in rollouts if not rollout["begun"]],
        "groups": groups,
        "sealed": [
            {"step": step, "groups": list(sealed.groups), "digest": sealed.digest}
            for step, sealed in state.sealed.items()
        ],
        "evals": [{"dataset": e.dataset, "version": e.version, "groups": len(e.groups)} for e in state.evals.values()],
        "decisions": msgspec.to_builtins(around.decisions),
        "workers": dict(around.workers),
        "cursors": dict(state.cursors),
        "counts": msgspec.to_builtins(state.counts),
        "rejections": dict(state.rejections),
    }


def plan_at(moment: Moment) -> Plan | None:
    """What the run was conducted by then; None where its settings do not say how many steps it has."""
    settings = settings_in_force(moment.around.life)
    if settings.rollout.num_rollout is None:
        return None
    return make_plan(settings.rollout, settings.evaluation, settings.trainer)


def _under_way(state: RunState) -> list[SampleState]:
    return [s for group in state.groups.values() for s in group.samples.values() if s.phase in UNDER_WAY]


def without_engine(moment: Moment) -> list[str]:
    """The samples under way of which the log has not said yet who has them."""
    return [s.sample for s in _under_way(moment.state) if s.sample not in moment.around.engines]


def _rollouts(moment: Moment, later: Mapping[str, Later]) -> list[dict[str, Any]]:
    """Every rollout under way. begun: an engine has given tokens of it, or has said later that it was generating."""
    now, found = moment.around.at, []
    for sample in _under_way(moment.state):
        engine, since = moment.around.engines.get(sample.sample), later.get(sample.sample)
        generating = since is not None and since.began_at is not None and since.began_at <= now
        found.append({
            "sample": sample.sample,
            "engine": engine or (since.engine if since else None),
            "begun": engine is not None or generating,
            "said_later": engine is None and since is not None,
            "tokens": sample.length,
            "oldest": sample.oldest,
            "newest": sample.newest,
            "min_version": sample.min_version,
            "attempt": sample.attempt,
            "seconds": (now - sample.requested_at) * NANO,
        })  # fmt: skip
    return found


def _group(group: GroupState, moment: Moment) -> dict[str, Any]:
    samples, training = list(group.samples.values()), group.purpose is Purpose.TRAIN
    asked = [sample.requested_at for sample in samples if sample.requested_at]
    return {
        "group": group.group,
        "purpose": group.purpose.value,
        "dataset": group.dataset,
        "phase": group.phase.value,
        "samples": dict(Counter(sample.phase.value for sample in samples)),
        "tokens": sum(sample.length for sample in samples),
        "rewards": list(group.graded),
        "seconds": (moment.around.at - min(asked)) * NANO if asked else None,
        "version": group.version,
        "oldest": group.oldest if samples else None,
        "behind": _step_of(group, moment.state) - group.oldest if training and samples else None,
    }


def _step_of(group: GroupState, state: RunState) -> int:
    """The step that trains it, or the first that may."""
    if group.phase is GroupPhase.SEALED:
        return next(step for step, sealed in state.sealed.items() if group.group in sealed.groups)
    return state.next_step
