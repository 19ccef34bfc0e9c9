"""`LoadedStep`: a dump as the groups of one step, checked against what the run asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from schemas.arrays import pack, pack_log_probs, pack_tokens
from schemas.errors import DataError
from schemas.prompts import PromptSubmitted, Source
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutRequested, StopReason, WeightSpan
from slime_events.export.dump import load_dump
from slime_events.export.rows import SUFFIXES, load_rows
from slime_events.export.slime_samples import OURS
from slime_events.sample import Sample, Status
from slime_events.trajectory import content_digest

LOADED = "loaded"
"""The data set of prompts that come with their answers."""
GRADER = "recorded"
STOPS = {Status.TRUNCATED: StopReason.LENGTH, Status.ABORTED: StopReason.ABORT}


@dataclass(frozen=True, slots=True)
class LoadedStep:
    """template: of the dumps' paths, the source that prompts are of, a row a group and an epoch a dump. path: of this
    one. groups: its samples, group by group. reward_key: where rewards are dicts.
    """

    step: int
    template: str
    path: str
    groups: list[list[Sample]]
    reward_key: str | None = None

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
    ) -> LoadedStep:
        """groups, samples: of a step and of a group, as the run has them. part: of the dump's groups that a step is
        made of. Raises DataError where the dump differs.

        A template that ends in .jsonl or .parquet is of `slime-events export`, one file for all steps or one for each.
        """
        path = template.format(rollout_id=step)
        found = load_rows(path, step) if path.endswith(SUFFIXES) else load_dump(path)[1]
        kept = _part_of(_grouped(path, found, samples), part)
        if len(kept) != groups:
            whole = f"{path} holds {len(found)} samples, and a step of this run is {groups} groups of {samples}: give "
            if part is None:
                raise DataError(whole + "--rollout-batch-size and --n-samples-per-prompt as they were when it was made")
            raise DataError(
                f"{path}: {part:g} of its {len(found) // samples} groups are {len(kept)}, and a step of this run is "
                f"{groups} groups: give --rollout-batch-size {len(kept)}, and --global-batch-size to match"
            )
        return cls(step, template, path, kept, reward_key)

    def prompts(self) -> list[PromptSubmitted]:
        """One for each group, as if someone outside had sent them."""
        return [self._prompt(place, group[0]) for place, group in enumerate(self.groups)]

    def _prompt(self, place: int, first: Sample) -> PromptSubmitted:
        chat = first.prompt if isinstance(first.prompt, list) else None
        ours = first.metadata.get(OURS, {})
        return PromptSubmitted(
            group=f"{LOADED}-{self.step}-{place:06d}",
            text=str(ours.get("text", "" if chat else first.prompt)),
            tokens=pack_tokens(first.tokens[: -first.response_length]),
            source=Source(path=self.template, row=place, epoch=self.step, offset=self.step * len(self.groups) + place),
            dataset=LOADED,
            messages=chat,
            label=first.label,
            metadata={name: value for name, value in first.metadata.items() if name != OURS},
        )

    def completed(self, request: RolloutRequested, place: int, worker: str) -> tuple[RolloutCompleted, RewardAssigned]:
        """What the dump has for a request. Its tokens count as of the weights that were asked for: it says no others
        of this run. Log-probs that it lacks are 0.
        """
        sample = self.groups[place][request.index]
        length = sample.response_length
        tokens = np.asarray(sample.tokens[-length:], np.int32)
        log_probs = np.asarray(sample.rollout_log_probs or [0.0] * length, np.float32)
        mask = [0] * length if sample.remove_sample else sample.loss_mask
        prompt = pack_tokens(sample.tokens[:-length])
        done = RolloutCompleted(
            sample=request.sample,
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
            prompt=None if prompt == request.prompt else prompt,
        )
        return done, self._reward(request, sample)

    def _reward(self, request: RolloutRequested, sample: Sample) -> RewardAssigned:
        reward = sample.reward
        if isinstance(reward, dict):
            reward = reward.get(self.reward_key) if self.reward_key else None
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise DataError(
                f"{self.path}: the reward of sample {sample.index} is {sample.reward!r}, and should be a number"
                + ("" if self.reward_key or not isinstance(sample.reward, dict) else " (or give --reward-key)")
            )
        return RewardAssigned(
            sample=request.sample, group=request.group, value=float(reward), grader=GRADER, grader_digest=""
        )


def _grouped(path: str, found: list[Sample], samples: int) -> list[list[Sample]]:
    if all(sample.group_index is not None for sample in found):
        found.sort(key=lambda sample: sample.group_index or 0)
    if len(found) % samples:
        raise DataError(
            f"{path} holds {len(found)} samples, which are no groups of {samples}: give "
            "--n-samples-per-prompt as it was when it was made"
        )
    made = [found[start : start + samples] for start in range(0, len(found), samples)]
    for place, group in enumerate(made):
        if len({sample.group_index for sample in group}) > 1:
            raise DataError(f"{path}: its groups are not of {samples} samples each (group {place} is not)")
    return made


def _part_of(groups: list[list[Sample]], part: float | None) -> list[list[Sample]]:
    """Half of the part from the beginning and half from the end, as slime takes samples; a group stays whole."""
    if part is None:
        return groups
    kept = int(len(groups) * part)
    first = kept // 2
    return [*groups[:first], *groups[len(groups) - (kept - first) :]]
