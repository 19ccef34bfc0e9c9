"""Pairs of logs to compare: the small run, and a copy of it with one change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from schemas.event import Event
from schemas.steps import StepCommitted
from slime_events.analysis.compare.compare import compare_facts
from slime_events.analysis.compare.comparison import Comparison
from slime_events.analysis.compare.run_facts import RunFacts
from slime_events.model import fold_run
from tests import made
from tests.cli import small_run

Where = Callable[[Any], bool]


def events() -> list[Event]:
    """Return the events of the small run: two steps of two groups of two samples, and a rejected group in step 0."""
    return changed(small_run.events(), StepCommitted, metrics={"loss": 0.5, "grad_norm": 1.5, "lr": 0.1})


def changed(log: Sequence[Event], kind: type[Event], where: Where = lambda event: True, **fields: Any) -> list[Event]:
    """Return the events with other fields in those of a type. At least one must match."""
    is_changed = [isinstance(event, kind) and where(event) for event in log]
    assert any(is_changed)
    return [replace(event, **fields) if hit else event for event, hit in zip(log, is_changed, strict=True)]


def without(log: Sequence[Event], *kinds: type[Event], where: Where = lambda event: True) -> list[Event]:
    """Return the events without those of some types."""
    left = [event for event in log if not (isinstance(event, kinds) and where(event))]
    assert len(left) < len(log)
    return left


def facts(log: Sequence[Event], run: str = "a", settings: Mapping[str, Any] | None = None) -> RunFacts:
    """Return the records of a run with these events."""
    records = made.recorded(*log, run=run)
    folded = RunFacts(fold_run(run, records), settings=dict(settings or {}))
    for recorded in records:
        folded.add(recorded)
    return folded


def compared(b: Sequence[Event], a: Sequence[Event] | None = None) -> Comparison:
    """Compare the small run, or run `a`, with run `b`."""
    return compare_facts(facts(events() if a is None else a), facts(b, "b"))
