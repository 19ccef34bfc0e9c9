"""`Moment`: a run at one position of its log. One pass folds the conductor's state, and `Context` around it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.evals import EvalCompleted
from schemas.event import Event, type_of
from schemas.groups import GroupAccepted, GroupRejected
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutSuspended
from schemas.runs import RunFailed, RunFinished, RunResumed, RunStarted
from schemas.steps import StepCommitted
from schemas.turns import TurnBegun
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.core.state.apply import apply, apply_all
from slime_events.core.state.partial_events import PARTIAL_EVENTS, FoldedEvent, read_partial_events
from slime_events.core.state.run import RunState
from storage.event_block import EventBlock
from storage.log import Recorded

VERSION = 4
"""Increase it with every change of `Context`, of the events folded into it, or of the index over stored moments."""
KEPT = 400
"""Number of decisions that are kept at least: some steps with large batches."""


class RunDecision(msgspec.Struct, frozen=True):
    """A decision of the run, or an outcome of one."""

    position: Annotated[int, doc("position of its event")]
    at: Annotated[int, doc("UTC [ns]")]
    type: Annotated[str, doc("type of its event")]
    about: Annotated[str, doc("its subject: a group, step, data set, or the run")]
    reason: Annotated[str, doc("reason or detail, in words")] = ""
    figures: Annotated[dict[str, float], doc("figures of the decision by name")] = {}


class Context(msgspec.Struct, kw_only=True):
    """Facts about a moment that the state does not keep: who does what, and the latest decisions."""

    first_at: Annotated[int, doc("UTC of the first event [ns]")] = 0
    at: Annotated[int, doc("UTC of the last event [ns]")] = 0
    latest_at: Annotated[int, doc("latest UTC of all events [ns]; writers' clocks differ slightly")] = 0
    starts: Annotated[list[RunStarted | RunResumed], doc("run.started and resumptions, which have the settings")] = []
    engines: Annotated[dict[str, str], doc("engine that generates a rollout, by sample, from its first tokens on")] = {}
    workers: Annotated[dict[str, str], doc("role by worker, for workers that joined and were not lost")] = {}
    decisions: Annotated[list[RunDecision], doc("latest decisions, oldest first")] = []

    def apply_all(self, first: int, events: Sequence[FoldedEvent], *, is_first: bool) -> None:
        """Fold in consecutive events or their short forms, from position `first` on. is_first: they begin the log."""
        times = [event.at for event in events]
        if is_first:
            self.first_at = times[0]
        self.at, self.latest_at = times[-1], max(self.latest_at, *times)
        for position, event in enumerate(events, first):
            handler = _HANDLERS.get(type(event.event))
            if handler is not None and (decided := handler(self, event.event)) is not None:
                self.decisions.append(RunDecision(position, event.at, type_of(event.event), *decided))
                if len(self.decisions) >= 2 * KEPT:  # old ones are dropped from time to time
                    del self.decisions[:-KEPT]


@dataclass(slots=True)
class Moment:
    """A run at one position of its log."""

    state: Annotated[RunState, doc("fold of everything up to `position`")]
    context: Annotated[Context, doc("facts that the state does not keep")] = field(default_factory=Context)
    before: Annotated[str, doc("chain before the last event (hex), against which snapshots are checked")] = ""
    last: Annotated[Recorded | None, doc("event at `position`; None if unknown")] = None

    @property
    def position(self) -> int:
        return self.state.position

    def apply(self, recorded: Recorded) -> None:
        self.before, is_first = self.state.chain, not self.position
        apply(self.state, recorded)
        self.context.apply_all(recorded.position, (recorded.envelope,), is_first=is_first)
        self.last = recorded

    def apply_all(self, block: EventBlock) -> None:
        """Fold in many events. `last` is unknown afterwards."""
        parts, is_first = list(read_partial_events(block.parts, decisions=True)), not self.position
        apply_all(self.state, parts, block.chain.hex())
        for number, (first, events) in enumerate(parts):
            self.context.apply_all(first, events, is_first=is_first and not number)
        self.before, self.last = block.before.hex(), None


Decided = tuple[str, str, dict[str, float]]
"""Subject, reason and figures of a decision."""


def _started(context: Context, event: RunStarted | RunResumed) -> Decided:
    context.starts.append(event)
    context.engines, context.workers = {}, {}
    return "run", f"incarnation {event.incarnation}" if isinstance(event, RunResumed) else "", {}


def _release(context: Context, *samples: str) -> None:
    for sample in samples:
        context.engines.pop(sample, None)


def _rejected(context: Context, event: GroupRejected) -> Decided:
    _release(context, *event.samples)
    return event.group, f"{event.cause.value}: {_by(event.filter, event.reason)}", event.figures


def _by(path: str, reason: str) -> str:
    return reason if path == "none" else f"{path}: {reason}" if reason else path


def _sealed(context: Context, event: BatchSealed) -> Decided:
    figures: dict[str, float] = {"groups": len(event.groups), "samples": len(event.samples)}
    figures["oldest_version"] = event.oldest_version
    if event.raw_rewards:
        figures["reward"] = sum(event.raw_rewards) / len(event.raw_rewards)
    return f"step {event.step}", "suspends running rollouts" if event.suspends else "", figures


def _committed(context: Context, event: StepCommitted) -> Decided:
    loss = {"loss": event.metrics["loss"]} if "loss" in event.metrics else {}
    return f"step {event.step}", "", _figures(event, "version", "samples", "tokens") | loss


def _figures(event: Event, *names: str) -> dict[str, float]:
    return {name: getattr(event, name) for name in names}


def _lost(context: Context, event: WorkerLost) -> None:
    context.workers.pop(event.worker, None)
    context.engines = {sample: engine for sample, engine in context.engines.items() if engine != event.worker}


_HANDLERS: dict[type, Callable[[Context, Any], Decided | None]] = {
    RunStarted: _started,
    RunResumed: _started,
    RunFinished: lambda _, event: ("run", event.reason.value, _figures(event, "steps", "events")),
    RunFailed: lambda _, event: ("run", f"{event.role}: {event.reason}", {}),
    RolloutProgressed: lambda context, event: context.engines.update({event.sample: event.engine}),
    TurnBegun: lambda context, event: context.engines.update({event.sample: event.engine}),
    RolloutSuspended: lambda context, event: _release(context, event.sample),
    RolloutFailed: lambda context, event: _release(context, event.sample),
    RolloutCompleted: lambda context, event: _release(context, event.rollout or event.sample),
    GroupAccepted: lambda _, event: (event.group, _by(event.filter, event.reason or ""), event.figures),
    GroupRejected: _rejected,
    BatchSealed: _sealed,
    StepCommitted: _committed,
    EvalCompleted: lambda _, event: (event.dataset, "", _figures(event, "version", "mean", "samples", "failed")),
    WorkerJoined: lambda context, event: context.workers.update({event.worker: event.role}),
    WorkerLost: _lost,
}
_HANDLERS |= {short: _HANDLERS[kind] for kind, short in PARTIAL_EVENTS.items() if kind in _HANDLERS}
