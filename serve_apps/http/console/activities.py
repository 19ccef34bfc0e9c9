"""`activities_of`: who does what in a run that is on, and who waits for what since when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

import msgspec

from schemas.doc import doc
from serve_apps.http.console.rows import literal
from slime_events.analysis.timetravel.moment_view import EngineView, MomentView
from slime_events.core.config.settings import TrainSettings
from slime_events.core.state.group import SamplePhase
from slime_events.model.progress import NANO

OPEN = "SELECT sample, status, requested, engine, attempts FROM samples WHERE status = 'requested'"
UNGRADED = (
    "SELECT sample, completed, engine FROM samples WHERE status = 'completed' AND reward IS NULL "
    "AND reward_failure IS NULL ORDER BY completed"
)
PROMPTS = "SELECT group_id, submitted, source, key FROM prompts ORDER BY position DESC LIMIT 50"
SEALED = "SELECT step, sealed, groups, samples FROM steps WHERE committed IS NULL ORDER BY step"
STEPS = "SELECT step, committed, seconds FROM steps ORDER BY step DESC LIMIT 10"
DECIDED = "SELECT group_id, verdict, cause, reason, decided, step FROM groups ORDER BY decided DESC NULLS LAST LIMIT 50"


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Work of one part of a run, or its wait."""

    who: Annotated[str, doc("the conductor, the trainer, the graders, or an engine by its name")]
    does: Annotated[str, doc("what it does, or waits for")]
    waits: Annotated[bool, doc("whether it waits")]
    since: Annotated[int | None, doc("UTC since when [ns]; None if the log does not say")]
    evidence: Annotated[str, doc("query for the rows behind it")]
    deadline: Annotated[
        int | None, doc("UTC at which the run fails if nothing happens until then [ns]; None: never")
    ] = None
    mend: Annotated[str | None, doc("command that helps after the run was stopped, or while it is on; None: none")] = (
        None
    )


class Waited(NamedTuple):
    """Facts about waits that the view of a moment does not have."""

    settings: Annotated[TrainSettings, doc("settings in force")]
    argument: Annotated[str, doc("names the run to a command")]
    ungraded_since: Annotated[
        int | None, doc("UTC of the oldest completed sample without a reward [ns]; None: unknown")
    ]


def activities_of(view: MomentView, waited: Waited) -> tuple[Activity, ...]:
    """Return who does what at a moment, in the order of a rollout's way. Empty if the run is not running."""
    if view.waits_for is None:
        return ()
    return (*_rollouts(view), _graders(view, waited), _conductor(view, waited), _trainer(view))


def has_ungraded(view: MomentView) -> bool:
    """Whether a completed sample waits for its reward."""
    return any(group.samples.get(SamplePhase.COMPLETED) for group in view.groups)


def _rollouts(view: MomentView) -> Iterator[Activity]:
    waiting = view.backpressure.prompts_waiting
    if waiting:
        does = f"{waiting} wait for a place among the open groups"
        yield Activity(who="prompts from outside", does=does, waits=True, since=None, evidence=PROMPTS)
    for engine in view.engines:
        yield _engine(view, engine)
    if view.queued:
        does = f"{len(view.queued)} are requested, and the log has no token of them yet"
        since = _since(view, (rollout.seconds for rollout in view.queued))
        yield Activity(who="rollouts", does=does, waits=True, since=since, evidence=f"{OPEN} ORDER BY requested")


def _engine(view: MomentView, engine: EngineView) -> Activity:
    sql = f"{OPEN} ORDER BY requested"
    if not engine.rollouts:
        does = "has no rollout of which the log has a token"
        return Activity(who=engine.engine, does=does, waits=not view.queued, since=None, evidence=sql)
    tokens = sum(rollout.tokens for rollout in engine.rollouts)
    count = len(engine.rollouts)
    does = f"generates {count} rollout{'' if count == 1 else 's'} with weights v{engine.version}"
    does += f", {tokens:,} tokens so far" if tokens else ""
    since = _since(view, (rollout.seconds for rollout in engine.rollouts))
    named = ", ".join(literal(rollout.sample) for rollout in engine.rollouts)
    return Activity(
        who=engine.engine,
        does=does,
        waits=False,
        since=since,
        evidence=f"SELECT sample, requested, versions, attempts FROM samples WHERE sample IN ({named})",
    )


def _graders(view: MomentView, waited: Waited) -> Activity:
    ungraded = sum(group.samples.get(SamplePhase.COMPLETED, 0) for group in view.groups)
    if not ungraded:
        return Activity(who="graders", does="wait for completed samples", waits=True, since=None, evidence=UNGRADED)
    reward = waited.settings.reward
    return Activity(
        who="graders",
        does=f"grade {ungraded} samples, each for at most {reward.rm_timeout:g} s (--rm-timeout)",
        waits=False,
        since=waited.ungraded_since,
        evidence=UNGRADED,
        mend=f"slime-events resume {waited.argument} --rm-workers {2 * reward.rm_workers}",
    )


def _conductor(view: MomentView, waited: Waited) -> Activity:
    since, settings = view.decisions[-1].at if view.decisions else None, waited.settings
    limit_s, has_outsiders = (
        settings.rollout.rollout_deadline,
        settings.data.waits_for_producers or settings.rollout.agents,
    )
    if settings.data.waits_for_producers and not view.groups and not view.sealed:
        mend = f"slime-events produce {waited.argument} prompts.jsonl"
    else:
        mend = f"slime-events resume {waited.argument} --rollout-deadline {2 * limit_s:g}"
    return Activity(
        who="conductor",
        does=f"waits for {view.waits_for}",
        waits=True,
        since=since,
        evidence=DECIDED,
        deadline=None if has_outsiders else view.at + round(limit_s / NANO),
        mend=mend,
    )


def _trainer(view: MomentView) -> Activity:
    if view.sealed:
        step = min(batch.step for batch in view.sealed)
        since = _last(view, "batch.sealed", str(step))
        return Activity(who="trainer", does=f"trains step {step}", waits=False, since=since, evidence=SEALED)
    since = _last(view, "step.committed")
    does = f"waits for the batch of step {view.steps}" if view.steps_wanted != view.steps else "has trained all steps"
    return Activity(who="trainer", does=does, waits=True, since=since, evidence=STEPS)


def _last(view: MomentView, kind: str, about: str | None = None) -> int | None:
    """Return the time of the newest decision of a type, of one step if `about` names it."""
    times = (d.at for d in reversed(view.decisions) if d.type == kind and about in (None, d.about.split()[-1]))
    return next(times, None)


def _since(view: MomentView, seconds: Iterable[float]) -> int:
    """Return the time of the oldest request. seconds: ages of the requests at the moment."""
    return view.at - round(max(seconds) / NANO)
