"""Turns of a rollout that a generate function makes, and the further samples that it may return."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.history.finding import Finding, Kind
from tests.harness.history.record import Record
from tests.harness.history.story import Sample


def chunk_of_turn(record: Record, name: str, sample: Sample) -> Iterator[Finding]:
    """A chunk whose positions are those of a turn. The completion holds the whole once more."""
    event, number = record.event, record.event["turn"]
    there, count = sample.turns.get(number, 0), event["tokens"]["n"]
    if event["start"] != there or count != event["log_probs"]["n"] or number in sample.recorded:
        yield Finding(
            Kind.TORN,
            record.position,
            f"turn {number} of {name} continues with {count} tokens from {event['start']}, the log holds {there}",
        )
    sample.turns[number] = event["start"] + count


def turn(record: Record, name: str, sample: Sample) -> Iterator[Finding]:
    """A turn that begins, or ends with what no chunk of it holds."""
    event, number = record.event, record.event["index"]
    there = sample.turns.setdefault(number, 0)
    if number in sample.recorded:
        yield Finding(Kind.REPEATED, record.position, f"turn {number} of {name} had ended before this {record.type}")
    if record.type != "turn.recorded":
        return
    sample.recorded.add(number)
    count = event["tokens"]["n"] if "tokens" in event else 0
    if event.get("start", 0) != there or event.get("length", 0) != there + count:
        yield Finding(
            Kind.TORN,
            record.position,
            f"turn {number} of {name} says {event.get('length', 0)} tokens, {count} of them from "
            f"{event.get('start', 0)}; its chunks hold {there}",
        )
    sample.turns[number] = there + count


def place(sample: str) -> tuple[int, int]:
    """Return index and number of a sample: `<group>-s<index>`, or `<group>-s<index>-<number>` for further ones."""
    index, _, number = sample.rpartition("-s")[2].partition("-")
    return int(index), int(number or 0)
