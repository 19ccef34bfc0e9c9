"""`ReasonCounts`: counts the reasons why rows, lines or prompts were refused, for a sentence."""

import re
from collections.abc import Iterable
from typing import Protocol

REASONS = 4
"""Most reasons that a sentence names; the rest is a count."""
LENGTH = 200
"""Most characters of a reason in a sentence."""
KINDS = 100
"""Most different reasons that are counted; further ones are counted together."""
OTHER = "other reasons"
_NUMBER = re.compile(r"\d+")


class _Problem(Protocol):
    @property
    def message(self) -> str: ...


class ReasonCounts:
    """Counts of reasons. Reasons that differ only in numbers, or after a semicolon, count as the first of them."""

    def __init__(self, messages: Iterable[str] = ()) -> None:
        self._counts: dict[str, int] = {}
        self._named: dict[str, str] = {}
        for message in messages:
            self.add(message)

    def add(self, message: str) -> None:
        """Count a message."""
        reason = message.partition("; ")[0]
        kind = _NUMBER.sub("0", reason[: 2 * LENGTH])
        if kind not in self._counts and len(self._counts) >= KINDS:
            kind = reason = OTHER
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._named.setdefault(kind, reason if len(reason) <= LENGTH else reason[: LENGTH - 3] + "...")

    def __str__(self) -> str:
        """Return `12 x the chat template raised ..., 1 x no field 'messages'`, the most frequent reason first."""
        ordered = sorted(self._counts, key=lambda kind: -self._counts[kind])
        parts = [f"{self._counts[kind]} x {self._named[kind]}" for kind in ordered[:REASONS]]
        if rest := sum(self._counts[kind] for kind in ordered[REASONS:]):
            parts.append(f"{rest} x {OTHER}")
        return ", ".join(parts)


def reasons_of(problems: Iterable[_Problem]) -> str:
    """Return the counted reasons of some problems."""
    return str(ReasonCounts(problem.message for problem in problems))
