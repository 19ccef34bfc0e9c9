"""`attributes_of`: the attributes of the span that an event ends. `ATTRIBUTES` (attributes.py) says what each means."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from schemas.batches import BatchSealed
from schemas.envelope import Envelope
from schemas.event import Event, type_of
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed, StopReason
from schemas.sessions import SessionSealed
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded, TurnRole
from schemas.weights import WeightsActivated, WeightsPublished, WeightsStored
from slime_events.core.telemetry.attributes import METRIC
from slime_events.core.telemetry.span import Attribute

_SAMPLE = {"rl.group.id": "group", "rl.sample.id": "sample"}
_ATTEMPT = {**_SAMPLE, "rl.attempt": "attempt", "rl.engine.id": "engine"}
_DECISION = {"rl.group.id": "group", "rl.filter.name": "filter"}
_WEIGHTS = {"rl.weights.version": "version"}
_FIELDS: dict[type[Event], dict[str, str]] = {
    PromptSubmitted: {
        "rl.group.id": "group",
        "rl.dataset": "dataset",
        "rl.purpose": "purpose.value",
        "rl.source.path": "source.path",
        "gen_ai.usage.input_tokens": "tokens.n",
    },
    RolloutCompleted: {
        **_ATTEMPT,
        "rl.queued.seconds": "timings.queued",
        "rl.updating.seconds": "timings.updating",
        "gen_ai.response.id": "sample",
        "gen_ai.usage.input_tokens": "prompt_length",
        "gen_ai.usage.output_tokens": "length",
    },
    RolloutFailed: _ATTEMPT,
    TurnRecorded: {
        "rl.sample.id": "sample",
        "rl.turn.index": "index",
        "rl.turn.overlapping": "overlapping",
        "rl.engine.id": "engine",
    },
    SessionSealed: {
        "rl.sample.id": "sample",
        "rl.attempt": "attempt",
        "rl.session.end": "reason.value",
        "rl.turn.count": "turns",
        "gen_ai.conversation.id": "sample",
    },
    RewardAssigned: {
        **_SAMPLE,
        "rl.reward.value": "value",
        "gen_ai.evaluation.name": "grader",
        "gen_ai.evaluation.score.value": "value",
    },
    RewardFailed: {**_SAMPLE, "gen_ai.evaluation.name": "grader"},
    GroupAccepted: _DECISION,
    GroupRejected: _DECISION,
    BatchSealed: {"rl.step": "step"},
    StepCommitted: {
        **_WEIGHTS,
        "rl.step": "step",
        "rl.weights.parent.version": "parent_version",
        "rl.weights.digest": "weights_digest",
        "rl.sample.count": "samples",
        "rl.token.count": "tokens",
    },
    WeightsPublished: {**_WEIGHTS, "rl.weights.digest": "digest", "rl.weights.bytes": "bytes"},
    WeightsStored: {**_WEIGHTS, "rl.weights.digest": "digest", "rl.weights.bytes": "bytes"},
    WeightsActivated: {
        **_WEIGHTS,
        "rl.weights.digest": "digest",
        "rl.weights.lag.seconds": "lag",
        "rl.engine.id": "engine",
    },
}
"""Event type to attributes that are a field of the event: attribute to the field's path."""


class _Reader(NamedTuple):
    """Reads all fields of an event that are attributes in one call, which takes half the time of one each."""

    tag: str
    attributes: tuple[str, ...]
    read: Callable[[Event], tuple[Attribute, ...]]

    @classmethod
    def of(cls, kind: type[Event], fields: dict[str, str]) -> "_Reader":
        read = attrgetter(*fields.values())
        # attrgetter returns a tuple only for several fields.
        return cls(type_of(kind), tuple(fields), read if len(fields) > 1 else lambda event: (read(event),))


_READERS = {kind: _Reader.of(kind, fields) for kind, fields in _FIELDS.items()}


def attributes_of(envelope: Envelope) -> dict[str, Attribute]:
    """Return the attributes: fields of the event, what is computed from them, and those of its message."""
    event = envelope.event
    tag, names, read = _READERS[type(event)]
    attributes = dict(zip(names, read(event), strict=True))
    _compute(event, attributes)
    attributes["rl.run.id"] = envelope.run
    attributes["rl.event.type"] = tag
    attributes["messaging.system"] = "nats"
    attributes["messaging.operation.type"] = "send"
    attributes["messaging.destination.name"] = envelope.subject
    attributes["messaging.message.id"] = envelope.id
    attributes["messaging.client.id"] = envelope.producer
    return attributes


def _compute(event: Event, attributes: dict[str, Attribute]) -> None:
    """Add the attributes that are computed from the event. The frequent types come first."""
    match event:
        case RolloutCompleted() | RolloutFailed():
            if isinstance(event, RolloutCompleted):
                _add_generated(event, event.stop, attributes)
            attributes["gen_ai.operation.name"], attributes["gen_ai.provider.name"] = "text_completion", "sglang"
        case RewardAssigned(value=value):
            # A whole number that a live process has as an int is a float in the log. The same below.
            attributes["rl.reward.value"] = attributes["gen_ai.evaluation.score.value"] = float(value)
        case TurnRecorded():
            _add_turn(event, attributes)
        case SessionSealed():
            _add_session(event, attributes)
        case GroupAccepted() | GroupRejected():
            attributes["rl.accepted"] = isinstance(event, GroupAccepted)
            if event.reason:
                attributes["rl.reason"] = event.reason
            _add_samples(event.samples, event.rewards, attributes)
        case BatchSealed():
            _add_samples(event.samples, event.raw_rewards, attributes)
        case StepCommitted(metrics=metrics):
            attributes.update((METRIC + name, float(value)) for name, value in metrics.items())


def _add_samples(samples: Sequence[str], rewards: Sequence[float] | None, attributes: dict[str, Attribute]) -> None:
    attributes["rl.sample.count"] = len(samples)
    if rewards:
        attributes["rl.reward.mean"] = sum(rewards) / len(rewards)


def _add_generated(event: RolloutCompleted | TurnRecorded, stop: StopReason, attributes: dict[str, Attribute]) -> None:
    attributes["rl.weights.versions"] = sorted({span.version for span in event.spans})
    attributes["gen_ai.response.finish_reasons"] = [stop.value]


def _add_turn(turn: TurnRecorded, attributes: dict[str, Attribute]) -> None:
    """Add the attributes of a generation or a tool call. Contents stay in the log: arguments, results, texts."""
    attributes["rl.group.id"] = group_of(turn.sample)
    if turn.role is TurnRole.TOOL:
        attributes["gen_ai.operation.name"] = "execute_tool"
        attributes["gen_ai.tool.name"] = turn.call.name if turn.call else ""
        return
    attributes["gen_ai.operation.name"] = "text_completion" if turn.agent is None else "chat"
    attributes["gen_ai.provider.name"] = "sglang"
    attributes["gen_ai.usage.output_tokens"] = turn.length
    attributes["rl.turn.new_input_tokens"] = turn.observed.n
    if turn.stop is not None:
        _add_generated(turn, turn.stop, attributes)
    if turn.extends is not None:
        attributes["rl.turn.extends"] = turn.extends
    if turn.agent is not None:
        attributes["gen_ai.conversation.id"], attributes["rl.turn.dialect"] = turn.sample, turn.agent.dialect


def _add_session(session: SessionSealed, attributes: dict[str, Attribute]) -> None:
    attributes["rl.group.id"] = group_of(session.sample)
    attributes["gen_ai.operation.name"] = "invoke_agent"
    if session.exit_code is not None:
        attributes["rl.session.exit_code"] = session.exit_code
