"""`ReplayReport`: the decisions that were compared; `Difference`: one that would be another now, with its inputs."""

import enum
from collections import Counter
from typing import Any

import msgspec

from schemas.batches import BatchSealed
from schemas.event import Event, type_of
from slime_events.analysis.replay.equality import Verdict, about, differing_fields, json_values
from slime_events.core.state.group import GroupState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.plan import Plan
from storage.log import Recorded


class Kind(enum.StrEnum):
    """How what was recorded and what is decided now differ."""

    OTHER = "decided differently"
    INSTEAD = "something else comes first"
    NOT_NOW = "would not be decided"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """position: of the recorded event. at: position up to which the log was folded to decide again. decided: None where
    nothing would be decided. fields: names of those that differ. inputs: what the decision is based on. why: what
    prevented a decision.
    """

    kind: Kind
    position: int
    at: int
    recorded: Event
    decided: Event | None
    fields: tuple[str, ...] = ()
    inputs: dict[str, Any] = {}
    why: str = ""

    @property
    def verdict_flips(self) -> bool:
        """Whether a group changes sides."""
        if not isinstance(self.recorded, Verdict) or not isinstance(self.decided, Verdict):
            return False
        return self.kind is Kind.OTHER and type(self.recorded) is not type(self.decided)

    def __str__(self) -> str:
        recorded = f"position {self.position}: recorded {name_of(self.recorded)}"
        if self.decided is None:
            return f"{recorded}; now nothing would be decided here{f': {self.why}' if self.why else ''}"
        if self.kind is Kind.OTHER and self.fields:
            return f"{recorded}; now it would have other {', '.join(self.fields)}"
        reason = getattr(self.decided, "reason", None)
        return f"{recorded}; now {name_of(self.decided)}" + (f" ({reason})" if reason else "")


def difference(recorded: Recorded, decided: Event | None, state: RunState, plan: Plan, at: int, why: str) -> Difference:
    """state: the log folded up to just before the recorded event."""
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
    """`group.accepted train-0-000003`."""
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
    """The groups that only one of the two has, and the first sample whose reward differs."""
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
    """events: how many were read. decisions: compared, by type. prompts: where drawn prompts came from, in words."""

    run: str
    events: int = 0
    decisions: Counter[str] = msgspec.field(default_factory=Counter)
    differences: list[Difference] = []
    prompts: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether every decision would be the same."""
        return not self.differences

    @property
    def compared(self) -> int:
        """Decisions in all."""
        return sum(self.decisions.values())

    @property
    def verdicts(self) -> list[Difference]:
        """Of the differences, the groups that change sides."""
        return [one for one in self.differences if one.verdict_flips]

    def kinds(self) -> dict[str, int]:
        """How many differences of each kind."""
        return dict(Counter(map(_kind, self.differences)).most_common())

    def json_values(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "run": self.run,
            "equal": self.is_equal,
            "events": self.events,
            "decisions": self.decisions,
            "prompts": self.prompts,
            "kinds": self.kinds(),
            "differences": [
                {
                    "kind": one.kind.value,
                    "sentence": str(one),
                    "position": one.position,
                    "decided_at": one.at,
                    "fields": list(one.fields),
                    "recorded": json_values(one.recorded),
                    "now": None if one.decided is None else json_values(one.decided),
                    "inputs": one.inputs,
                    "why": one.why,
                }
                for one in self.differences
            ],
        }


def _kind(one: Difference) -> str:
    recorded = type_of(one.recorded)
    if one.decided is None:
        return f"{recorded}: {one.kind.value}"
    if one.verdict_flips:
        return f"{recorded} -> {type_of(one.decided)}"
    if one.fields:
        return f"{recorded}: other {', '.join(one.fields)}"
    return f"{recorded}: {type_of(one.decided)} comes first"
