"""`Outcome`: what a rollout function returned, as the events that say it. Pure.

    a group of a prompt that was drawn: rollout.requested, rollout.completed and reward.assigned for each of its samples
    a group that the function brought:  prompt.submitted before them

A sample that cannot be trained on is a rollout.failed with the reason, by which the conductor rejects its group.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from msgspec.structs import replace

from schemas.arrays import EMPTY_LOG_PROBS, EMPTY_TOKENS, INLINE_LIMIT, pack_tokens
from schemas.codec import encode_event
from schemas.errors import EventTooLarge, PlugPointError, reason_of
from schemas.event import Event, type_of
from schemas.ids import BROUGHT, brought_group_id, group_of, sample_id, sibling_id
from schemas.prompts import PromptSubmitted, Source
from schemas.rewards import RewardAssigned
from schemas.rollouts import FailureKind, Place, RolloutCompleted, RolloutFailed, RolloutRequested, Timings
from serve_apps.generate.custom import Made, completion, ids_of
from serve_apps.generate.returned import read_sample
from serve_apps.rollout_function.function import RolloutFunction
from serve_apps.rollout_function.made_turns import MadeTurns
from slime_events.loop.conductor.draw import sample_seed
from slime_events.loop.conductor.plan import Plan
from slime_events.plugins.rewards.outcome import outcome_event, signed, value_of
from slime_events.plugins.sample import Sample, carried
from storage.log import HEADER_BYTES, MAX_EVENT_BYTES

Rollout = Sample | list[Sample]


@dataclass(frozen=True, slots=True)
class Making:
    """What the events of one call need to know. version: published when the function was called. order, offset: of its
    first group among those requested, and among those that the function brought. ungraded: the reward of samples that
    have none; None leaves them to the run's grader. vocabulary: ids of the model; None is unknown.
    """

    function: RolloutFunction
    plan: Plan
    turns: MadeTurns
    tokenizer: Any
    worker: str
    version: int
    order: int
    offset: int
    reward_key: str | None = None
    ungraded: float | None = None
    vocabulary: int | None = None


@dataclass(slots=True)
class Outcome:
    """groups: their names, in order. events: what they are; those of a list are stored together, so that no grader sees
    a sample without the reward that it has.
    """

    groups: list[str] = field(default_factory=list)
    events: list[list[Event]] = field(default_factory=list)


def groups_of(samples: Any) -> list[list[Rollout]] | None:
    """The groups in what a function returned. slime takes a plain list of samples too: a group is then what has one
    `group_index`. None for anything else.
    """
    if not isinstance(samples, list):
        return None
    if samples and all(isinstance(one, Sample) for one in samples):
        keyed = [(f"{place} alone" if one.group_index is None else one.group_index, one)
                 for place, one in enumerate(samples)]  # fmt: skip
        return [[one for _, one in group] for _, group in groupby(keyed, key=lambda pair: pair[0])]
    are_groups = all(isinstance(group, list) and group and all(map(_is_rollout, group)) for group in samples)
    return samples if are_groups else None


def _is_rollout(value: Any) -> bool:
    return isinstance(value, Sample) or (
        isinstance(value, list) and bool(value) and all(isinstance(one, Sample) for one in value)
    )


def drawn_group(group: Sequence[Rollout], known: Mapping[str, Any], numbers: Mapping[int, str]) -> str | None:
    """The drawn group that samples are of, by their `session_id` or else their `group_index`. numbers: drawn groups by
    index; known: all drawn groups.
    """
    for sample in flat(group):
        own, place = sample.session_id, sample.group_index
        for name in (
            group_of(own) if isinstance(own, str) else None,
            numbers.get(place) if isinstance(place, int) else None,
        ):
            if name in known:
                return name
    return None


def flat(group: Sequence[Rollout]) -> list[Sample]:
    """All samples of a group."""
    return [sample for one in group for sample in (one if isinstance(one, list) else [one])]


def outcome_of(
    groups: Sequence[list[Rollout]], prompts: Mapping[str, PromptSubmitted], numbers: Mapping[int, str], making: Making
) -> Outcome:
    """prompts, numbers: of the groups that the function was given, by name and by index."""
    outcome, left = Outcome(), dict(prompts)
    brought = 0
    for order, group in enumerate(groups, making.order):
        name, why = drawn_group(group, left, numbers), ""
        if name is not None:
            prompt = left.pop(name)
        else:
            prompt, why = _own_prompt(flat(group)[0], making.offset + brought, making)
            brought += 1
            outcome.events.append([prompt])
        outcome.groups.append(prompt.group)
        requests = [_request(prompt, index, order, making) for index in range(len(group))]
        outcome.events += [[one] for one in requests]  # all before the first answer: a group that has ended is decided
        outcome.events += [
            _written(_rollout(rollout, request, prompt, making), request, making, why)
            for request, rollout in zip(requests, group, strict=True)
        ]
    return outcome


def _own_prompt(sample: Sample, offset: int, making: Making) -> tuple[PromptSubmitted, str]:
    """The prompt that a function brought; where it cannot be recorded, an empty one, and why."""
    try:
        prompt = _brought(sample, offset, making)
        _check_written(prompt)
    except BaseException as error:  # whatever the function left on the sample
        name = making.function.name
        source = Source(path=name, row=offset, offset=offset)
        empty = PromptSubmitted(
            group=brought_group_id(offset), text="", tokens=EMPTY_TOKENS, source=source, dataset=BROUGHT
        )
        return empty, f"the prompt that {name} brought cannot be recorded: {reason_of(error)}"
    return prompt, ""


def _brought(sample: Sample, offset: int, making: Making) -> PromptSubmitted:
    tokens = _prompt_ids(sample, making)
    chat = sample.prompt if isinstance(sample.prompt, list) else None
    text = sample.prompt if isinstance(sample.prompt, str) and sample.prompt else making.tokenizer.decode(tokens)
    return PromptSubmitted(
        group=brought_group_id(offset),
        text=text,
        tokens=pack_tokens(tokens) if tokens else EMPTY_TOKENS,
        source=Source(path=making.function.name, row=offset, offset=offset),
        dataset=BROUGHT,
        messages=carried(chat, "sample.prompt"),
        chat=chat is not None,
        label=carried(sample.label, "sample.label"),
        metadata=carried(sample.metadata, "sample.metadata"),
        custom_rm_path=sample.custom_rm_path or "",
    )


def _prompt_ids(sample: Sample, making: Making) -> list[int]:
    """None where the sample has no tokens of the model: it is failed with the reason after its prompt."""
    try:
        ids: list[int] = ids_of(sample, "", making.vocabulary).tolist()
    except PlugPointError:
        return []
    return ids[: max(0, len(ids) - sample.response_length)]


def _request(prompt: PromptSubmitted, index: int, order: int, making: Making) -> RolloutRequested:
    name = sample_id(prompt.group, index)
    return RolloutRequested(
        sample=name,
        group=prompt.group,
        index=index,
        place=Place(order * making.plan.samples + index, order),
        prompt=prompt.tokens,
        sampling=making.plan.sampling,
        seed=sample_seed(making.plan.seed, name),
        min_version=making.version,
        function=making.function.name,
    )


def _written(events: Iterator[Event], request: RolloutRequested, making: Making, why: str) -> list[Event]:
    """The events of a rollout, or its failure: where its prompt says why, or one of them cannot be written."""
    try:
        made = [] if why else list(events)
        for event in made:
            _check_written(event)
    except BaseException as error:  # of an object of the function's
        why = reason_of(error)
    return [_failed(request, why, making)] if why else made


def _check_written(event: Event) -> None:
    """Raises UnwritableEvent, EventTooLarge: what `rollout.returned` names has to be appended, whatever happens."""
    if isinstance(event, RolloutCompleted):  # its large arrays go into the blob store
        event = replace(event, tokens=EMPTY_TOKENS, log_probs=EMPTY_LOG_PROBS, loss_mask=None, prompt=None)
    elif isinstance(event, PromptSubmitted):
        event = replace(event, tokens=EMPTY_TOKENS)
    size, most = len(encode_event(event)), MAX_EVENT_BYTES - 4 * INLINE_LIMIT - HEADER_BYTES
    if size > most:
        raise EventTooLarge(f"{type_of(event)} about {event.entity()} has {size} bytes without arrays, of {most}")


def _failed(request: RolloutRequested, why: str, making: Making) -> RolloutFailed:
    return RolloutFailed(
        sample=request.sample,
        group=request.group,
        attempt=0,
        kind=FailureKind.INVALID,
        message=why,
        engine=making.worker,
    )


def _rollout(rollout: Rollout, request: RolloutRequested, prompt: PromptSubmitted, making: Making) -> Iterator[Event]:
    name = request.sample
    samples = rollout if isinstance(rollout, list) else [rollout]
    named = [(one, _completed(one, sibling_id(name, number), request, prompt, making))
             for number, one in enumerate(samples)]  # fmt: skip
    for sample, event in (*named[1:], named[0]):  # the requested sample comes last, so that its reader has the others
        yield event
        yield from _reward(sample, event, making)


def _completed(
    sample: Sample, name: str, request: RolloutRequested, prompt: PromptSubmitted, making: Making
) -> RolloutCompleted:
    ids = ids_of(sample, name, making.vocabulary)
    read_sample(sample)  # before anything is made of it: it names the field that is wrong
    turns = making.turns.of(ids)
    if sample.loss_mask is None:  # as in slime
        sample.loss_mask = [1] * sample.response_length
    asked = ids[: request.prompt.n]
    made = Made(
        request,
        prompt,
        asked if pack_tokens(asked).digest() == request.prompt.digest() else np.zeros(0, np.int32),
        [(turn.prompt, turn.ended) for turn in turns],
        making.worker,
        making.tokenizer,
        Timings(),
        {making.function.name: making.function.digest},
        making.vocabulary,
    )
    return replace(completion(sample, name, made), calls=tuple(turn.call for turn in turns))


def _reward(sample: Sample, event: RolloutCompleted, making: Making) -> Iterator[Event]:
    name, digest = making.function.name, making.function.digest
    if sample.reward is not None:
        yield outcome_event(event.sample, event.group, signed(value_of(sample.reward, making.reward_key), name, digest))
    elif making.ungraded is not None:
        yield RewardAssigned(
            sample=event.sample, group=event.group, value=making.ungraded, grader=name, grader_digest=digest
        )
