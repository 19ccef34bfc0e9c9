"""`MomentView`: a run at one position of its log, with its engines, rollouts, groups and latest decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from schemas.doc import doc
from schemas.event import Purpose
from slime_events.analysis.timetravel.moment import Moment, RunDecision
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase, SampleState
from slime_events.core.state.run import Counts, RunPhase, RunState
from slime_events.loop.conductor.decide import waits_for
from slime_events.model.progress import NANO, plan_in_force
from slime_events.model.run_status import RunStatus

UNDER_WAY = (SamplePhase.REQUESTED, SamplePhase.RUNNING)


class LaterEngine(NamedTuple):
    """Engine of a rollout, from the log after the moment."""

    engine: Annotated[str, doc("worker that had the rollout")]
    began_at: Annotated[int | None, doc("UTC at which it began to generate [ns]; None if unknown")]


class Backpressure(msgspec.Struct, frozen=True, kw_only=True):
    """Open groups, and how many more may be opened."""

    open: Annotated[int, doc("number of groups that are neither rejected nor trained on")]
    room: Annotated[int | None, doc("most open groups that the settings allow; None if unknown")]
    unsealed: Annotated[int, doc("number of open groups that are in no batch")]
    prompts_waiting: Annotated[int, doc("number of prompts from outside that wait for a place")]


class Staleness(msgspec.Struct, frozen=True, kw_only=True):
    """Versions by which the open groups are behind."""

    bound: Annotated[int | None, doc("limit [versions]; None if unknown")]
    behind: Annotated[dict[int, int], doc("number of open groups by `OpenGroup.behind`, ascending")]


class OpenRollout(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout that has not ended."""

    sample: Annotated[str, doc("id of the sample")]
    engine: Annotated[str | None, doc("engine that generates it, or will; None if unknown")]
    begun: Annotated[bool, doc("its generation has begun, by the log so far or by a later record of the engine")]
    said_later: Annotated[bool, doc("only the log after the moment names the engine")]
    tokens: Annotated[int, doc("response length so far [tokens]")]
    oldest: Annotated[int | None, doc("oldest weight version of its tokens; None without tokens")]
    newest: Annotated[int | None, doc("newest weight version of its tokens; None without tokens")]
    min_version: Annotated[int, doc("oldest weights that its request allows")]
    attempt: Annotated[int, doc("index of the attempt, from 0")]
    seconds: Annotated[float, doc("time since its request [s]; below 0 if writers' clocks differ")]


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """An engine."""

    engine: Annotated[str, doc("name of the worker")]
    version: Annotated[int | None, doc("weight version that it runs; None before the first")]
    rollouts: Annotated[tuple[OpenRollout, ...], doc("rollouts that it generates")]


class OpenGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that is neither rejected nor trained on, nor evaluated."""

    group: Annotated[str, doc("id of the group")]
    purpose: Annotated[Purpose, doc("training, or an evaluation")]
    dataset: Annotated[str, doc("`train`, `inbox`, or the name of the evaluation")]
    phase: Annotated[GroupPhase, doc("stage of the group")]
    samples: Annotated[dict[SamplePhase, int], doc("number of its samples by stage")]
    tokens: Annotated[int, doc("response tokens of all its samples so far")]
    rewards: Annotated[tuple[float, ...], doc("rewards as graded, of the samples that have one")]
    seconds: Annotated[float | None, doc("time since its first request [s]; None before it")]
    version: Annotated[int, doc("weights at its request, or that an evaluation measures; -1 before its request")]
    oldest: Annotated[int | None, doc("oldest weights of its tokens, or that they may get; None without samples")]
    behind: Annotated[int | None, doc("versions from `oldest` to the first step that can train it; None if none can")]


class SealedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch whose step is not committed."""

    step: Annotated[int, doc("number of the step, from 0")]
    groups: Annotated[tuple[str, ...], doc("ids of its groups")]
    digest: Annotated[str, doc("digest of the batch")]


class OpenEval(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation that has not ended."""

    dataset: Annotated[str, doc("name of the evaluation")]
    version: Annotated[int, doc("weight version that it measures")]
    groups: Annotated[int, doc("number of its groups")]


class MomentView(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one position of its log."""

    run: Annotated[str, doc("name of the run")]
    position: Annotated[int, doc("position of the last event that counts")]
    end: Annotated[int, doc("last position of the log")]
    at: Annotated[int, doc("UTC of the event at `position` [ns]")]
    seconds: Annotated[float, doc("time since the first event [s]")]
    phase: Annotated[str, doc("new, running, finished or failed; killed or unended if no launcher ran it then")]
    failure: Annotated[str, doc("why the run failed; empty if it did not")]
    waits_for: Annotated[str | None, doc("what the conductor waits for, in words; None if the run is not running")]
    steps: Annotated[int, doc("number of committed steps")]
    steps_wanted: Annotated[int | None, doc("number of steps that are planned; None if unknown")]
    version: Annotated[int, doc("newest weight version")]
    published: Annotated[int, doc("newest published weight version")]
    weights_digest: Annotated[str, doc("sha256 (hex) of the newest weights")]
    backpressure: Annotated[Backpressure, doc("open groups, and how many more may be opened")]
    staleness: Annotated[Staleness, doc("versions by which the open groups are behind")]
    engines: Annotated[tuple[EngineView, ...], doc("engines by name, with the rollouts that they generate")]
    queued: Annotated[tuple[OpenRollout, ...], doc("rollouts that no engine has begun")]
    groups: Annotated[tuple[OpenGroup, ...], doc("open groups")]
    sealed: Annotated[tuple[SealedBatch, ...], doc("batches that are being trained on or wait for it")]
    evals: Annotated[tuple[OpenEval, ...], doc("evaluations under way")]
    decisions: Annotated[tuple[RunDecision, ...], doc("latest decisions, the oldest first")]
    workers: Annotated[dict[str, str], doc("role by worker")]
    cursors: Annotated[dict[str, int], doc("number of prompts drawn by source")]
    counts: Annotated[Counts, doc("totals since the start")]
    rejections: Annotated[dict[str, int], doc("number of rejected groups by cause")]


def view_moment(
    moment: Moment, end: int, later: Mapping[str, LaterEngine] | None = None, status: RunStatus | None = None
) -> MomentView:
    """Return the view of a moment.

    end: last position of the log. later: engines of unfinished rollouts by sample, from the log after the moment.
    status: status of the run if no launcher ran it at this moment.
    """
    state, context, plan = moment.state, moment.context, plan_in_force(moment.context.starts)
    rollouts = _rollouts(moment, later or {})
    groups = tuple(_group(group, moment) for group in state.groups.values())
    is_waiting = plan is not None and state.phase is RunPhase.RUNNING and status is None
    return MomentView(
        run=state.run,
        position=moment.position,
        end=end,
        at=context.at,
        seconds=(context.at - context.first_at) * NANO,
        phase=str(status or state.phase),
        failure=state.failure,
        waits_for=waits_for(state, plan) if plan and is_waiting else None,
        steps=state.steps,
        steps_wanted=plan.steps if plan else None,
        version=state.version,
        published=state.published,
        weights_digest=state.weights_digest,
        backpressure=Backpressure(
            open=state.open_groups,
            room=plan.room if plan else None,
            unsealed=state.unsealed_groups,
            prompts_waiting=len(state.waiting),
        ),
        staleness=Staleness(bound=plan.staleness_bound if plan else None, behind=_behind(groups)),
        engines=_engines(state, rollouts),
        queued=tuple(rollout for rollout in rollouts if not rollout.begun),
        groups=groups,
        sealed=tuple(
            SealedBatch(step=step, groups=tuple(sealed.groups), digest=sealed.digest)
            for step, sealed in state.sealed.items()
        ),
        evals=tuple(OpenEval(dataset=e.dataset, version=e.version, groups=len(e.groups)) for e in state.evals.values()),
        decisions=tuple(context.decisions),
        workers=dict(context.workers),
        cursors=dict(state.cursors),
        counts=msgspec.structs.replace(state.counts),
        rejections=dict(state.rejections),
    )


def open_samples(state: RunState) -> list[SampleState]:
    """Return the samples whose rollouts have not ended."""
    return [s for group in state.groups.values() for s in group.samples.values() if s.phase in UNDER_WAY]


def _rollouts(moment: Moment, later: Mapping[str, LaterEngine]) -> list[OpenRollout]:
    now, rollouts = moment.context.at, []
    for sample in open_samples(moment.state):
        engine, since = moment.context.engines.get(sample.sample), later.get(sample.sample)
        generating = since is not None and since.began_at is not None and since.began_at <= now
        rollouts.append(
            OpenRollout(
                sample=sample.sample,
                engine=engine or (since.engine if since else None),
                begun=engine is not None or generating,
                said_later=engine is None and since is not None,
                tokens=sample.length,
                oldest=sample.oldest,
                newest=sample.newest,
                min_version=sample.min_version,
                attempt=sample.attempt,
                seconds=(now - sample.requested_at) * NANO,
            )
        )
    return rollouts


def _engines(state: RunState, rollouts: Sequence[OpenRollout]) -> tuple[EngineView, ...]:
    own: dict[str, list[OpenRollout]] = {engine: [] for engine in state.activated}
    for rollout in rollouts:
        if rollout.begun and rollout.engine is not None:
            own.setdefault(rollout.engine, []).append(rollout)
    return tuple(
        EngineView(engine=engine, version=state.activated.get(engine), rollouts=tuple(generated))
        for engine, generated in sorted(own.items())
    )


def _behind(groups: Sequence[OpenGroup]) -> dict[int, int]:
    return dict(sorted(Counter(group.behind for group in groups if group.behind is not None).items()))


def _group(group: GroupState, moment: Moment) -> OpenGroup:
    samples, training = list(group.samples.values()), group.purpose is Purpose.TRAIN
    requested_at = [sample.requested_at for sample in samples if sample.requested_at]
    return OpenGroup(
        group=group.group,
        purpose=group.purpose,
        dataset=group.dataset,
        phase=group.phase,
        samples=dict(Counter(sample.phase for sample in samples)),
        tokens=sum(sample.length for sample in samples),
        rewards=tuple(group.graded),
        seconds=(moment.context.at - min(requested_at)) * NANO if requested_at else None,
        version=group.version,
        oldest=group.oldest if samples else None,
        behind=_step_of(group, moment.state) - group.oldest if training and samples else None,
    )


def _step_of(group: GroupState, state: RunState) -> int:
    """Return the step that trains on a group, or the first that may."""
    if group.phase is GroupPhase.SEALED:
        return next(step for step, sealed in state.sealed.items() if group.group in sealed.groups)
    return state.next_step
