"""`LoadedStep`: a dump or an export as the groups of one step, checked against the settings of the run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from schemas.arrays import pack, pack_log_probs, pack_tokens
from schemas.doc import doc
from schemas.errors import DataError, InvalidValue
from schemas.ids import LOADED, group_id, requested_sample, sibling_id
from schemas.prompts import PromptSubmitted, Source
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutRequested, StopReason, WeightSpan
from slime_events.analysis.export.dump import load_dump
from slime_events.analysis.export.files import read_file
from slime_events.analysis.export.sample import OURS, ExportedSample, Fate, as_slime
from slime_events.analysis.export.writers import AS_JSON
from slime_events.core.checkpoint.vocabulary import token_ids
from slime_events.core.tokens.trajectory import content_digest
from slime_events.plugins.rewards.outcome import RewardFailure
from slime_events.plugins.rewards.teacher import graded
from slime_events.plugins.sample import Sample, Status

SUFFIXES = (".jsonl", ".parquet")


def load_rows(path: str, step: int) -> list[Sample]:
    """Return the samples that were trained on in a step, in order. Raises DataError if the file is not an export of
    samples.
    """
    data = read_file(path)
    try:
        rows = list(_from_parquet(data, step) if path.endswith(".parquet") else _from_lines(data, step))
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, KeyError, OSError) as error:
        raise DataError(f"{path} does not hold exported samples: {error}") from error
    return as_slime(rows)


def _from_lines(data: bytes, step: int) -> Iterator[ExportedSample]:
    decoder = msgspec.json.Decoder(ExportedSample)
    for line in data.splitlines():
        row = decoder.decode(line)
        if row.fate is Fate.TRAINED and row.step == step:
            yield row


def _from_parquet(data: bytes, step: int) -> Iterator[ExportedSample]:
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(data), filters=[("step", "=", step), ("fate", "=", Fate.TRAINED.value)])
    for row in table.to_pylist():
        row |= {name: msgspec.json.decode(row[name]) for name in AS_JSON if row.get(name) is not None}
        row["spans"] = [(span["start"], span["end"], span["version"]) for span in row["spans"]]
        yield msgspec.convert(row, ExportedSample)


GRADER = "recorded"
Rollout = list[Sample]
"""Its samples: the requested one, then its further ones."""
STOPS = {Status.TRUNCATED: StopReason.LENGTH, Status.ABORTED: StopReason.ABORT}


@dataclass(frozen=True, slots=True)
class LoadedStep:
    """The groups of one step, from a dump or an export."""

    step: Annotated[int, doc("number of the step")]
    template: Annotated[str, doc("path template and source of the prompts: a row per group, an epoch per dump")]
    path: Annotated[str, doc("path of this dump")]
    groups: Annotated[list[list[Rollout]], doc("rollouts per group")]
    reward_key: Annotated[str | None, doc("key of the reward in rewards that are dicts")] = None

    @classmethod
    def load(
        cls,
        template: str,
        step: int,
        *,
        groups: int,
        samples: int,
        reward_key: str | None = None,
        part: float | None = None,
        vocabulary: int | None = None,
    ) -> LoadedStep:
        """Load a step. Raises DataError if the dump does not fit, or if a sample cannot be trained on.

        groups, samples: groups per step and rollouts per group in this run. part: fraction of the dump's groups that
        makes a step. vocabulary: size of the model's vocabulary. A template that ends in .jsonl or .parquet belongs to
        `slime-events export`, with one file for all steps or one per step.
        """
        path = template.format(rollout_id=step)
        loaded = load_rows(path, step) if path.endswith(SUFFIXES) else load_dump(path)[1]
        for index, sample in enumerate(loaded):
            if (reason := _misfit(sample, vocabulary)) is not None:
                raise DataError(f"{path}: sample {index} cannot be trained on: {reason}")
        available = _grouped(path, loaded, samples)
        kept = _part_of(available, part)
        if len(kept) != groups:
            whole = f"{path} holds {len(loaded)} samples, and a step of this run has {groups} groups of {samples}. Set "
            if part is None:
                raise DataError(
                    whole + "--rollout-batch-size and --n-samples-per-prompt to the values of the run that made it"
                )
            raise DataError(
                f"{path}: {part:g} of its {len(available)} groups are {len(kept)}, and a step of this run has "
                f"{groups} groups. Set --rollout-batch-size {len(kept)}, and --global-batch-size to match"
            )
        return cls(step, template, path, kept, reward_key)

    def prompts(self) -> list[PromptSubmitted]:
        """Return a prompt per group, as if it came from outside."""
        offset = self.step * len(self.groups)
        return [
            PromptSubmitted(
                group=group_id(LOADED, self.step, index),
                text=_text(first),
                tokens=pack_tokens(first.tokens[: -first.response_length]),
                source=Source(path=self.template, row=index, epoch=self.step, offset=offset + index),
                dataset=LOADED,
                messages=first.prompt if isinstance(first.prompt, list) else _ours(first).get("messages"),
                label=first.label,
                metadata=_shared_metadata(group),
            )
            for index, group in enumerate(self.groups)
            for first in [group[0][0]]  # samples with their own prompts carry them
        ]

    def answers(self, request: RolloutRequested, index: int, worker: str) -> list[RolloutCompleted | RewardAssigned]:
        """Return the dump's events for a request: the samples of its rollout, the requested one last, as an engine
        appends them, and their rewards.
        """
        rollout, shared = self.groups[index][request.index], _shared_metadata(self.groups[index])
        first, *others = [(sibling_id(request.sample, number), sample) for number, sample in enumerate(rollout)]
        named = [*others, first]
        done = [self._completed(request, name, sample, shared, worker) for name, sample in named]
        return [*done, *(self._reward(request, name, sample) for name, sample in named)]

    def _completed(
        self, request: RolloutRequested, name: str, sample: Sample, shared: object, worker: str
    ) -> RolloutCompleted:
        """Return the completion of a sample. Its tokens count as made by the requested weights, since the dump names no
        weights of this run. Missing log-probs are 0.
        """
        length = sample.response_length
        tokens = np.asarray(sample.tokens[-length:], np.int32)
        log_probs = np.asarray(sample.rollout_log_probs or [0.0] * length, np.float32)
        mask = [0] * length if sample.remove_sample else sample.loss_mask
        prompt = pack_tokens(sample.tokens[:-length])
        is_own, own = prompt != request.prompt, _own_metadata(sample, shared)
        return RolloutCompleted(
            sample=name,
            group=request.group,
            attempt=request.attempt,
            start=0,
            length=length,
            prompt_length=prompt.n,
            stop=STOPS.get(sample.status, StopReason.STOP),
            text=sample.response,
            spans=(WeightSpan(0, length, request.min_version),),
            digest=content_digest(tokens, log_probs),
            engine=worker,
            tokens=pack_tokens(tokens),
            log_probs=pack_log_probs(log_probs),
            loss_mask=None if mask is None or all(mask) else pack(np.asarray(mask, np.int8), "int8"),
            rollout="" if name == request.sample else request.sample,
            prompt=prompt if is_own else None,
            prompt_text=_text(sample) if is_own else "",
            metadata=own if isinstance(own, dict) else {},
            attributes={} if isinstance(own, dict) or own == shared else {"metadata": own},
        )

    def _reward(self, request: RolloutRequested, name: str, sample: Sample) -> RewardAssigned:
        outcome = graded(sample.reward, sample, self.reward_key)
        if isinstance(outcome, RewardFailure):
            raise DataError(
                f"{self.path}: the reward of sample {sample.index} cannot be used: {outcome.message}"
                + ("" if self.reward_key or not isinstance(sample.reward, dict) else " (or set --reward-key)")
            )
        return RewardAssigned(
            sample=name,
            group=request.group,
            value=outcome.value,
            grader=GRADER,
            grader_digest="",
            teacher_log_probs=outcome.teacher_log_probs,
        )


def _misfit(sample: Sample, vocabulary: int | None) -> str | None:
    """Return why the trainer would not take a sample, before anything of its step is in the log; None if it fits."""
    try:
        count = len(token_ids(sample.tokens, vocabulary, "tokens"))
    except InvalidValue as error:
        return str(error)
    response = sample.response_length
    if isinstance(response, bool) or not isinstance(response, int) or not 0 < response < count:
        return f"response_length is {response!r:.40} of {count} tokens: prompt and response need at least 1 each"
    for name, values in (("loss_mask", sample.loss_mask), ("rollout_log_probs", sample.rollout_log_probs)):
        if values and len(values) != response:
            return f"{name} has {len(values)} entries for a response of {response} tokens"
    return None


def _ours(sample: Sample) -> dict[str, Any]:
    """Return the metadata that our export adds; empty in a dump of slime's."""
    ours = sample.metadata.get(OURS) if isinstance(sample.metadata, dict) else None
    return ours if isinstance(ours, dict) else {}


def _metadata(sample: Sample) -> object:
    """Return the metadata without our export's additions, which also hold metadata that is not a dict."""
    if not isinstance(sample.metadata, dict):
        return sample.metadata
    return _ours(sample).get("metadata", {key: value for key, value in sample.metadata.items() if key != OURS})


def _own_metadata(sample: Sample, shared: object) -> object:
    """Return the metadata that the prompt does not already have."""
    whole = _metadata(sample)
    if not (isinstance(whole, dict) and isinstance(shared, dict)):
        return whole
    return {key: value for key, value in whole.items() if key not in shared}


def _text(sample: Sample) -> str:
    """Return the prompt as text. A dump may hold it as a chat; dumps of older versions have the text beside it."""
    return str(_ours(sample).get("text", "")) if isinstance(sample.prompt, list) else sample.prompt


def _shared_metadata(group: list[Rollout]) -> object:
    """Return the metadata that all samples of a group share, which belongs to their prompt."""
    first, *others = [_metadata(sample) for rollout in group for sample in rollout]
    dicts = [other for other in others if isinstance(other, dict)]
    if not isinstance(first, dict) or len(dicts) < len(others):
        return first if all(other == first for other in others) else {}
    return {key: value for key, value in first.items() if all(key in other and other[key] == value for other in dicts)}


def _grouped(path: str, loaded: list[Sample], samples: int) -> list[list[Rollout]]:
    """Return the samples by group and rollout. Without a `group_index`, each `samples` rollouts are a group."""
    rollouts: dict[tuple[int | None, str], Rollout] = {}
    for index, sample in enumerate(loaded):
        rollouts.setdefault((sample.group_index, _rollout_of(sample, index)), []).append(sample)
    every = list(rollouts.values())
    if any(sample.group_index is None for sample in loaded):
        groups = [every[start : start + samples] for start in range(0, len(every), samples)]
    else:
        members: dict[int, list[Rollout]] = {}
        for rollout in every:
            members.setdefault(rollout[0].group_index or 0, []).append(rollout)
        groups = [members[index] for index in sorted(members)]
    for index, group in enumerate(groups):
        if len(group) != samples:
            raise DataError(
                f"{path} holds {len(loaded)} samples, not groups of {samples} rollouts (group {index} has "
                f"{len(group)}). Set --n-samples-per-prompt to the value of the run that made it"
            )
    return groups


def _rollout_of(sample: Sample, index: int) -> str:
    """Return a name that the samples of one rollout share. Our dumps name the requested sample. slime's dumps number
    their rollouts, or have a rollout per sample.
    """
    ours = _ours(sample)
    if name := ours.get("rollout") or ours.get("sample"):
        return str(name) if "rollout" in ours else requested_sample(str(name))  # older dumps lack the rollout
    return f"index {index}" if sample.rollout_id is None else f"rollout {sample.rollout_id}"


def _part_of(groups: list[list[Rollout]], part: float | None) -> list[list[Rollout]]:
    """Return a part of the groups, half from the beginning and half from the end, as slime takes samples. Groups stay
    whole.
    """
    if part is None:
        return groups
    kept = int(len(groups) * part)
    first = kept // 2
    return [*groups[:first], *groups[len(groups) - (kept - first) :]]
