"""Rollouts as slime's `Sample`s, for a user's generate function, grader or filter; and the text of their prompts.

As in slime `sample.prompt` is a text for all of them: the text that the model reads, after the chat template if there
is one. If the data holds messages and no template is applied, it is the messages. A grader sees the sample as the
generate function left it: `RolloutCompleted.attributes` holds whatever the event's own fields do not.
"""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from schemas.arrays import Array
from schemas.ids import order_in_group
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import Place, RolloutCompleted, RolloutRequested, StopReason
from slime_events.core.state.group import GroupState, Left, SampleState
from slime_events.core.tokens.trajectory import Fetch, Trajectory
from slime_events.plugins.sample import FINISH, Sample, Status

T = TypeVar("T")
STATUS = {reason: FINISH[reason.value] for reason in StopReason}

TOKENIZER = "tokenizer.json"
"""File of a tokenizer in the folder of a checkpoint."""
Decode = Callable[[Sequence[int]], str]
"""Token ids to text."""
DecodePrompt = Callable[[Array], str]
"""Token ids of a prompt to text."""


def prompt_text(prompt: PromptSubmitted, completed: RolloutCompleted | None, decode: DecodePrompt | None = None) -> str:
    """Return the prompt of one sample as the model read it, after the chat template. No other function decides this.

    It is the group's prompt, unless a generate function gave the sample its own. A log older than the field
    `prompt_text` has only the tokens of such a prompt, which `decode` turns into text. Without `decode` the text is
    empty, since the group's prompt would be wrong.
    """
    if completed is None or completed.prompt is None:
        return prompt.text
    return completed.prompt_text or (decode(completed.prompt) if decode else "")


def text_decoder(checkpoint: str | None) -> Decode | None:
    """Return a decoder from `--hf-checkpoint`'s tokenizer file, special tokens included; None without the file."""
    path = Path(checkpoint or "", TOKENIZER)
    if not checkpoint or not path.is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))


def tokenizer_folder(checkpoint: str | None, weights: Path | None) -> str | None:
    """Return the folder of a run's tokenizer: `--hf-checkpoint`, or if that has none, a version of the run's weights,
    which has a copy. weights: folder of the run's versions; None for an archive.
    """
    if not checkpoint or Path(checkpoint, TOKENIZER).is_file() or weights is None:
        return checkpoint
    return next((str(path.parent) for path in sorted(weights.glob(f"*/{TOKENIZER}"))), checkpoint)


def prompt_decoder(checkpoint: str | None, fetch: Callable[[Array], Any]) -> DecodePrompt:
    """Return `decode` for `prompt_text`. The first prompt loads the tokenizer; without one the text is empty."""
    decoder = functools.cache(lambda: text_decoder(checkpoint))

    def decode(prompt: Array) -> str:
        to_text = decoder()
        return to_text(fetch(prompt).tolist()) if to_text else ""

    return decode


def group_samples(
    group: GroupState, trajectories: Mapping[str, Trajectory] | None = None
) -> list[Sample | list[Sample]]:
    """Return the rollouts of a decided group in index order, with tokens and log-probs if `trajectories` has them.

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
    submitted = None if group.asked is msgspec.UNSET else group.asked
    prompt = group.text if submitted is None else shown_prompt(submitted)
    begun = group.metadata if submitted is None else _with_tools(submitted)
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
        generate_function_path=(submitted and submitted.generate_function_path) or None,
        custom_rm_path=(submitted and submitted.custom_rm_path) or None,
        session_id=state.sample,
    )
    sample = _with_attributes(sample, {} if submitted is None else submitted.attributes, left.attributes)
    sample.reward = state.reward
    sample.metadata = _with(sample.metadata, copy.deepcopy(left.graded))
    return sample


def completed_sample(
    completed: RolloutCompleted, submitted: PromptSubmitted, fetch: Fetch | None = None, whole: Trajectory | None = None
) -> Sample:
    """Return a completed rollout as its grader sees it, live and in a rescore: as its generate function left it.

    Without `fetch` there are no tokens, log-probs and loss mask, which no built-in grader reads. `whole` is the
    trajectory of a rollout that was recorded in chunks.
    """
    place = completed.place or Place(order_in_group(completed.sample)[0])
    sample = Sample(
        group_index=place.group_index,
        index=place.index,
        prompt=_copied(shown_prompt(submitted, completed)),
        response=completed.text,
        response_length=completed.length,
        label=submitted.label,
        weight_versions=[str(span.version) for span in completed.spans],
        status=STATUS[completed.stop],
        metadata=_copied(shown_metadata(submitted, completed)),
        generate_function_path=submitted.generate_function_path or None,
        custom_rm_path=submitted.custom_rm_path or None,
        session_id=completed.sample,
    )
    if fetch is not None:
        if whole is None:
            whole = Trajectory(completed.sample, submitted.tokens)
            whole.complete(completed, fetch)
        sample.tokens = [*fetch(whole.prompt).tolist(), *whole.tokens.tolist()]
        sample.rollout_log_probs = whole.log_probs.tolist()
        sample.loss_mask = [1] * whole.length if whole.loss_mask is None else whole.loss_mask.tolist()
    return _with_attributes(sample, submitted.attributes, completed.attributes)


def _with_attributes(sample: Sample, of_prompt: dict[str, Any], of_rollout: dict[str, Any]) -> Sample:
    more = of_prompt | of_rollout
    return Sample.from_dict(sample.to_dict() | copy.deepcopy(more)) if more else sample


def graded_sample(sample: Sample, event: RewardAssigned) -> None:
    """Set the sample's reward, and add the metadata that its grader left."""
    sample.reward = event.value
    sample.metadata = _with(sample.metadata, copy.deepcopy(graded_metadata(event)))


def graded_metadata(event: RewardAssigned) -> dict[str, Any]:
    """Return the metadata that the grader left on the sample. It belongs to the event: do not change it."""
    metadata = (event.detail or {}).get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def shown_prompt(submitted: PromptSubmitted, completed: RolloutCompleted | None = None) -> str | list[dict[str, Any]]:
    """Return `sample.prompt`: messages if no template is applied, else a text. Do not change it: the event owns it."""
    if completed is not None and completed.prompt is not None:
        return prompt_text(submitted, completed)
    return submitted.messages if submitted.chat and submitted.messages else submitted.text


def shown_metadata(submitted: PromptSubmitted, completed: RolloutCompleted) -> Any:
    """Return the metadata that a rollout ended with, before its attributes. It belongs to the events: do not change."""
    return _with(_with_tools(submitted), completed.metadata)


def _copied(value: T) -> T:
    """Return a copy that a user's function may change. Most metadata is `{}`, which `copy` is slow at."""
    return cast(T, {}) if value == {} and type(value) is dict else copy.deepcopy(value)


def initial_metadata(submitted: PromptSubmitted) -> Any:
    """Return a copy of the metadata that a rollout begins with. If it is a dict, it has the tools, as in slime."""
    return _copied(_with_tools(submitted))


def _with_tools(submitted: PromptSubmitted) -> Any:
    return _with(submitted.metadata, {"tools": submitted.tools} if submitted.tools else {})


def final_metadata(submitted: PromptSubmitted, completed: RolloutCompleted) -> Any:
    """Return the metadata that a rollout ended with, without the prompt's tools unless a function changed them."""
    return completed.attributes.get("metadata", _with(submitted.metadata, completed.metadata))


def _with(metadata: Any, more: dict[str, Any]) -> Any:
    return metadata | more if isinstance(metadata, dict) else metadata


def requested_sample(request: RolloutRequested, submitted: PromptSubmitted) -> Sample:
    """Return a requested rollout as the argument of a generate function."""
    place = request.place or Place(request.index)
    sample = Sample(
        group_index=place.group_index,
        index=place.index,
        prompt=_copied(shown_prompt(submitted)),
        label=copy.deepcopy(submitted.label),
        metadata=initial_metadata(submitted),
        generate_function_path=submitted.generate_function_path or None,
        custom_rm_path=submitted.custom_rm_path or None,
        session_id=request.sample,
    )
    return _with_attributes(sample, submitted.attributes, {})
