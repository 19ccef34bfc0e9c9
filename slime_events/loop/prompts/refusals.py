"""`counts_by_reason`: why rows or lines were refused, counted, for one sentence."""

import re
from collections.abc import Iterable

from slime_events.loop.prompts.prompt import Problem

REASONS = 4
"""Reasons that a sentence names; the rest is a count."""
LENGTH = 200
"""Characters of a reason in it."""
_NUMBER = re.compile(r"\d+")


def counts_by_reason(messages: Iterable[str]) -> str:
    """Return `12 x the chat template raised ..., 1 x no field 'messages'`, the most common reason first.

    Reasons that differ in numbers alone, or behind a semicolon, are one: it is named as it was met first.
    """
    counts: dict[str, int] = {}
    named: dict[str, str] = {}
    for message in messages:
        reason = message.partition("; ")[0]
        kind = _NUMBER.sub("0", reason)
        counts[kind] = counts.get(kind, 0) + 1
        named.setdefault(kind, reason)
    ordered = sorted(counts, key=lambda kind: -counts[kind])
    parts = [f"{counts[kind]} x {_short(named[kind])}" for kind in ordered[:REASONS]]
    if rest := sum(counts[kind] for kind in ordered[REASONS:]):
        parts.append(f"{rest} x other reasons")
    return ", ".join(parts)


def reasons_of(problems: Iterable[Problem]) -> str:
    """`counts_by_reason` of some problems."""
    return counts_by_reason(problem.message for problem in problems)


def _short(reason: str) -> str:
    return reason if len(reason) <= LENGTH else reason[: LENGTH - 3] + "..."
