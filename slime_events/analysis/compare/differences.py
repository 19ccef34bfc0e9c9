"""`step_differences`: the differences of two runs in one step, in the order in which one follows from another.

prompts -> tokens -> rewards -> decisions -> prompts of one run alone -> batch -> gradient norm -> digests

A fact that one of the runs lacks is a difference only if that run has decided without it. A run may draw a prompt that
the other does not draw because of its decisions, so such a prompt comes after them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from schemas.arrays import Array
from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import order_in_group
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed
from slime_events.analysis.compare.comparison import Difference, Input, Kind, Scalar
from slime_events.analysis.compare.inputs import (
    GRADIENT_NORM,
    answer_inputs,
    batch_inputs,
    both,
    fate_inputs,
    grader_inputs,
    prompt_inputs,
    request_inputs,
    start_inputs,
    training_inputs,
    verdict_inputs,
    verdict_text,
)
from slime_events.analysis.compare.run_facts import RunFacts, scalar
from slime_events.model import Entry, Sample

_PROMPT_FIELDS = ("text", "messages", "tools", "label", "metadata", "dataset", "generate_function_path",
                  "custom_rm_path", "attributes")  # fmt: skip
_ROLLOUT_FIELDS = ("digest", "prompt_text", "loss_mask", "credit", "stop")
T = TypeVar("T")
Grade = RewardAssigned | RewardFailed
Verdict = GroupAccepted | GroupRejected


@dataclass(frozen=True, slots=True)
class RunPair:
    """Two runs to compare."""

    a: Annotated[RunFacts, doc("run A")]
    b: Annotated[RunFacts, doc("run B")]

    def software(self) -> tuple[Input, ...]:
        """Return the versions of packages that differ."""
        return differing(self.a.software, self.b.software)

    def settings(self) -> tuple[Input, ...]:
        """Return the settings and versions that differ."""
        return differing(self.a.flat_settings(), self.b.flat_settings()) + self.software()


def differing(a: Mapping[str, Scalar], b: Mapping[str, Scalar]) -> tuple[Input, ...]:
    """Return the values that differ, by name."""
    values = (Input(name=name, a=a.get(name), b=b.get(name)) for name in dict.fromkeys((*a, *b)))
    return tuple(value for value in values if not _same(value.a, value.b))


def step_differences(pair: RunPair, step: int, groups: Sequence[str]) -> Iterator[Difference]:
    """Return the differences in a step. groups: of both runs that belong to the step, in order."""
    yield from _prompts(pair, step, groups)
    yield from _rollouts(pair, step, groups)
    yield from _rewards(pair, step, groups)
    yield from _decisions(pair, step, groups)
    if step in pair.a.run.steps and step in pair.b.run.steps:
        yield from _prompts_of_one_run(pair, step, groups)
        yield from _batch(pair, step)
        yield from _training(pair, step)


def start_difference(pair: RunPair, version: int) -> Difference | None:
    """Return the difference of the weights that both runs start from, if their logs have both. version: its number."""
    records = [facts.run.versions.get(version) for facts in (pair.a, pair.b)]
    digests = [record.digest if record else None for record in records]
    if None in digests or digests[0] == digests[1]:
        return None
    places = [record.published.position if record and record.published else None for record in records]
    return Difference(
        kind=Kind.DIGEST,
        field="weights_digest",
        step=None,
        a=digests[0],
        b=digests[1],
        a_position=places[0],
        b_position=places[1],
        inputs=both(start_inputs(pair.a), start_inputs(pair.b)) + pair.software(),
    )


def _prompts(pair: RunPair, step: int, groups: Iterable[str]) -> Iterator[Difference]:
    for name in groups:
        a, b = _prompt_of(pair.a, name), _prompt_of(pair.b, name)
        if a is None or b is None:
            continue
        field = next((f for f in _PROMPT_FIELDS if not _same(getattr(a.event, f), getattr(b.event, f))), None)
        values: tuple[Scalar, Scalar] = (pair.a.prompts.get(name), pair.b.prompts.get(name))
        if field is not None:
            values = (scalar(getattr(a.event, field)), scalar(getattr(b.event, field)))
        elif values[0] == values[1]:
            continue
        inputs = both(prompt_inputs(a.event), prompt_inputs(b.event))
        yield _difference(Kind.PROMPT, field or "tokens", step, a, b, values, group=name, inputs=inputs)


def _prompts_of_one_run(pair: RunPair, step: int, groups: Iterable[str]) -> Iterator[Difference]:
    """Return the prompts of the batches that only one run has drawn. Other prompts may be drawn in advance."""
    for name in groups:
        a, b = _prompt_of(pair.a, name), _prompt_of(pair.b, name)
        if (a is None) != (b is None) and any(g.step == step for f in (pair.a, pair.b) if (g := f.group(name))):
            inputs = both(prompt_inputs(a.event if a else None), prompt_inputs(b.event if b else None))
            names = (name if a else None, name if b else None)
            yield _difference(Kind.PROMPT, "group", step, a, b, names, group=name, inputs=inputs)


def _prompt_of(facts: RunFacts, group: str) -> Entry[PromptSubmitted] | None:
    record = facts.group(group)
    return record.prompt if record else None


def _rollouts(pair: RunPair, step: int, groups: Iterable[str]) -> Iterator[Difference]:
    for name in groups:
        is_decided = all(_is_decided(facts, name) for facts in (pair.a, pair.b))
        for sample in _members(pair, name):
            a, b = pair.a.sample(sample), pair.b.sample(sample)
            done_a, done_b = a.completed if a else None, b.completed if b else None
            field, values = _rollout_field(done_a, done_b)
            if field is None and is_decided and (done_a is None) != (done_b is None):
                field, values = "end", (_end_of(a), _end_of(b))
            if field is not None:
                inputs = both(request_inputs(a), request_inputs(b))
                yield _difference(
                    Kind.TOKENS, field, step, done_a, done_b, values, group=name, sample=sample, inputs=inputs
                )


def _rollout_field(
    a: Entry[RolloutCompleted] | None, b: Entry[RolloutCompleted] | None
) -> tuple[str | None, tuple[Scalar, Scalar]]:
    """Return the first differing field of two completed rollouts, and its values; arrays as their digests."""
    for field in _ROLLOUT_FIELDS if a and b else ():
        values = [getattr(entry.event, field) for entry in (a, b) if entry]
        if values[0] != values[1]:
            of_a, of_b = (value.digest() if isinstance(value, Array) else scalar(value) for value in values)
            return field, (of_a, of_b)
    return None, (None, None)


def _end_of(sample: Sample | None) -> str | None:
    if sample is None:
        return None
    if sample.completed is not None:
        return "completed"
    last = sample.interruptions[-1].event if sample.interruptions else None
    return f"failed: {last.message}" if isinstance(last, RolloutFailed) else "not completed"


def _rewards(pair: RunPair, step: int, groups: Iterable[str]) -> Iterator[Difference]:
    for name in groups:
        for sample in _members(pair, name):
            a, b = (record.reward if (record := facts.sample(sample)) else None for facts in (pair.a, pair.b))
            if a is None or b is None:
                continue
            field = "value"
            grades: tuple[Grade, Grade] = (a.event, b.event)
            values: tuple[Scalar, Scalar] = (_reward_value(grades[0]), _reward_value(grades[1]))
            if _same(*values):
                teachers = [getattr(entry.event, "teacher_log_probs", None) for entry in (a, b)]
                if teachers[0] == teachers[1]:
                    continue
                digests = [None if teacher is None else teacher.digest() for teacher in teachers]
                field, values = "teacher_log_probs", (digests[0], digests[1])
            inputs = both(grader_inputs(grades[0]), grader_inputs(grades[1]))
            inputs += both(answer_inputs(pair.a, name, sample), answer_inputs(pair.b, name, sample))
            yield _difference(Kind.REWARD, field, step, a, b, values, group=name, sample=sample, inputs=inputs)


def _reward_value(event: Grade) -> float | str:
    return event.value if isinstance(event, RewardAssigned) else f"failed ({event.kind.value}): {event.message}"


def _decisions(pair: RunPair, step: int, groups: Iterable[str]) -> Iterator[Difference]:
    for name in groups:
        a, b = (group.verdict if (group := facts.group(name)) else None for facts in (pair.a, pair.b))
        if a is None or b is None:
            continue
        verdicts: tuple[Verdict, Verdict] = (a.event, b.event)
        values = (verdict_text(verdicts[0]), verdict_text(verdicts[1]))
        if values[0] != values[1]:
            inputs = both(verdict_inputs(verdicts[0]), verdict_inputs(verdicts[1]))
            yield _difference(Kind.DECISION, "verdict", step, a, b, values, group=name, inputs=inputs)


def _batch(pair: RunPair, step: int) -> Iterator[Difference]:
    a, b = pair.a.run.steps[step].sealed, pair.b.run.steps[step].sealed
    difference = _batch_difference(a.event, b.event)
    if difference is None:
        return
    field, index, values = difference
    names = [None if index is None else _at(entry.event.samples, index) for entry in (a, b)]
    inputs = both(batch_inputs(a.event), batch_inputs(b.event))
    if field == "samples":
        for name in filter(None, dict.fromkeys(names)):
            inputs += both(fate_inputs(pair.a, name), fate_inputs(pair.b, name))
    sample = names[0] if names[0] == names[1] else None
    yield _difference(Kind.BATCH, field, step, a, b, values, sample=sample, index=index, inputs=inputs)


def _batch_difference(a: BatchSealed, b: BatchSealed) -> tuple[str, int | None, tuple[Any, Any]] | None:
    """Return the first differing field of two batches, the place in it, and the values there."""
    for field in ("samples", "raw_rewards", "rewards"):
        values = getattr(a, field), getattr(b, field)
        for index in range(max(map(len, values))):
            pair = (_at(values[0], index), _at(values[1], index))
            if not _same(*pair):
                return field, index, pair
    for field in ("removed", "columns", "commands", "digest"):
        pair = (getattr(a, field), getattr(b, field))
        if pair[0] != pair[1]:
            return field, None, tuple(_short(field, value) for value in pair)  # type: ignore[return-value]
    return None


def _short(field: str, value: Any) -> str:
    """Return a field of a batch as text: the names alone of columns, which may have millions of numbers."""
    if field == "digest":
        return str(value)
    return " ".join(part.name for part in value) if field == "columns" else " ".join(value)


def _training(pair: RunPair, step: int) -> Iterator[Difference]:
    a, b = pair.a.run.steps[step].committed, pair.b.run.steps[step].committed
    if a is None or b is None:
        return
    inputs = both(training_inputs(a.event), training_inputs(b.event))
    norms = (a.event.metrics.get(GRADIENT_NORM), b.event.metrics.get(GRADIENT_NORM))
    if None not in norms and not _same(*norms):
        yield _difference(Kind.GRADIENT_NORM, GRADIENT_NORM, step, a, b, norms, inputs=inputs)
    for field in ("weights_digest", "optimizer_digest", "critic_digest"):
        digests = (getattr(a.event, field), getattr(b.event, field))
        if all(digests) and digests[0] != digests[1]:
            yield _difference(Kind.DIGEST, field, step, a, b, digests, inputs=inputs + pair.software())
            return


def _difference(
    kind: Kind,
    field: str,
    step: int,
    a: Entry[Any] | None,
    b: Entry[Any] | None,
    values: Sequence[Any],
    **details: Any,
) -> Difference:
    """Return a difference of two events, or of an event and its absence."""
    return Difference(
        kind=kind,
        field=field,
        step=step,
        a=scalar(values[0]),
        b=scalar(values[1]),
        a_position=a.position if a else None,
        b_position=b.position if b else None,
        **details,
    )


def _members(pair: RunPair, group: str) -> list[str]:
    """Return the ids of a group's samples in either run, in index order."""
    records = [record for facts in (pair.a, pair.b) if (record := facts.group(group)) is not None]
    return sorted({sample for record in records for sample in record.samples}, key=order_in_group)


def _is_decided(facts: RunFacts, group: str) -> bool:
    record = facts.group(group)
    return record is not None and record.verdict is not None


def _at(values: Sequence[T], index: int) -> T | None:
    return values[index] if index < len(values) else None


def _same(a: object, b: object) -> bool:
    """Return whether two values are equal; NaN is equal to NaN."""
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    return a == b
