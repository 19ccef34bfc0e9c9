"""`facts_of` a run at one moment, and the `difference` between two moments, as JSON values."""

import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from schemas.doc import doc
from schemas.event import Event, Purpose
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutSuspended
from schemas.turns import TurnBegun
from slime_events.analysis.timetravel.moment import Moment
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase, SampleState
from slime_events.core.state.run import RunPhase, RunState
from slime_events.loop.conductor.decide import waits_for
from slime_events.model.progress import plan_in_force
from storage.log import Readable

UNDER_WAY = (SamplePhase.REQUESTED, SamplePhase.RUNNING)
LOOKAHEAD = 5_000
"""Number of events that `look_ahead` reads."""
_PLAIN = ("phase", "steps", "version", "published", "weights_digest", "waits_for")
NANO = 1e-9


class LaterEngine(NamedTuple):
    """Engine of a rollout, from the log after the moment."""

    engine: Annotated[str, doc("worker that had the rollout")]
    began_at: Annotated[int | None, doc("UTC at which it began to generate [ns]; None if unknown")]


def facts_of(moment: Moment, end: int, later: Mapping[str, LaterEngine] | None = None) -> dict[str, Any]:
    """Return the facts about a moment; see docs/time-travel.md for each field. end: last position of the log. later:
    result of `look_ahead`.
    """
    state, context, plan = moment.state, moment.context, plan_in_force(moment.context.starts)
    rollouts = _rollouts(moment, later or {})
    groups = [_group(group, moment) for group in state.groups.values()]
    open_groups = [group for group in groups if group["behind"] is not None]
    return {
        "run": state.run,
        "position": moment.position,
        "end": end,
        "at": context.at,
        "seconds": (context.at - context.first_at) * NANO,
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
        "decisions": msgspec.to_builtins(context.decisions),
        "workers": dict(context.workers),
        "cursors": dict(state.cursors),
        "counts": msgspec.to_builtins(state.counts),
        "rejections": dict(state.rejections),
    }


async def look_ahead(log: Readable, moment: Moment) -> dict[str, LaterEngine]:
    """Return the engines that had the unfinished rollouts of a moment, by sample, from up to `LOOKAHEAD` later events.

    An engine that takes a request appends nothing until it has a chunk or the end, so at the moment itself the log does
    not name it. Samples whose engine is still unknown are left out.
    """
    unknown = {s.sample for s in _under_way(moment.state) if s.sample not in moment.context.engines}
    later: dict[str, LaterEngine] = {}
    async with contextlib.aclosing(log.read(moment.position + 1)) as read:  # type: ignore[type-var]
        async for recorded in read:
            if later.keys() == unknown or recorded.position > moment.position + LOOKAHEAD:
                break
            sample, engine = _engine_of(recorded.envelope.event, recorded.envelope.at)
            if engine is not None and sample in unknown:
                later.setdefault(sample, engine)
    return later


def _engine_of(event: Event, at: int) -> tuple[str, LaterEngine | None]:
    """Return the sample of an event, and the engine that has it."""
    if isinstance(event, RolloutCompleted):
        took = event.timings.generating + event.timings.updating
        return event.rollout or event.sample, LaterEngine(event.engine, at - int(took * 1e9))
    if isinstance(event, RolloutProgressed | RolloutSuspended | RolloutFailed | TurnBegun):
        return event.sample, LaterEngine(event.engine, None)
    return "", None


def _under_way(state: RunState) -> list[SampleState]:
    return [s for group in state.groups.values() for s in group.samples.values() if s.phase in UNDER_WAY]


def _rollouts(moment: Moment, later: Mapping[str, LaterEngine]) -> list[dict[str, Any]]:
    """Return every unfinished rollout. begun: by the log up to the moment, or by a later record of the engine."""
    now, rollouts = moment.context.at, []
    for sample in _under_way(moment.state):
        engine, since = moment.context.engines.get(sample.sample), later.get(sample.sample)
        generating = since is not None and since.began_at is not None and since.began_at <= now
        rollouts.append({
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
    return rollouts


def _group(group: GroupState, moment: Moment) -> dict[str, Any]:
    samples, training = list(group.samples.values()), group.purpose is Purpose.TRAIN
    requested_at = [sample.requested_at for sample in samples if sample.requested_at]
    return {
        "group": group.group,
        "purpose": group.purpose.value,
        "dataset": group.dataset,
        "phase": group.phase.value,
        "samples": dict(Counter(sample.phase.value for sample in samples)),
        "tokens": sum(sample.length for sample in samples),
        "rewards": list(group.graded),
        "seconds": (moment.context.at - min(requested_at)) * NANO if requested_at else None,
        "version": group.version,
        "oldest": group.oldest if samples else None,
        "behind": _step_of(group, moment.state) - group.oldest if training and samples else None,
    }


def _step_of(group: GroupState, state: RunState) -> int:
    """Return the step that trains on a group, or the first that may."""
    if group.phase is GroupPhase.SEALED:
        return next(step for step, sealed in state.sealed.items() if group.group in sealed.groups)
    return state.next_step


def difference(facts: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Return the difference between two `facts_of`, in either order: counters as the increase, all else as old and new
    value.

    verdicts_left_out: number of verdicts between them that the later moment no longer has.
    """
    was, now = sorted((facts, others), key=lambda moment: moment["position"])
    counts = _added(was["counts"], now["counts"])
    decisions = [decision for decision in now["decisions"] if decision["position"] > was["position"]]
    verdicts = counts.get("groups_accepted", 0) + counts.get("groups_rejected", 0)
    left_out = verdicts - sum(decision["type"].startswith("group.") for decision in decisions)
    return {
        "run": now["run"],
        "from": {"position": was["position"], "at": was["at"]},
        "to": {"position": now["position"], "at": now["at"]},
        "events": now["position"] - was["position"],
        "seconds": (now["at"] - was["at"]) * 1e-9,
        "changed": {name: [was[name], now[name]] for name in _PLAIN if was[name] != now[name]},
        "backpressure": _moved(was["backpressure"], now["backpressure"]),
        "counts": counts,
        "rejections": _added(was["rejections"], now["rejections"]),
        "cursors": _moved(was["cursors"], now["cursors"]),
        "engines": _moved(*({e["engine"]: e["version"] for e in moment["engines"]} for moment in (was, now))),
        "groups": _groups(was, now, {d["about"] for d in decisions if d["type"] == "group.rejected"}, left_out),
        "decisions": decisions,
        "verdicts_left_out": left_out,
    }


def _moved(was: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    names = dict.fromkeys((*was, *now))
    return {name: [was.get(name), now.get(name)] for name in names if was.get(name) != now.get(name)}


def _added(was: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    return {name: value - was.get(name, 0) for name, value in now.items() if value != was.get(name, 0)}


def _groups(was: dict[str, Any], now: dict[str, Any], rejected: set[str], left_out: int) -> dict[str, Any]:
    """Return the groups that came (with their phase), went (with their fate), and moved (with a changed phase or
    samples).
    """
    before, after = ({g["group"]: g for g in facts["groups"]} for facts in (was, now))

    def fate(group: dict[str, Any]) -> str:
        if group["purpose"] != "train":
            return "evaluated"
        return "rejected" if group["group"] in rejected else "trained or rejected" if left_out else "trained"

    return {
        "came": {name: group["phase"] for name, group in after.items() if name not in before},
        "went": {name: fate(group) for name, group in before.items() if name not in after},
        "moved": {
            name: [_phase_of(before[name]), _phase_of(group)]
            for name, group in after.items()
            if name in before and _phase_of(before[name]) != _phase_of(group)
        },
    }


def _phase_of(group: dict[str, Any]) -> dict[str, Any]:
    return {name: group[name] for name in ("phase", "samples", "tokens")}
