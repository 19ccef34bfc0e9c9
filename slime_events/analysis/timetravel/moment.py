"""`Moment`: a run at one position of its log. Two folds in one pass: the conductor's state, and `Context` around it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from schemas.batches import BatchSealed
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

VERSION = 3
"""Raised with every change of `Context`, of what is folded into it, or of the index over stored moments."""
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


class Context(msgspec.Struct, kw_only=True):
    """What a state forgets and a person who looks at one moment asks for: who does what, and what was decided.

    first_at, at, latest_at: times of the first event, of the last, and the latest of all (UTC nanoseconds; writers'
    clocks differ by a little). starts: run.started and what resumed it, for the settings. engines: which engine makes a
    rollout, by sample, from its first tokens on. workers: role by worker, of those that joined and were not lost.
    decisions: the last ones, oldest first.
    """

    first_at: int = 0
    at: int = 0
    latest_at: int = 0
    starts: list[RunStarted | RunResumed] = []
    engines: dict[str, str] = {}
    workers: dict[str, str] = {}
    decisions: list[Decision] = []

    def apply_all(self, first: int, events: Sequence[FoldedEvent], *, is_first: bool) -> None:
        """Fold in consecutive events or their short forms, from position `first` on. is_first: nothing was before."""
        times = [event.at for event in events]
        if is_first:
            self.first_at = times[0]
        self.at, self.latest_at = times[-1], max(self.latest_at, *times)
        for position, event in enumerate(events, first):
            handler = _HANDLERS.get(type(event.event))
            if handler is not None and (decided := handler(self, event.event)) is not None:
                self.decisions.append(Decision(position, event.at, type_of(event.event), *decided))
                if len(self.decisions) >= 2 * KEPT:  # now and then the old ones are forgotten
                    del self.decisions[:-KEPT]


@dataclass(slots=True)
class Moment:
    """state: the fold of everything up to `position`. before: the chain up to the event before the last (hex), with
    which a snapshot can be checked. last: the event at `position`.
    """

    state: RunState
    context: Context = field(default_factory=Context)
    before: str = ""
    last: Recorded | None = None

    @property
    def position(self) -> int:
        """Of the last event folded in."""
        return self.state.position

    def apply(self, recorded: Recorded) -> None:
        """Fold one event in."""
        self.before, is_first = self.state.chain, not self.position
        apply(self.state, recorded)
        self.context.apply_all(recorded.position, (recorded.envelope,), is_first=is_first)
        self.last = recorded

    def apply_all(self, block: EventBlock) -> None:
        """Fold many events in. `last` is not known afterwards."""
        parts, is_first = list(read_partial_events(block.parts, decisions=True)), not self.position
        apply_all(self.state, parts, block.chain.hex())
        for number, (first, events) in enumerate(parts):
            self.context.apply_all(first, events, is_first=is_first and not number)
        self.before, self.last = block.before.hex(), None


Decided = tuple[str, str, dict[str, float]]
"""Of a decision: about what, why, on which figures."""


def _started(context: Context, event: RunStarted | RunResumed) -> Decided:
    context.starts.append(event)
    context.engines, context.workers = {}, {}
    return "run", f"incarnation {event.incarnation}" if isinstance(event, RunResumed) else "", {}


def _let_go(context: Context, *samples: str) -> None:
    for sample in samples:
        context.engines.pop(sample, None)


def _rejected(context: Context, event: GroupRejected) -> Decided:
    _let_go(context, *event.samples)
    return event.group, f"{event.cause.value}: {_by(event.filter, event.reason)}", event.figures


def _by(path: str, reason: str) -> str:
    return reason if path == "none" else f"{path}: {reason}" if reason else path


def _sealed(context: Context, event: BatchSealed) -> Decided:
    figures: dict[str, float] = {"groups": len(event.groups), "samples": len(event.samples)}
    figures["oldest_version"] = event.oldest_version
    if event.raw_rewards:
        figures["reward"] = sum(event.raw_rewards) / len(event.raw_rewards)
    return f"step {event.step}", "suspends rollouts under way" if event.suspends else "", figures


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
    RolloutSuspended: lambda context, event: _let_go(context, event.sample),
    RolloutFailed: lambda context, event: _let_go(context, event.sample),
    RolloutCompleted: lambda context, event: _let_go(context, event.rollout or event.sample),
    GroupAccepted: lambda _, event: (event.group, _by(event.filter, event.reason or ""), event.figures),
    GroupRejected: _rejected,
    BatchSealed: _sealed,
    StepCommitted: _committed,
    EvalCompleted: lambda _, event: (event.dataset, "", _figures(event, "version", "mean", "samples", "failed")),
    WorkerJoined: lambda context, event: context.workers.update({event.worker: event.role}),
    WorkerLost: _lost,
}
_HANDLERS |= {short: _HANDLERS[kind] for kind, short in PARTIAL_EVENTS.items() if kind in _HANDLERS}
