"""`ReplayReport`: the compared decisions. `Difference`: a decision that differs now, with its inputs."""

import enum
from collections import Counter
from typing import Annotated, Any

import msgspec

from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.event import Event, type_of
from slime_events.analysis.replay.equality import Verdict, about, differing_fields, json_values
from slime_events.core.state.group import GroupState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.plan import Plan
from storage.log import Recorded


class Kind(enum.StrEnum):
    """Kinds of differences between the recorded event and the decision made now."""

    OTHER = "decided differently"
    INSTEAD = "something else comes first"
    NOT_NOW = "would not be decided"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that differs now."""

    kind: Annotated[Kind, doc("how it differs")]
    position: Annotated[int, doc("position of the recorded event")]
    at: Annotated[int, doc("position up to which the log was folded to decide again")]
    recorded: Annotated[Event, doc("the recorded decision")]
    decided: Annotated[Event | None, doc("the decision made now; None if there is none")]
    fields: Annotated[tuple[str, ...], doc("names of the fields that differ")] = ()
    inputs: Annotated[dict[str, Any], doc("values on which the decision is based")] = {}
    why: Annotated[str, doc("what prevented a decision")] = ""

    @property
    def verdict_flips(self) -> bool:
        """Whether a group is accepted instead of rejected, or the reverse."""
        if not isinstance(self.recorded, Verdict) or not isinstance(self.decided, Verdict):
            return False
        return self.kind is Kind.OTHER and type(self.recorded) is not type(self.decided)

    def __str__(self) -> str:
        recorded = f"position {self.position}: recorded {name_of(self.recorded)}"
        if self.decided is None:
            return f"{recorded}; now no decision is made here{f': {self.why}' if self.why else ''}"
        if self.kind is Kind.OTHER and self.fields:
            return f"{recorded}; now with different {', '.join(self.fields)}"
        reason = getattr(self.decided, "reason", None)
        return f"{recorded}; now {name_of(self.decided)}" + (f" ({reason})" if reason else "")


def difference(recorded: Recorded, decided: Event | None, state: RunState, plan: Plan, at: int, why: str) -> Difference:
    """Describe a difference. state: the log folded up to just before the recorded event."""
    event = recorded.envelope.event
    kind, fields = Kind.NOT_NOW, list[str]()
    if decided is not None:
        kind = Kind.OTHER if about(event) == about(decided) else Kind.INSTEAD
        fields = differing_fields(event, decided) if kind is Kind.OTHER and type(decided) is type(event) else []
    return Difference(
        kind=kind,
        position=recorded.position,
        at=at,
        recorded=event,
        decided=decided,
        fields=tuple(fields),
        inputs=_inputs(event, decided, state, plan),
        why=why,
    )


def name_of(event: Event) -> str:
    """Return type and entity of an event, as `group.accepted train-0-000003`."""
    return f"{type_of(event)} {event.entity()}"


def _inputs(recorded: Event, decided: Event | None, state: RunState, plan: Plan) -> dict[str, Any]:
    inputs: dict[str, Any] = {
        "version": state.version,
        "next_step": state.next_step,
        "open_groups": state.open_groups,
        "room": plan.room,
        "accepted": len(state.accepted),
        "waiting": len(state.waiting),
    }
    names = dict.fromkeys(getattr(event, "group", "") for event in (recorded, decided))
    if groups := [_group(state.groups[name]) for name in names if name in state.groups]:
        inputs["groups"] = groups
    if isinstance(recorded, BatchSealed) and isinstance(decided, BatchSealed):
        inputs |= _batch(recorded, decided)
    return inputs


SAMPLE = ("sample", "phase", "reward", "tokens", "oldest", "newest")


def _group(group: GroupState) -> dict[str, Any]:
    return {
        "group": group.group,
        "prompt": group.text,
        "label": group.label,
        "asked_for_at_version": group.version,
        "samples": [
            dict(zip(SAMPLE, (s.sample, s.phase.value, s.reward, s.length, s.oldest, s.newest), strict=True))
            for s in group.samples.values()
        ],
    }


def _batch(recorded: BatchSealed, decided: BatchSealed) -> dict[str, Any]:
    """Return the groups that only one of the two has, and the first sample whose reward differs."""
    inputs: dict[str, Any] = {
        "only_recorded": [group for group in recorded.groups if group not in decided.groups],
        "only_now": [group for group in decided.groups if group not in recorded.groups],
    }
    both = dict(zip(decided.samples, zip(decided.raw_rewards, decided.rewards, strict=True), strict=True))
    for sample, *rewards in zip(recorded.samples, recorded.raw_rewards, recorded.rewards, strict=True):
        now = both.get(sample, rewards)
        if [*now] != rewards:
            names = ("sample", "raw", "recorded", "now_raw", "now")
            return inputs | {"first_reward": dict(zip(names, (sample, *rewards, *now), strict=True))}
    return inputs


class ReplayReport(msgspec.Struct, kw_only=True):
    """Result of a replay."""

    run: Annotated[str, doc("name of the run")]
    events: Annotated[int, doc("number of events read")] = 0
    decisions: Annotated[Counter[str], doc("compared decisions by type")] = msgspec.field(default_factory=Counter)
    differences: Annotated[list[Difference], doc("decisions that differ")] = []
    prompts: Annotated[str, doc("origin of drawn prompts, in words")] = ""

    @property
    def is_equal(self) -> bool:
        """Whether every decision is the same."""
        return not self.differences

    @property
    def compared(self) -> int:
        return sum(self.decisions.values())

    @property
    def verdicts(self) -> list[Difference]:
        """Differences in which a group is accepted instead of rejected, or the reverse."""
        return [difference for difference in self.differences if difference.verdict_flips]

    def kinds(self) -> dict[str, int]:
        """Return the number of differences of each kind."""
        return dict(Counter(map(_kind, self.differences)).most_common())

    def json_values(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "equal": self.is_equal,
            "events": self.events,
            "decisions": self.decisions,
            "prompts": self.prompts,
            "kinds": self.kinds(),
            "differences": [
                {
                    "kind": changed.kind.value,
                    "sentence": str(changed),
                    "position": changed.position,
                    "decided_at": changed.at,
                    "fields": list(changed.fields),
                    "recorded": json_values(changed.recorded),
                    "now": None if changed.decided is None else json_values(changed.decided),
                    "inputs": changed.inputs,
                    "why": changed.why,
                }
                for changed in self.differences
            ],
        }


def _kind(changed: Difference) -> str:
    recorded = type_of(changed.recorded)
    if changed.decided is None:
        return f"{recorded}: {changed.kind.value}"
    if changed.verdict_flips:
        return f"{recorded} -> {type_of(changed.decided)}"
    if changed.fields:
        return f"{recorded}: other {', '.join(changed.fields)}"
    return f"{recorded}: {type_of(changed.decided)} comes first"
