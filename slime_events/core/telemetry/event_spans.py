"""Derive the span that an event ends. Pure: live processes and a reader of the log get the same span, ids included.

    group's trace:    submit ─┬─ generate ─┬─ turn, tool    (one per sample; turns of an agent or a generate function)
                              │            └─ grade
                              ├─ session                    (one per attempt of an agent)
                              └─ decide
                                    ⇡ link
    version's trace:                batch ── train ── publish ── activate (one per engine)

A span ends when its event was appended (`at`). It begins earlier by the seconds that the event reports for the work.
"""

from operator import attrgetter
from typing import Annotated, NamedTuple

from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.envelope import Envelope
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.ids import group_of
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed, StopReason
from schemas.sessions import SessionSealed
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded, TurnRole
from schemas.weights import WeightsActivated, WeightsPublished
from slime_events.core.telemetry.attributes import METRIC
from slime_events.core.telemetry.span import (
    Attribute,
    Span,
    SpanContext,
    format_traceparent,
    parse_traceparent,
    sampled,
    span_id,
    trace_id,
)


class SpanPlace(NamedTuple):
    """The place of a span in its trace."""

    key: Annotated[str, doc("`<name>/<unique in its run>`")]
    parent: Annotated[str | None, doc("key of the parent span; None: it is a root")] = None
    group: Annotated[str, doc("owner of the trace, if that is a group")] = ""
    version: Annotated[int | None, doc("owner of the trace, if that is a weight version")] = None
    seconds: Annotated[float, doc("duration of the work that the event ends")] = 0.0

    def trace(self, run: str) -> int:
        """Return the trace id of its group, or of its weight version."""
        return trace_id(run, self.group if self.version is None else f"version/{self.version}")

    def is_kept(self, trace: int, share: float, event: Event) -> bool:
        """Return whether the span is exported. It depends on share, trace and event alone: all processes agree.

        Groups are kept by share, and versions always, because sampled groups link to them. Failures are always kept.
        With a share of 0 nothing is kept.
        """
        return share > 0 and (self.version is not None or sampled(trace, share) or _is_failure(event))


def generate_place(sample: str, group: str, seconds: float = 0.0) -> SpanPlace:
    """Return the place of a completed rollout's span."""
    return SpanPlace(f"generate/{sample}", f"submit/{group}", group, seconds=seconds)


def turn_place(sample: str, index: int, role: TurnRole, seconds: float = 0.0) -> SpanPlace:
    """Return the place of the span of a turn or a tool call."""
    name = "tool" if role is TurnRole.TOOL else "turn"
    return SpanPlace(f"{name}/{sample}/{index}", f"generate/{sample}", group_of(sample), seconds=seconds)


def grade_place(sample: str, group: str, seconds: float = 0.0) -> SpanPlace:
    """Return the place of the span of a grading."""
    return SpanPlace(f"grade/{sample}", f"generate/{sample}", group, seconds=seconds)


def train_place(step: int, seconds: float = 0.0) -> SpanPlace:
    """Return the place of a step's span."""
    return SpanPlace(f"train/{step}", f"batch/{step}", version=step + 1, seconds=seconds)


def span_place_of(event: Event) -> SpanPlace | None:
    """Return the place of the span that an event ends; None if it ends no span."""
    match event:
        case PromptSubmitted(group=group):
            return SpanPlace(f"submit/{group}", None, group)
        case RolloutCompleted(sample=sample, group=group, timings=timings):
            return generate_place(sample, group, timings.generating)
        case RolloutFailed(sample=sample, group=group, attempt=attempt):
            return SpanPlace(f"generate/{sample}/{attempt}", f"submit/{group}", group)
        case TurnRecorded():
            return turn_place(event.sample, event.index, event.role, event.seconds)
        case SessionSealed(sample=sample, attempt=attempt, seconds=seconds):
            group = group_of(sample)
            return SpanPlace(f"session/{sample}/{attempt}", f"submit/{group}", group, seconds=seconds)
        case RewardAssigned() | RewardFailed():
            return grade_place(event.sample, event.group, event.seconds)
        case GroupAccepted(group=group) | GroupRejected(group=group):
            return SpanPlace(f"decide/{group}", f"submit/{group}", group)
        case BatchSealed(step=step):
            return SpanPlace(f"batch/{step}", version=step + 1)
        case StepCommitted(step=step, seconds=parts):
            return train_place(step, sum(parts.values()))
        case WeightsPublished(version=version, parent=parent):
            return SpanPlace(f"publish/{version}", None if parent is None else f"train/{version - 1}", version=version)
        case WeightsActivated(version=version, engine=engine, seconds=seconds):
            return SpanPlace(f"activate/{version}/{engine}", f"publish/{version}", version=version, seconds=seconds)
        case _:
            return None


_FAILED = (RejectionCause.ROLLOUT_FAILED, RejectionCause.REWARD_FAILED, RejectionCause.FILTER_RAISED)
"""Causes of a rejection that are failures."""
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
    WeightsActivated: {
        **_WEIGHTS,
        "rl.weights.digest": "digest",
        "rl.weights.lag.seconds": "lag",
        "rl.engine.id": "engine",
    },
}
"""Event type to attributes that are a field of the event: attribute to the field's path."""
_READERS = {
    kind: [(attribute, attrgetter(path)) for attribute, path in fields.items()] for kind, fields in _FIELDS.items()
}


def _attributes(event: Event) -> dict[str, Attribute]:
    """Return the attributes that are fields of the event or computed from them."""
    attributes: dict[str, Attribute] = {attribute: read(event) for attribute, read in _READERS[type(event)]}
    if isinstance(event, RolloutCompleted):
        attributes |= _generated(event, event.stop)
    if isinstance(event, RolloutCompleted | RolloutFailed):
        attributes["gen_ai.operation.name"], attributes["gen_ai.provider.name"] = "text_completion", "sglang"
    elif isinstance(event, TurnRecorded | SessionSealed):
        attributes |= _turn_attributes(event) if isinstance(event, TurnRecorded) else _session_attributes(event)
    elif isinstance(event, GroupAccepted | GroupRejected):
        attributes["rl.accepted"] = isinstance(event, GroupAccepted)
        if event.reason:
            attributes["rl.reason"] = event.reason
    elif isinstance(event, RewardAssigned):
        # A whole number that a live process has as an int is a float in the log. The same below.
        attributes["rl.reward.value"] = attributes["gen_ai.evaluation.score.value"] = float(event.value)
    elif isinstance(event, StepCommitted):
        attributes.update((METRIC + name, float(value)) for name, value in event.metrics.items())
    if isinstance(event, GroupAccepted | GroupRejected | BatchSealed):
        attributes["rl.sample.count"] = len(event.samples)
        rewards = event.raw_rewards if isinstance(event, BatchSealed) else event.rewards
        if rewards:
            attributes["rl.reward.mean"] = sum(rewards) / len(rewards)
    return attributes


def _generated(event: RolloutCompleted | TurnRecorded, stop: StopReason) -> dict[str, Attribute]:
    return {
        "rl.weights.versions": sorted({span.version for span in event.spans}),
        "gen_ai.response.finish_reasons": [stop.value],
    }


def _turn_attributes(turn: TurnRecorded) -> dict[str, Attribute]:
    """Return the attributes of a generation or a tool call. Contents stay in the log: arguments, results, texts."""
    attributes: dict[str, Attribute] = {"rl.group.id": group_of(turn.sample)}
    if turn.role is TurnRole.TOOL:
        attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": turn.call.name if turn.call else ""}
        return attributes
    attributes |= {
        "gen_ai.operation.name": "text_completion" if turn.agent is None else "chat",
        "gen_ai.provider.name": "sglang",
        "gen_ai.usage.output_tokens": turn.length,
        "rl.turn.new_input_tokens": turn.observed.n,
    }
    if turn.stop is not None:
        attributes |= _generated(turn, turn.stop)
    if turn.extends is not None:
        attributes["rl.turn.extends"] = turn.extends
    if turn.agent is not None:
        attributes |= {"gen_ai.conversation.id": turn.sample, "rl.turn.dialect": turn.agent.dialect}
    return attributes


def _session_attributes(session: SessionSealed) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "rl.group.id": group_of(session.sample),
        "gen_ai.operation.name": "invoke_agent",
    }
    if session.exit_code is not None:
        attributes["rl.session.exit_code"] = session.exit_code
    return attributes


def _error(event: Event) -> str | None:
    """Return why the work that an event ends failed; None if it did not."""
    match event:
        case RolloutFailed() | RewardFailed():
            return f"{event.kind.value}: {event.message}"
        case TurnRecorded(error=error) if error:
            return error
        case SessionSealed(exit_code=code) if code:
            return f"exit code {code}"
        case _:
            return None


def _is_failure(event: Event) -> bool:
    """Return whether an event is about failed work: the work itself, or the rejection of its group."""
    if isinstance(event, GroupRejected):
        return event.cause in _FAILED
    return _error(event) is not None


def span_of(envelope: Envelope, share: float = 1.0) -> Span | None:
    """Return the span that ends with this event; None if the event ends no span, or the span is not kept.

    share: share of group traces that are kept, 0 to 1. Above 0, failures in the other traces are kept too.
    """
    place = span_place_of(envelope.event)
    if place is None:
        return None
    run, event = envelope.run, envelope.event
    trace = place.trace(run)
    if not place.is_kept(trace, share, event):
        return None
    attributes = _attributes(event) | {
        "rl.run.id": run,
        "rl.event.type": envelope.type,
        "messaging.system": "nats",
        "messaging.operation.type": "send",
        "messaging.destination.name": envelope.subject,
        "messaging.message.id": envelope.id,
        "messaging.client.id": envelope.producer,
    }
    return Span(
        name=place.key.partition("/")[0],
        trace=trace,
        span=span_id(run, place.key),
        start_ns=envelope.at - round(place.seconds * 1e9),
        end_ns=envelope.at,
        parent=span_id(run, place.parent) if place.parent else None,
        attributes=attributes,
        links=_links(envelope, trace, share),
        error=_error(event),
    )


def traceparent_of(run: str, event: Event, share: float = 1.0) -> str | None:
    """Return the context of the span that an event ends, for its envelope; None if it ends no span."""
    place = span_place_of(event)
    if place is None:
        return None
    trace = place.trace(run)
    return format_traceparent(SpanContext(trace, span_id(run, place.key)), place.is_kept(trace, share, event))


def _links(envelope: Envelope, trace: int, share: float) -> tuple[SpanContext, ...]:
    """Return links: from a batch to the decisions on its groups, from an agent's turn to the generation that an engine
    made for it (in a trace of its own), and from a prompt to its sender's trace.
    """
    run, event = envelope.run, envelope.event
    if isinstance(event, BatchSealed):
        decisions = (SpanContext(trace_id(run, g), span_id(run, f"decide/{g}")) for g in event.groups)
        return tuple(context for context in decisions if sampled(context.trace, share))
    if isinstance(event, TurnRecorded) and event.agent is not None:
        call = event.agent.call
        generation = SpanContext(trace_id(run, group_of(call)), span_id(run, f"generate/{call}"))
        return (generation,) if sampled(generation.trace, share) else ()
    if isinstance(event, PromptSubmitted):
        sender = parse_traceparent(envelope.traceparent)
        return (sender,) if sender is not None and sender.trace != trace else ()
    return ()
