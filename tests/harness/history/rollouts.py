"""`Rollouts`: chunks lie end to end, the whole has the recorded digest, nothing comes after the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.harness.history.finding import Finding, Kind
from tests.harness.history.record import Blob, Record, array_bytes
from tests.harness.history.story import Group, Sample, Spans, Story
from tests.harness.history.turns import chunk_of_turn, place, turn

NUMBER_BYTES = 4


class Rollouts:
    """Every sample from its request to its end."""

    def __init__(self, story: Story, blob: Blob | None) -> None:
        self._story, self._blob = story, blob

    def apply(self, record: Record) -> Iterator[Finding]:
        """Look at a record."""
        noun, _, verb = record.type.partition(".")
        if noun not in ("rollout", "turn"):
            return
        if verb == "requested":
            yield from self._requested(record)
            return
        if verb == "completed" and record.event.get("rollout"):
            self._join_group(record.event)
        name = record.event["sample"]
        sample = self._story.samples.get(name)
        if sample is None:
            yield Finding(Kind.NOT_REQUESTED, record.position, f"{record.type} of {name}, which nobody asked for")
        elif sample.completed:
            yield Finding(Kind.AFTER_COMPLETION, record.position, f"{record.type} of {name}, which is completed")
        elif noun == "turn":
            yield from turn(record, name, sample)
        else:
            yield from self._of_sample(record, verb, name, sample)

    def _join_group(self, event: dict[str, Any]) -> None:
        """A further sample of a rollout: nobody asked for it by its name, but for the rollout."""
        asked_for = self._story.samples.get(event["rollout"])
        if asked_for is None or asked_for.completed or event["sample"] in self._story.samples:
            return
        group, exact = asked_for.group, asked_for.exact
        self._story.samples[event["sample"]] = Sample(group, asked_for.attempt, turns={0: 0}, exact=exact)
        self._story.groups[asked_for.group].samples.append(event["sample"])
        self._story.groups[asked_for.group].samples.sort(key=place)

    def _requested(self, record: Record) -> Iterator[Finding]:
        event = record.event
        name, attempt = event["sample"], event.get("attempt", 0)
        sample = self._story.samples.get(name)
        if event.get("purpose") != "call" and event["group"] not in self._story.groups:
            yield Finding(
                Kind.NOT_REQUESTED, record.position, f"{name} is of group {event['group']}, which has no prompt"
            )
        if sample is None:
            self._story.samples[name] = Sample(event["group"], attempt, exact=event.get("max_version"))
            self._story.groups.setdefault(event["group"], Group()).samples.append(name)
            return
        if sample.completed or not (sample.failed or sample.resting):
            state = "completed" if sample.completed else "under way"
            yield Finding(Kind.REPEATED, record.position, f"{name} was asked for again while it is {state}")
        sample.attempt, sample.failed, sample.resting = attempt, False, False

    def _of_sample(self, record: Record, verb: str, name: str, sample: Sample) -> Iterator[Finding]:
        event = record.event
        if event["attempt"] != sample.attempt or sample.failed or sample.resting:
            yield Finding(
                Kind.NOT_REQUESTED,
                record.position,
                f"{record.type} of {name} in attempt {event['attempt']}, asked for was {sample.attempt}"
                + (" and that has ended" if sample.failed or sample.resting else ""),
            )
        if event.get("turn") is not None:
            yield from chunk_of_turn(record, name, sample)
            return
        if verb in ("progressed", "completed"):
            yield from self._join(record, name, sample)
        if verb == "completed":
            yield from self._complete(record, name, sample)
        elif verb == "suspended":
            sample.resting = True
            there = sample.length + sum(sample.turns.values())
            if event["length"] != there:
                yield Finding(
                    Kind.TORN, record.position, f"{name} rests at {event['length']} tokens, there are {there}"
                )
        elif verb == "failed":
            sample.failed = True

    def _join(self, record: Record, name: str, sample: Sample) -> Iterator[Finding]:
        event = record.event
        tokens, log_probs = event.get("tokens"), event.get("log_probs")
        count = tokens["n"] if tokens else 0
        if event["start"] != sample.length or count != (log_probs["n"] if log_probs else 0):
            yield Finding(
                Kind.TORN,
                record.position,
                f"{record.type} of {name} holds {count} tokens from {event['start']}, the log holds {sample.length}",
            )
        token_bytes, log_prob_bytes = array_bytes(tokens, self._blob), array_bytes(log_probs, self._blob)
        if token_bytes is None or log_prob_bytes is None:
            sample.readable = False
        else:
            sample.tokens.append(token_bytes)
            sample.log_probs.append(log_prob_bytes)
            if not len(token_bytes) == len(log_prob_bytes) == NUMBER_BYTES * count:
                yield Finding(Kind.TORN, record.position, f"{record.type} of {name} does not hold {count} numbers")
        if record.type == "rollout.progressed":
            sample.spans = joined(sample.spans, spans_of(event["spans"]))
            if not covers(sample.spans, event["start"] + count):
                yield Finding(Kind.WRONG_SPANS, record.position, f"the spans of {name} have a gap: {sample.spans}")
        sample.length = event["start"] + count

    def _complete(self, record: Record, name: str, sample: Sample) -> Iterator[Finding]:
        event, spans = record.event, spans_of(record.event["spans"])
        sample.completed, sample.prompt_length = True, event["prompt_length"]
        if event["length"] != sample.length:
            yield Finding(
                Kind.TORN, record.position, f"{name} ends with {event['length']} tokens, there are {sample.length}"
            )
        whole = in_order(spans, event["length"]) if sample.turns else covers(spans, event["length"])
        if not whole or any(version_at(spans, position) != version for position, version in each_end(sample.spans)):
            yield Finding(Kind.WRONG_SPANS, record.position, f"{name} says spans {spans}, its chunks {sample.spans}")
        if sample.exact is not None and any(version != sample.exact for _, _, version in spans):
            yield Finding(Kind.WRONG_VERSION, record.position, f"{name} is of v{sample.exact} alone, and says {spans}")
        sample.spans, sample.digest = spans, event["digest"]
        if sample.readable and sample.content_digest() != event["digest"]:
            yield Finding(Kind.WRONG_DIGEST, record.position, f"the tokens of {name} do not have the digest it says")
        sample.release()


def spans_of(spans: list[list[int]]) -> Spans:
    """Spans as they are stored: arrays of start, end and version."""
    return [(start, end, version) for start, end, version in spans]


def joined(spans: Spans, more: Spans) -> Spans:
    """One after the other; neighbours of one version are one."""
    whole = list(spans)
    for start, end, version in more:
        if whole and whole[-1][1] == start and whole[-1][2] == version:
            whole[-1] = (whole[-1][0], end, version)
        else:
            whole.append((start, end, version))
    return whole


def covers(spans: Spans, length: int) -> bool:
    """Whether they lie end to end over [0, length)."""
    ends = [0, *(end for _, end, _ in spans)]
    return ends[-1] == length and all(start == end for (start, _, _), end in zip(spans, ends, strict=False))


def in_order(spans: Spans, length: int) -> bool:
    """Whether they lie one after the other in [0, length), with what nobody generated between them."""
    ends = [0, *(end for _, end, _ in spans)]
    return ends[-1] <= length and all(end <= start < own for (start, own, _), end in zip(spans, ends, strict=False))


def version_at(spans: Spans, position: int) -> int | None:
    """The version that made one token."""
    return next((version for start, end, version in spans if start <= position < end), None)


def each_end(spans: Spans) -> Iterator[tuple[int, int]]:
    """First and last position of each span, with its version."""
    for start, end, version in spans:
        yield start, version
        yield end - 1, version
