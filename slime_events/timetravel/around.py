"""`Around`: what a state forgets and a person who looks at one moment asks for: who did what, and what was decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutSuspended
from schemas.runs import RunFailed, RunFinished, RunResumed, RunStarted
from schemas.steps import StepCommitted
from schemas.turns import TurnBegun
from schemas.workers import WorkerJoined, WorkerLost
from storage.log import Recorded

VERSION = 1
"""Raised with every change of this struct or of what is folded into it."""

KEPT = 400
"""Decisions that are remembered: some steps of a large batch."""


class Decision(msgspec.Struct, frozen=True):
    """What was decided, or came of it. type: of its event; about: group, step, dataset. at: UTC nanoseconds."""

    position: int
    at: int
    type: str
    about: str
    reason: str = ""
    figures: dict[str, float] = {}


class Around(msgspec.Struct, kw_only=True):
    """first_at, at, latest_at: times of the first event, of the last, and the latest of all (UTC nanoseconds; writers'
    clocks differ by a little). life: run.started and what resumed it, for the settings. engines: which engine is on a
    rollout, by sample, from its first tokens on. workers: role by worker, of those that joined and were not lost.
    decisions: the last ones, oldest first.
    """

    first_at: int = 0
    at: int = 0
    latest_at: int = 0
    life: list[RunStarted | RunResumed] = []
    engines: dict[str, str] = {}
    workers: dict[str, str] = {}
    decisions: list[Decision] = []

    def apply(self, recorded: Recorded) -> None:
        """Fold one event in."""
        at = recorded.envelope.at
        self.at, self.first_at, self.latest_at = at, self.first_at or at, max(self.latest_at, at)
        handler = _HANDLERS.get(type(recorded.envelope.event))
        if handler is not None:
            handler(self, recorded.envelope.event, recorded)

    def decided(
        self, recorded: Recorded, about: str, reason: str = "", figures: dict[str, float] | None = None
    ) -> None:
        """One more; those that are old are forgotten now and then."""
        self.decisions.append(
            Decision(recorded.position, recorded.envelope.at, recorded.envelope.type, about, reason, figures or {})
        )
        if len(self.decisions) >= 2 * KEPT:
            del self.decisions[:-KEPT]


def _started(around: Around, event: RunStarted, recorded: Recorded) -> None:
    around.life.append(event)
    around.decided(recorded, "run")


def _resumed(around: Around, event: RunResumed, recorded: Recorded) -> None:
    around.life.append(event)
    around.engines, around.workers = {}, {}
    around.decided(recorded, "run", f"incarnation {event.incarnation}")


def _finished(around: Around, event: RunFinished, recorded: Recorded) -> None:
    around.decided(recorded, "run", event.reason.value, {"steps": event.steps, "events": event.events})


def _failed(around: Around, event: RunFailed, recorded: Recorded) -> None:
    around.decided(recorded, "run", f"{event.role}: {event.reason}")


def _taken(around: Around, event: RolloutProgressed | TurnBegun, recorded: Recorded) -> None:
    around.engines[event.sample] = event.engine


def _let_go(around: Around, event: RolloutSuspended | RolloutFailed, recorded: Recorded) -> None:
    around.engines.pop(event.sample, None)


def _completed(around: Around, event: RolloutCompleted, recorded: Recorded) -> None:
    around.engines.pop(event.rollout or event.sample, None)


def _accepted(around: Around, event: GroupAccepted, recorded: Recorded) -> None:
    around.decided(recorded, event.group, _by(event.filter, event.reason or ""), event.figures)


def _rejected(around: Around, event: GroupRejected, recorded: Recorded) -> None:
    for sample in event.samples:
        around.engines.pop(sample, None)
    around.decided(recorded, event.group, f"{event.cause.value}: {_by(event.filter, event.reason)}", event.figures)


def _by(path: str, reason: str) -> str:
    return reason if path == "none" else f"{path}: {reason}" if reason else path


def _sealed(around: Around, event: BatchSealed, recorded: Recorded) -> None:
    figures: dict[str, float] = {
        "groups": len(event.groups),
        "samples": len(event.samples),
        "oldest_version": event.oldest_version,
    }
    if event.raw_rewards:
        figures["reward"] = sum(event.raw_rewards) / len(event.raw_rewards)
    around.decided(recorded, f"step {event.step}", "what is under way rests" if event.suspends else "", figures)


def _committed(around: Around, event: StepCommitted, recorded: Recorded) -> None:
    figures: dict[str, float] = {"version": event.version, "samples": event.samples, "tokens": event.tokens}
    figures |= {"loss": event.metrics["loss"]} if "loss" in event.metrics else {}
    around.decided(recorded, f"step {event.step}", "", figures)


def _evaluated(around: Around, event: EvalCompleted, recorded: Recorded) -> None:
    figures: dict[str, float] = {
        "version": event.version,
        "mean": event.mean,
        "samples": event.samples,
        "failed": event.failed,
    }
    around.decided(recorded, event.dataset, "", figures)


def _joined(around: Around, event: WorkerJoined, recorded: Recorded) -> None:
    around.workers[event.worker] = event.role


def _lost(around: Around, event: WorkerLost, recorded: Recorded) -> None:
    around.workers.pop(event.worker, None)
    around.engines = {sample: engine for sample, engine in around.engines.items() if engine != event.worker}


_HANDLERS: dict[type[Event], Callable[[Around, Any, Recorded], None]] = {
    RunStarted: _started,
    RunResumed: _resumed,
    RunFinished: _finished,
    RunFailed: _failed,
    RolloutProgressed: _taken,
    TurnBegun: _taken,
    RolloutSuspended: _let_go,
    RolloutFailed: _let_go,
    RolloutCompleted: _completed,
    GroupAccepted: _accepted,
    GroupRejected: _rejected,
    BatchSealed: _sealed,
    StepCommitted: _committed,
    EvalCompleted: _evaluated,
    WorkerJoined: _joined,
    WorkerLost: _lost,
}
