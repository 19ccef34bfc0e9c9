"""`Outcome`: the result of a rollout function as events. Pure.

    a group of a drawn prompt:            rollout.requested, rollout.completed and reward.assigned for each sample
    a group that the function brought:    the same, after its prompt.submitted

A sample that cannot be trained on becomes a rollout.failed with the reason. The conductor then rejects its group.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated

import numpy as np
from msgspec.structs import replace

from schemas.arrays import EMPTY_LOG_PROBS, EMPTY_TOKENS, INLINE_LIMIT, pack_tokens
from schemas.codec import encode_event
from schemas.doc import doc
from schemas.errors import EventTooLarge, PlugPointError, reason_of
from schemas.event import Event, type_of
from schemas.ids import BROUGHT, brought_group_id, group_of, sample_id, sample_seed, sibling_id
from schemas.prompts import PromptSubmitted, Source
from schemas.rewards import RewardAssigned
from schemas.rollouts import FailureKind, Maker, Place, RolloutCompleted, RolloutFailed, RolloutRequested, Timings
from serve_apps.rollouts.generate.custom import CompletionContext, completion, ids_of
from serve_apps.rollouts.generate.returned import read_sample
from serve_apps.rollouts.rollout_function.function import RolloutFunction
from serve_apps.rollouts.rollout_function.recorded_turns import MadeTurns
from slime_events.loop.conductor.plan import Plan
from slime_events.plugins.rewards.outcome import outcome_event, signed, value_of
from slime_events.plugins.sample import Sample, carried
from slime_events.plugins.tokenizer import Tokenizer
from storage.log import HEADER_BYTES, MAX_EVENT_BYTES

Rollout = Sample | list[Sample]


@dataclass(frozen=True, slots=True)
class OutcomeContext:
    """Inputs for the events of one call."""

    function: RolloutFunction
    plan: Plan
    turns: MadeTurns
    tokenizer: Tokenizer
    worker: str
    version: Annotated[int, doc("Published weight version when the function was called.")]
    order: Annotated[int, doc("Index of the first group among all requested groups.")]
    offset: Annotated[int, doc("Index of the first group among those that the function brought.")]
    reward_key: str | None = None
    ungraded: Annotated[float | None, doc("Reward of samples without one; None leaves them to the run's grader.")] = (
        None
    )
    vocabulary: Annotated[int | None, doc("Number of token ids of the model; None if unknown.")] = None


@dataclass(slots=True)
class Outcome:
    """Events of one call."""

    groups: Annotated[list[str], doc("Names of the groups, in order.")] = field(default_factory=list)
    events: Annotated[
        list[list[Event]],
        doc("Events; those of one list are stored together, so that no grader sees a sample without its reward."),
    ] = field(default_factory=list)


def groups_of(samples: object) -> list[list[Rollout]] | None:
    """Return the groups in a function's result; None for anything else.

    As in slime a plain list of samples is allowed: consecutive samples with the same `group_index` are a group.
    """
    if not isinstance(samples, list):
        return None
    if samples and all(isinstance(sample, Sample) for sample in samples):
        keyed = [(f"{place} alone" if sample.group_index is None else sample.group_index, sample)
                 for place, sample in enumerate(samples)]  # fmt: skip
        return [[sample for _, sample in group] for _, group in groupby(keyed, key=lambda pair: pair[0])]
    are_groups = all(isinstance(group, list) and group and all(map(_is_rollout, group)) for group in samples)
    return samples if are_groups else None


def _is_rollout(value: object) -> bool:
    return isinstance(value, Sample) or (
        isinstance(value, list) and bool(value) and all(isinstance(sample, Sample) for sample in value)
    )


def drawn_group(group: Sequence[Rollout], drawn: Container[str], numbers: Mapping[int, str]) -> str | None:
    """Return the drawn group of the samples, by their `session_id` or else their `group_index`; None without one.

    `drawn` holds all drawn groups, `numbers` maps an index to a drawn group.
    """
    for sample in flat(group):
        own, place = sample.session_id, sample.group_index
        for name in (
            group_of(own) if isinstance(own, str) else None,
            numbers.get(place) if isinstance(place, int) else None,
        ):
            if name is not None and name in drawn:
                return name
    return None


def flat(group: Sequence[Rollout]) -> list[Sample]:
    """Return all samples of a group."""
    return [sample for item in group for sample in (item if isinstance(item, list) else [item])]


def outcome_of(
    groups: Sequence[list[Rollout]],
    prompts: Mapping[str, PromptSubmitted],
    numbers: Mapping[int, str],
    context: OutcomeContext,
) -> Outcome:
    """Return the events of a call's groups.

    `prompts` and `numbers` are the groups that the function received, by name and by index.
    """
    outcome, left = Outcome(), dict(prompts)
    brought = 0
    for order, group in enumerate(groups, context.order):
        name, why = drawn_group(group, left, numbers), ""
        if name is not None:
            prompt = left.pop(name)
        else:
            prompt, why = _own_prompt(flat(group)[0], context.offset + brought, context)
            brought += 1
            outcome.events.append([prompt])
        outcome.groups.append(prompt.group)
        requests = [_request(prompt, index, order, context) for index in range(len(group))]
        outcome.events += [[event] for event in requests]  # before any answer: a complete group is decided at once
        outcome.events += [
            _written(_rollout(rollout, request, prompt, context), request, context, why)
            for request, rollout in zip(requests, group, strict=True)
        ]
    return outcome


def _own_prompt(sample: Sample, offset: int, context: OutcomeContext) -> tuple[PromptSubmitted, str]:
    """Return the prompt that a function brought. If it cannot be recorded, return an empty one and the reason."""
    try:
        prompt = _brought(sample, offset, context)
        _check_written(prompt)
    except BaseException as error:  # a user's object may raise anything when it is read
        name = context.function.name
        source = Source(path=name, row=offset, offset=offset)
        empty = PromptSubmitted(
            group=brought_group_id(offset), text="", tokens=EMPTY_TOKENS, source=source, dataset=BROUGHT
        )
        return empty, f"the prompt that {name} brought cannot be recorded: {reason_of(error)}"
    return prompt, ""


def _brought(sample: Sample, offset: int, context: OutcomeContext) -> PromptSubmitted:
    tokens = _prompt_ids(sample, context)
    chat = sample.prompt if isinstance(sample.prompt, list) else None
    text = sample.prompt if isinstance(sample.prompt, str) and sample.prompt else context.tokenizer.decode(tokens)
    return PromptSubmitted(
        group=brought_group_id(offset),
        text=text,
        tokens=pack_tokens(tokens) if tokens else EMPTY_TOKENS,
        source=Source(path=context.function.name, row=offset, offset=offset),
        dataset=BROUGHT,
        messages=carried(chat, "sample.prompt"),
        chat=chat is not None,
        label=carried(sample.label, "sample.label"),
        metadata=carried(sample.metadata, "sample.metadata"),
        custom_rm_path=sample.custom_rm_path or "",
    )


def _prompt_ids(sample: Sample, context: OutcomeContext) -> list[int]:
    """Return no ids if the sample's tokens are invalid: it then fails with that reason, after its prompt."""
    try:
        ids: list[int] = ids_of(sample, "", context.vocabulary).tolist()
    except PlugPointError:
        return []
    return ids[: max(0, len(ids) - sample.response_length)]


def _request(prompt: PromptSubmitted, index: int, order: int, context: OutcomeContext) -> RolloutRequested:
    name = sample_id(prompt.group, index)
    return RolloutRequested(
        sample=name,
        group=prompt.group,
        index=index,
        place=Place(order * context.plan.samples + index, order),
        prompt=prompt.tokens,
        sampling=context.plan.sampling,
        seed=sample_seed(context.plan.seed, name),
        min_version=context.version,
        maker=Maker.FUNCTION,
        function=context.function.name,
    )


def _written(events: Iterator[Event], request: RolloutRequested, context: OutcomeContext, why: str) -> list[Event]:
    """Return the events of a rollout, or its failure if `why` is set or one of the events cannot be written."""
    try:
        result = [] if why else list(events)
        for event in result:
            _check_written(event)
    except BaseException as error:  # a user's object may raise anything when it is read
        why = reason_of(error)
    return [_failed(request, why, context)] if why else result


def _check_written(event: Event) -> None:
    """Raise UnwritableEvent or EventTooLarge, since every event that `rollout.returned` names must be appendable."""
    if isinstance(event, RolloutCompleted):  # large arrays go into the blob store
        event = replace(event, tokens=EMPTY_TOKENS, log_probs=EMPTY_LOG_PROBS, loss_mask=None, prompt=None)
    elif isinstance(event, PromptSubmitted):
        event = replace(event, tokens=EMPTY_TOKENS)
    size, most = len(encode_event(event)), MAX_EVENT_BYTES - 4 * INLINE_LIMIT - HEADER_BYTES
    if size > most:
        raise EventTooLarge(
            f"{type_of(event)} about {event.entity()} has {size} bytes without arrays; the limit is {most}"
        )


def _failed(request: RolloutRequested, why: str, context: OutcomeContext) -> RolloutFailed:
    return RolloutFailed(
        sample=request.sample,
        group=request.group,
        attempt=0,
        kind=FailureKind.INVALID,
        message=why,
        engine=context.worker,
    )


def _rollout(
    rollout: Rollout, request: RolloutRequested, prompt: PromptSubmitted, context: OutcomeContext
) -> Iterator[Event]:
    name = request.sample
    samples = rollout if isinstance(rollout, list) else [rollout]
    named = [(sample, _completed(sample, sibling_id(name, number), request, prompt, context))
             for number, sample in enumerate(samples)]  # fmt: skip
    for sample, event in (*named[1:], named[0]):  # requested sample last: its reader has the others
        yield event
        yield from _reward(sample, event, context)


def _completed(
    sample: Sample, name: str, request: RolloutRequested, prompt: PromptSubmitted, context: OutcomeContext
) -> RolloutCompleted:
    ids = ids_of(sample, name, context.vocabulary)
    read_sample(sample)  # first, since its error names the wrong field
    turns = context.turns.of(ids)
    if sample.loss_mask is None:  # as in slime
        sample.loss_mask = [1] * sample.response_length
    prompt_ids = ids[: request.prompt.n]
    shared = CompletionContext(
        request,
        prompt,
        prompt_ids if pack_tokens(prompt_ids).digest() == request.prompt.digest() else np.zeros(0, np.int32),
        [(turn.prompt, turn.ended) for turn in turns],
        context.worker,
        context.tokenizer,
        Timings(),
        {context.function.name: context.function.digest},
        context.vocabulary,
    )
    return replace(completion(sample, name, shared), calls=tuple(turn.call for turn in turns))


def _reward(sample: Sample, event: RolloutCompleted, context: OutcomeContext) -> Iterator[Event]:
    name, digest = context.function.name, context.function.digest
    if sample.reward is not None:
        yield outcome_event(
            event.sample, event.group, signed(value_of(sample.reward, context.reward_key), name, digest)
        )
    elif context.ungraded is not None:
        yield RewardAssigned(
            sample=event.sample, group=event.group, value=context.ungraded, grader=name, grader_digest=digest
        )
