"""`Around`: what a state forgets and a person who looks at one moment asks for: who did what, and what was decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.event import type_of
from schemas.groups import GroupAccepted, GroupRejected
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutSuspended
from schemas.runs import RunFailed, RunFinished, RunResumed, RunStarted
from schemas.steps import StepCommitted
from schemas.turns import TurnBegun
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.core.state.partial_events import PARTIAL_EVENTS, FoldedEvent

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

    def apply(self, position: int, told: FoldedEvent) -> None:
        """Fold one event in, or its short form."""
        self._time([told.at], position)
        self._look(position, told)

    def apply_all(self, first: int, events: Sequence[FoldedEvent]) -> None:
        """Fold in many that stand one after the other, from position `first` on."""
        self._time([told.at for told in events], first)
        for position, told in enumerate(events, first):
            if type(told.event) in _HANDLERS:
                self._look(position, told)

    def _time(self, times: Sequence[int], first: int) -> None:
        self.at, self.latest_at = times[-1], max(self.latest_at, *times)
        if first == 1:
            self.first_at = times[0]

    def _look(self, position: int, told: FoldedEvent) -> None:
        handler = _HANDLERS.get(type(told.event))
        if handler is not None and (found := handler(self, told.event)) is not None:
            about, reason, figures = found
            self.decisions.append(Decision(position, told.at, type_of(told.event), about, reason, figures))
            if len(self.decisions) >= 2 * KEPT:  # now and then the old ones are forgotten
                del self.decisions[:-KEPT]


Found = tuple[str, str, dict[str, float]]
"""Of what is to be remembered as decided: about what, why, on which figures."""


def _started(around: Around, event: RunStarted) -> Found:
    around.life.append(event)
    return "run", "", {}


def _resumed(around: Around, event: RunResumed) -> Found:
    around.life.append(event)
    around.engines, around.workers = {}, {}
    return "run", f"incarnation {event.incarnation}", {}


def _finished(around: Around, event: RunFinished) -> Found:
    return "run", event.reason.value, {"steps": event.steps, "events": event.events}


def _failed(around: Around, event: RunFailed) -> Found:
    return "run", f"{event.role}: {event.reason}", {}


def _taken(around: Around, event: RolloutProgressed | TurnBegun) -> None:
    around.engines[event.sample] = event.engine


def _let_go(around: Around, event: RolloutSuspended | RolloutFailed) -> None:
    around.engines.pop(event.sample, None)


def _completed(around: Around, event: RolloutCompleted) -> None:
    around.engines.pop(event.rollout or event.sample, None)


def _accepted(around: Around, event: GroupAccepted) -> Found:
    return event.group, _by(event.filter, event.reason or ""), event.figures


def _rejected(around: Around, event: GroupRejected) -> Found:
    for sample in event.samples:
        around.engines.pop(sample, None)
    return event.group, f"{event.cause.value}: {_by(event.filter, event.reason)}", event.figures


def _by(path: str, reason: str) -> str:
    return reason if path == "none" else f"{path}: {reason}" if reason else path


def _sealed(around: Around, event: BatchSealed) -> Found:
    figures: dict[str, float] = {
        "groups": len(event.groups),
        "samples": len(event.samples),
        "oldest_version": event.oldest_version,
    }
    if event.raw_rewards:
        figures["reward"] = sum(event.raw_rewards) / len(event.raw_rewards)
    return f"step {event.step}", "what is under way rests" if event.suspends else "", figures


def _committed(around: Around, event: StepCommitted) -> Found:
    figures: dict[str, float] = {"version": event.version, "samples": event.samples, "tokens": event.tokens}
    figures |= {"loss": event.metrics["loss"]} if "loss" in event.metrics else {}
    return f"step {event.step}", "", figures


def _evaluated(around: Around, event: EvalCompleted) -> Found:
    figures: dict[str, float] = {
        "version": event.version,
        "mean": event.mean,
        "samples": event.samples,
        "failed": event.failed,
    }
    return event.dataset, "", figures


def _joined(around: Around, event: WorkerJoined) -> None:
    around.workers[event.worker] = event.role


def _lost(around: Around, event: WorkerLost) -> None:
    around.workers.pop(event.worker, None)
    around.engines = {sample: engine for sample, engine in around.engines.items() if engine != event.worker}


_HANDLERS: dict[type, Callable[[Around, Any], Found | None]] = {
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
_HANDLERS |= {short: _HANDLERS[kind] for kind, short in PARTIAL_EVENTS.items() if kind in _HANDLERS}
