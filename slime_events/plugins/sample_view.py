"""Rollouts as slime's `Sample`s, for a user's generate function, grader or filter; and the text of their prompts.

As in slime `sample.prompt` is a text for all of them, what the model reads after the chat template where there is one;
or messages, where the data holds such and no template is applied.
A grader's sample is the one that the generate function left: what the events do not say by themselves is in
`RolloutCompleted.attributes`.
"""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from schemas.arrays import Array
from schemas.ids import order_in_group
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import Place, RolloutCompleted, RolloutRequested, StopReason
from slime_events.core.state.group import GroupState, Left, SampleState
from slime_events.core.trajectory import Fetch, Trajectory
from slime_events.plugins.sample import FINISH, Sample, Status

STATUS = {reason: FINISH[reason.value] for reason in StopReason}

Decode = Callable[[Sequence[int]], str]
"""The text of some tokens."""
DecodePrompt = Callable[[Array], str]
"""The text of a prompt's tokens."""


def prompt_text(prompt: PromptSubmitted, completed: RolloutCompleted | None, decode: DecodePrompt | None = None) -> str:
    """The prompt of one sample as the model read it, after the chat template. Only this function decides it.

    It is the group's, unless a generate function gave the sample a prompt of its own. Logs from before `prompt_text`
    was recorded hold only the tokens of such a prompt, which `decode` turns into text. Without `decode` the text is
    empty, since the group's prompt would be wrong.
    """
    if completed is None or completed.prompt is None:
        return prompt.text
    return completed.prompt_text or (decode(completed.prompt) if decode else "")


def text_decoder(checkpoint: str | None) -> Decode | None:
    """Decodes by the tokenizer file of `--hf-checkpoint`, special tokens included; None where the file is missing."""
    path = Path(checkpoint or "", "tokenizer.json")
    if not checkpoint or not path.is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))


def prompt_decoder(checkpoint: str | None, fetch: Callable[[Array], Any]) -> DecodePrompt:
    """`decode` for `prompt_text`. The first prompt that needs it reads the tokenizer; empty where that is missing."""
    decoder = functools.cache(lambda: text_decoder(checkpoint))

    def decode(prompt: Array) -> str:
        to_text = decoder()
        return to_text(fetch(prompt).tolist()) if to_text else ""

    return decode


def group_samples(
    group: GroupState, trajectories: Mapping[str, Trajectory] | None = None
) -> list[Sample | list[Sample]]:
    """The rollouts of a decided group, in index order; with tokens and log-probs where trajectories are given.

    A rollout that became several samples is a list of them, as in slime.
    """
    rollouts: dict[int, list[Sample]] = {}
    requested = len({order_in_group(name)[0] for name in group.samples})
    for state in group.samples.values():
        index, _ = order_in_group(state.sample)
        sample = _from_state(group, state, group.order * requested + index)
        if trajectory := (trajectories or {}).get(state.sample):
            sample.tokens = trajectory.tokens.tolist()
            sample.rollout_log_probs = trajectory.log_probs.tolist()
            sample.loss_mask = None if trajectory.loss_mask is None else trajectory.loss_mask.tolist()
        rollouts.setdefault(index, []).append(sample)
    return [samples if len(samples) > 1 else samples[0] for samples in rollouts.values()]


def _from_state(group: GroupState, state: SampleState, index: int) -> Sample:
    left = Left() if state.left is msgspec.UNSET else state.left
    asked = None if group.asked is msgspec.UNSET else group.asked
    prompt: Any = group.text if asked is None else shown_prompt(asked)
    begun = group.metadata if asked is None else _with_tools(asked)
    versions = left.versions or sorted({v for v in (state.oldest, state.newest) if v is not None})
    sample = Sample(
        group_index=group.order,
        index=index,
        prompt=_copied(prompt) if state.prompt_text is msgspec.UNSET else state.prompt_text,
        response="" if state.text is msgspec.UNSET else state.text,
        response_length=state.length,
        label=group.label,
        weight_versions=[str(version) for version in versions],
        status=STATUS.get(state.stop, Status.PENDING) if state.stop else Status.PENDING,
        metadata=_copied(_with(begun, left.metadata)),
        generate_function_path=(asked and asked.generate_function_path) or None,
        custom_rm_path=(asked and asked.custom_rm_path) or None,
        session_id=state.sample,
    )
    sample = _with_attributes(sample, {} if asked is None else asked.attributes, left.attributes)
    sample.reward = state.reward
    sample.metadata = _with(sample.metadata, copy.deepcopy(left.graded))
    return sample


def completed_sample(
    completed: RolloutCompleted, asked: PromptSubmitted, fetch: Fetch | None = None, whole: Trajectory | None = None
) -> Sample:
    """A completed rollout as its grader sees it, live and in a rescore: as its generate function left it.

    fetch: without it there are no tokens, log-probs and loss mask, which no built-in grader reads. whole: of a rollout
    that has chunks.
    """
    place = completed.place or Place(order_in_group(completed.sample)[0])
    sample = Sample(
        group_index=place.group_index,
        index=place.index,
        prompt=_copied(shown_prompt(asked, completed)),
        response=completed.text,
        response_length=completed.length,
        label=asked.label,
        weight_versions=[str(span.version) for span in completed.spans],
        status=STATUS[completed.stop],
        metadata=_copied(shown_metadata(asked, completed)),
        generate_function_path=asked.generate_function_path or None,
        custom_rm_path=asked.custom_rm_path or None,
        session_id=completed.sample,
    )
    if fetch is not None:
        if whole is None:
            whole = Trajectory(completed.sample, asked.tokens)
            whole.complete(completed, fetch)
        sample.tokens = [*fetch(whole.prompt).tolist(), *whole.tokens.tolist()]
        sample.rollout_log_probs = whole.log_probs.tolist()
        sample.loss_mask = [1] * whole.length if whole.loss_mask is None else whole.loss_mask.tolist()
    return _with_attributes(sample, asked.attributes, completed.attributes)


def _with_attributes(sample: Sample, asked: dict[str, Any], left: dict[str, Any]) -> Sample:
    """asked: of its prompt. left: by who made the rollout."""
    return Sample.from_dict(sample.to_dict() | copy.deepcopy(asked | left)) if asked or left else sample


def graded_sample(sample: Sample, event: RewardAssigned) -> None:
    """Give the sample its reward, and what its grader left in its metadata."""
    sample.reward = event.value
    sample.metadata = _with(sample.metadata, copy.deepcopy(graded_metadata(event)))


def graded_metadata(event: RewardAssigned) -> dict[str, Any]:
    """What the grader left in the sample's metadata. Not to be changed: it is the event's."""
    metadata = (event.detail or {}).get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def shown_prompt(asked: PromptSubmitted, completed: RolloutCompleted | None = None) -> str | list[dict[str, Any]]:
    """As slime has it: the messages only where no template is applied. Not to be changed: it is the event's."""
    if completed is not None and completed.prompt is not None:
        return prompt_text(asked, completed)
    return asked.messages if asked.chat and asked.messages else asked.text


def shown_metadata(asked: PromptSubmitted, completed: RolloutCompleted) -> Any:
    """The metadata that a rollout ended with, but for its attributes. Not to be changed: it is the events'."""
    return _with(_with_tools(asked), completed.metadata)


def _copied(value: Any) -> Any:
    """A copy that a user's function may change. Most metadata is empty, and a copy of that takes long by `copy`."""
    return {} if value == {} and type(value) is dict else copy.deepcopy(value)


def given_metadata(asked: PromptSubmitted) -> Any:
    """The metadata that a rollout begins with; a copy, which a function may change. As in slime it has the tools, if it
    is a dict.
    """
    return _copied(_with_tools(asked))


def _with_tools(asked: PromptSubmitted) -> Any:
    return _with(asked.metadata, {"tools": asked.tools} if asked.tools else {})


def left_metadata(asked: PromptSubmitted, completed: RolloutCompleted) -> Any:
    """The metadata that a rollout ended with, without the prompt's tools where nobody touched them."""
    return completed.attributes.get("metadata", _with(asked.metadata, completed.metadata))


def _with(metadata: Any, more: dict[str, Any]) -> Any:
    return metadata | more if isinstance(metadata, dict) else metadata


def sample_to_make(request: RolloutRequested, asked: PromptSubmitted) -> Sample:
    """A requested rollout, as a generate function is given it."""
    place = request.place or Place(request.index)
    sample = Sample(
        group_index=place.group_index,
        index=place.index,
        prompt=_copied(shown_prompt(asked)),
        label=copy.deepcopy(asked.label),
        metadata=given_metadata(asked),
        generate_function_path=asked.generate_function_path or None,
        custom_rm_path=asked.custom_rm_path or None,
        session_id=request.sample,
    )
    return _with_attributes(sample, asked.attributes, {})
