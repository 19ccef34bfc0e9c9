"""`event_line`: one event in one readable line. Never a raw array."""

from collections.abc import Callable
from typing import Any

from schemas.archives import ArchiveSealed
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.evals import EvalCompleted
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import (
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
    RolloutSuspended,
)
from schemas.runs import RunFailed, RunFinished, RunResumed, RunStarted
from schemas.steps import StepClaimed, StepCommitted
from schemas.turns import TurnBegun, TurnRecorded
from schemas.weights import WeightsActivated, WeightsPublished
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.app.cli.render.text import clock, figures_text, shorten, spans_text
from storage.log import Recorded

TEXT_WIDTH = 60


def event_line(recorded: Recorded) -> str:
    """Position, time, type, what it is about, and the figures that matter."""
    event = recorded.envelope.event
    figures = _FIGURES.get(type(event), lambda _: "")(event)
    head = f"{recorded.position:>7} {clock(recorded.envelope.at)}  {recorded.envelope.type:<18} {event.entity()}"
    return f"{head}  {figures}".rstrip()


def _quoted(text: str) -> str:
    return f'"{shorten(text, TEXT_WIDTH)}"'


def _prompt_submitted(e: PromptSubmitted) -> str:
    key = f" key {e.source.key}" if e.source.key else ""
    return f"{e.dataset}{key} {e.tokens.n} tokens {_quoted(e.text)}"


def _completed(e: RolloutCompleted) -> str:
    return f"{e.length} tokens {e.stop} {spans_text(e.spans)} {e.timings.generating:.2f} s {_quoted(e.text)}"


def _accepted(e: GroupAccepted) -> str:
    return f"by {e.filter} {figures_text(e.figures)}" + (f" ({e.reason})" if e.reason else "")


def _turn(e: TurnBegun | TurnRecorded) -> str:
    if e.call is not None:
        return f"calls {e.call.name}"
    return f"{e.role} {e.length} tokens {spans_text(e.spans)}" if isinstance(e, TurnRecorded) else str(e.role)


def _sealed(e: BatchSealed) -> str:
    mean = sum(e.raw_rewards) / len(e.raw_rewards) if e.raw_rewards else 0.0
    suspends = ", rollouts in flight are suspended" if e.suspends else ""
    return f"{len(e.groups)} groups {len(e.samples)} samples reward {mean:.3f} oldest v{e.oldest_version}{suspends}"


def _committed(e: StepCommitted) -> str:
    loss = f" loss {e.metrics['loss']:.4g}" if "loss" in e.metrics else ""
    return f"v{e.parent_version} -> v{e.version} {e.samples} samples {e.tokens} tokens{loss} {_seconds(e.seconds)}"


def _seconds(parts: dict[str, float]) -> str:
    return " ".join(f"{name} {value:.2f} s" for name, value in parts.items())


_FIGURES: dict[type[Event], Callable[[Any], str]] = {
    RunStarted: lambda e: f"slime-events {e.code_version}",
    RunResumed: lambda e: f"incarnation {e.incarnation}, slime-events {e.code_version}",
    RunFinished: lambda e: f"{e.reason} after {e.steps} steps, {e.events} events, state {e.state_digest[:12]}",
    RunFailed: lambda e: f"{e.role}: {e.reason}",
    PromptSubmitted: _prompt_submitted,
    PromptRejected: lambda e: f"{e.source.path}:{e.source.line} {e.reason}",
    RolloutRequested: lambda e: f"attempt {e.attempt} from v{e.min_version} at most {e.sampling.max_new_tokens} tokens",
    RolloutProgressed: lambda e: f"tokens {e.start} to {e.start + e.tokens.n} {spans_text(e.spans)} on {e.engine}",
    RolloutCompleted: _completed,
    RolloutSuspended: lambda e: f"{e.reason} with {e.length} tokens",
    TurnBegun: lambda e: f"turn {e.index} {_turn(e)} on {e.engine}",
    TurnRecorded: lambda e: f"turn {e.index} {_turn(e)} in {e.seconds:.2f} s",
    RolloutFailed: lambda e: f"attempt {e.attempt} {e.kind}: {e.message}",
    RewardAssigned: lambda e: f"{e.value:.4g} by {e.grader} in {e.seconds * 1e3:.1f} ms",
    RewardFailed: lambda e: f"{e.kind} by {e.grader}: {e.message}",
    GroupAccepted: _accepted,
    GroupRejected: lambda e: f"{e.cause} by {e.filter}: {e.reason} {figures_text(e.figures)}".rstrip(),
    BatchSealed: _sealed,
    StepClaimed: lambda e: f"by {e.trainer}",
    StepCommitted: _committed,
    WeightsPublished: lambda e: f"{e.kind} {e.bytes / 1e6:.1f} MB digest {e.digest[:12]} {e.url}",
    WeightsActivated: lambda e: f"on {e.engine} in {e.seconds:.2f} s, {e.lag:.2f} s after publication",
    EvalCompleted: lambda e: f"mean {e.mean:.3f} over {e.samples} samples, {e.failed} failed",
    CheckpointSaved: lambda e: f"{e.url} in {e.seconds:.1f} s",
    ArchiveSealed: lambda e: f"positions {e.first} to {e.last}, {e.bytes / 1e6:.1f} MB",
    WorkerJoined: lambda e: f"{e.role} pid {e.pid} {_seconds(e.seconds)}",
    WorkerLost: lambda e: f"{e.role}: {e.reason}",
}
