"""`ReplayReport`: how many decisions were made again, and which of them would be others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from schemas.event import Event, type_of
from slime_events.analysis.replay.difference import Difference
from slime_events.analysis.replay.equality import plain


class ReplayReport(msgspec.Struct, kw_only=True):
    """events: read. decisions: compared, by type. prompts: where those that were drawn are known from."""

    run: str
    events: int = 0
    decisions: dict[str, int] = {}
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

    def count(self, event: Event) -> None:
        """One more decision."""
        name = type_of(event)
        self.decisions[name] = self.decisions.get(name, 0) + 1

    @property
    def verdicts(self) -> list[Difference]:
        """Of the differences, the groups that change sides."""
        return [one for one in self.differences if one.verdict_flips]

    def kinds(self) -> dict[str, int]:
        """How many differences of each sort."""
        counted = Counter(_sort(one) for one in self.differences)
        return dict(counted.most_common())

    def facts(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "run": self.run,
            "equal": self.is_equal,
            "events": self.events,
            "decisions": self.decisions,
            "prompts": self.prompts,
            "kinds": self.kinds(),
            "differences": [_facts(one) for one in self.differences],
        }


def _sort(one: Difference) -> str:
    recorded = type_of(one.recorded)
    if one.decided is None:
        return f"{recorded}: {one.kind.value}"
    if one.verdict_flips:
        return f"{recorded} -> {type_of(one.decided)}"
    if one.fields:
        return f"{recorded}: other {', '.join(one.fields)}"
    return f"{recorded}: {type_of(one.decided)} comes first"


def _facts(one: Difference) -> dict[str, Any]:
    return {
        "kind": one.kind.value,
        "sentence": str(one),
        "position": one.position,
        "decided_at": one.at,
        "fields": list(one.fields),
        "recorded": plain(one.recorded),
        "now": None if one.decided is None else plain(one.decided),
        "inputs": one.inputs,
        "why": one.why,
    }
