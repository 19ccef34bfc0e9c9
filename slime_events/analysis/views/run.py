"""`RunView`: a run's phase, steps, rewards, rejections, workers and files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from schemas.doc import doc
from schemas.evals import EvalCompleted
from schemas.groups import GroupRejected, RejectionCause
from schemas.placements import PlacementPlanned
from schemas.prompts import PromptRejected
from schemas.runs import Branched, RunFailed, RunFinished
from schemas.trainers import TrainerRestored
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.analysis.views.disk import Disk
from slime_events.core.state.run import Counts
from slime_events.model import Run
from slime_events.model.foreign import ForeignRecords
from slime_events.model.progress import NANO, Progress, StepLine, plan_in_force
from slime_events.model.rejections import Reason, reason_of
from slime_events.model.session_figures import EndedSessions

EXAMPLES = 3


class Staleness(msgspec.Struct, frozen=True, kw_only=True):
    """Versions by which samples are behind when they are trained on."""

    most: Annotated[int | None, doc("largest so far [versions]; None before the first step")]
    bound: Annotated[int | None, doc("limit [versions]; None if unknown, and for a learner")]


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """Groups that were rejected for one reason."""

    cause: Annotated[RejectionCause, doc("kind of the reason")]
    reason: Annotated[str, doc("the reason, without the ids of samples and groups")]
    groups: Annotated[int, doc("number of groups")]
    examples: Annotated[tuple[str, ...], doc("ids of a few groups")]


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a client that drives the run."""

    given: Annotated[int, doc("number of calls")]
    done: Annotated[int, doc("number of calls carried out")]
    models: Annotated[tuple[str, ...], doc("names of the client's models")]


class TurnAge(msgspec.Struct, frozen=True, kw_only=True):
    """A turn under way."""

    turn: Annotated[int, doc("index of the turn in the session")]
    age_s: Annotated[float, doc("time since it began [s]")]


class SessionAge(msgspec.Struct, frozen=True, kw_only=True):
    """An open session of an agent."""

    session: Annotated[str, doc("name, `<sample>.<attempt>`")]
    age_s: Annotated[float, doc("time since it was opened [s]")]
    turns: Annotated[tuple[TurnAge, ...], doc("turns under way")]


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """Agents' sessions."""

    ended: Annotated[EndedSessions, doc("sessions that have ended")]
    sessions: Annotated[tuple[SessionAge, ...], doc("open sessions, the oldest first")]


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run."""

    run: Annotated[str, doc("name of the run")]
    phase: Annotated[str, doc("running, finished, interrupted, failed, killed or unended")]
    ended: Annotated[RunFinished | RunFailed | None, doc("its end; None until then")]
    branched: Annotated[Branched | None, doc("point at which it branched off; None if it is not a branch")]
    started_at: Annotated[int, doc("UTC of the first event [ns]")]
    seconds: Annotated[float, doc("time in which it was up, over all incarnations [s]")]
    lives: Annotated[int, doc("number of incarnations")]
    events: Annotated[int, doc("number of events")]
    steps: Annotated[tuple[StepLine, ...], doc("its committed steps, or the newest of them")]
    rewards: Annotated[tuple[float, ...], doc("mean raw reward of every step")]
    steps_wanted: Annotated[int | None, doc("number of steps that are planned; None if unknown")]
    staleness: Annotated[Staleness, doc("versions by which samples are behind")]
    trainer_idle: Annotated[float | None, doc("share of the time in which the trainer had no work")]
    version: Annotated[int, doc("newest weight version")]
    weights_digest: Annotated[str, doc("sha256 (hex) of these weights")]
    evals: Annotated[tuple[EvalCompleted, ...], doc("evaluations that ended")]
    counts: Annotated[Counts, doc("totals since the start")]
    rejections: Annotated[tuple[Rejection, ...], doc("rejected groups by reason, the most frequent first")]
    bad_prompts: Annotated[tuple[PromptRejected, ...], doc("prompts that could not be used")]
    engines: Annotated[dict[str, int], doc("weight version of each engine")]
    placement: Annotated[PlacementPlanned | None, doc("where its processes were placed last; None in older logs")]
    restored: Annotated[tuple[TrainerRestored, ...], doc("trainers that took over")]
    workers: Annotated[tuple[WorkerJoined, ...], doc("workers that joined")]
    lost: Annotated[tuple[WorkerLost, ...], doc("workers that were lost")]
    open_groups: Annotated[int, doc("number of groups that are neither rejected nor trained on")]
    in_flight: Annotated[int, doc("number of rollouts that are requested and not ended")]
    foreign: Annotated[ForeignRecords, doc("records on the stream that are not events")]
    calls: Annotated[Calls | None, doc("calls of the client that drives the run; None if no client does")]
    agents: Annotated[Agents, doc("agents' sessions")]
    disk: Annotated[Disk | UnsetType, doc("its files; absent without a run folder")] = UNSET


def view_run(
    run: Run,
    progress: Progress,
    steps: Sequence[StepLine],
    phase: str,
    now: int,
    foreign: ForeignRecords,
    calls: Calls | None = None,
    disk: Disk | None = None,
) -> RunView:
    """Return a run. now: UTC to which the ages of open sessions count [ns]."""
    plan, state, figures = plan_in_force(entry.event for entry in run.lifetime), progress.state, progress.figures
    end = run.lifetime[-1].event if run.lifetime else None
    bound = None if plan is None or state.follows else plan.staleness_bound  # a learner requests no rollouts
    return RunView(
        run=run.run,
        phase=phase,
        ended=end if isinstance(end, RunFinished | RunFailed) else None,
        branched=run.branched,
        started_at=run.first_at,
        seconds=figures.time.on * NANO,
        lives=figures.time.lives,
        events=state.events,
        steps=tuple(steps),
        rewards=tuple(figures.rewards),
        steps_wanted=plan.steps if plan else None,
        staleness=Staleness(most=figures.staleness, bound=bound),
        trainer_idle=progress.trainer_idle,
        version=state.version,
        weights_digest=state.weights_digest,
        evals=tuple(entry.event for entry in run.evals),
        counts=state.counts,
        rejections=_rejections(run),
        bad_prompts=tuple(entry.event for entry in run.bad_prompts),
        engines=dict(state.activated),
        placement=None if state.placement is UNSET else state.placement,
        restored=tuple(entry.event for version in run.versions.values() for entry in version.restored),
        workers=tuple(entry.event for entry in run.workers.values()),
        lost=tuple(entry.event for entry in run.lost),
        open_groups=state.open_groups,
        in_flight=progress.in_flight,
        foreign=foreign,
        calls=calls,
        agents=_agents(progress, now),
        disk=UNSET if disk is None else disk,
    )


def _agents(progress: Progress, now: int) -> Agents:
    def age(at: int) -> float:
        return max(0, now - at) * NANO

    opened = sorted(progress.figures.sessions.values(), key=lambda session: session.opened_at)
    return Agents(
        ended=progress.figures.ended,
        sessions=tuple(
            SessionAge(
                session=session.session,
                age_s=age(session.opened_at),
                turns=tuple(TurnAge(turn=turn, age_s=age(at)) for turn, at in session.turns.items()),
            )
            for session in opened
        ),
    )


def _rejections(run: Run) -> tuple[Rejection, ...]:
    """Return rejected groups by cause and reason, the most frequent first, with a few of their ids."""
    groups: dict[Reason, list[str]] = {}
    for group in run.groups.values():
        if group.verdict and isinstance(group.verdict.event, GroupRejected):
            groups.setdefault(reason_of(group.verdict.event), []).append(group.group)
    return tuple(
        Rejection(cause=reason.cause, reason=reason.text, groups=len(ids), examples=tuple(ids[:EXAMPLES]))
        for reason, ids in sorted(groups.items(), key=lambda item: -len(item[1]))
    )
