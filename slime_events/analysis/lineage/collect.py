"""`Collector`: the groups and samples of a batch, or of prompts, looked up and put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from schemas.batches import BatchSealed
from schemas.errors import RunNotFound
from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of, sample_id
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutCompleted, RolloutRequested, WeightSpan
from schemas.steps import StepCommitted
from slime_events.analysis.lineage.advantage import advantages
from slime_events.analysis.lineage.branches import Branches
from slime_events.analysis.lineage.event_index import Reading, Said
from slime_events.analysis.lineage.facts import Group, Sample, Step
from slime_events.analysis.lineage.make import (
    OF_GROUP,
    OF_SAMPLE,
    Trained,
    asked_for,
    group_fact,
    loss_mask,
    sample_fact,
)
from slime_events.analysis.model.ancestry import Part


class Made(NamedTuple):
    """Facts of some prompts and their samples."""

    groups: tuple[Group, ...] = ()
    samples: tuple[Sample, ...] = ()


class Collector:
    """newest: the newest version of the run that was asked. branches: of that run."""

    def __init__(self, reading: Reading, newest: int, branches: Branches) -> None:
        self._reading, self._newest, self._branches = reading, newest, branches

    async def of_batch(self, part: Part, step: Step, said: Said) -> Made:
        """All groups and samples of a batch."""
        batch = said.event(BatchSealed, str(step.step))
        assert batch is not None
        about_groups = await self._reading.said(part, OF_GROUP, step.groups)
        about_samples = await self._reading.said(part, OF_SAMPLE, _with_asked(step.samples))
        trained = await self._trained(part, batch, step.committed_at is not None, step.samples, about_samples)
        members: dict[str, list[str]] = {}
        for sample in step.samples:
            members.setdefault(group_of(sample), []).append(sample)
        groups = [
            group_fact(group, about_groups, tuple(members.get(group, ())), step.step)
            for group in step.groups
            if about_groups.event(PromptSubmitted, group)
        ]
        samples = [self._sample(part, sample, about_samples, trained.get(sample)) for sample in step.samples]
        return Made(tuple(groups), tuple(samples))

    def _sample(
        self, part: Part, sample: str, said: Said, trained: Trained | None, so_far: tuple[WeightSpan, ...] = ()
    ) -> Sample:
        done = said.event(RolloutCompleted, sample)
        mask = None if done is None else loss_mask(done, part.opened.fetch)
        return sample_fact(sample, said, mask, trained, so_far)

    async def _trained(
        self, part: Part, batch: BatchSealed, committed: bool, asked: Iterable[str], said: Said
    ) -> dict[str, Trained]:
        """What the batch says of the samples asked for, each with its advantage."""
        settings = part.opened.settings.algorithm
        wanted = set(asked)
        if settings.normalize_advantages and not wanted.issuperset(batch.samples):
            said = await self._reading.said(part, (RolloutCompleted,), batch.samples)
            counted = list(enumerate(batch.samples))
        else:
            counted = [(place, sample) for place, sample in enumerate(batch.samples) if sample in wanted]
        ends = {sample: said.event(RolloutCompleted, sample) for _, sample in counted}
        whole = [(place, sample, end) for place, sample in counted if (end := ends[sample]) is not None]
        masks = [loss_mask(end, part.opened.fetch) for _, _, end in whole]
        given = advantages([batch.rewards[place] for place, _, _ in whole], masks, settings)
        by_sample = {sample: advantage for (_, sample, _), advantage in zip(whole, given, strict=True)}
        into = batch.step + 1 if committed else None
        own = self._reading.past.own.run
        since = self._reading.past.versions(into + 1, self._newest) if into is not None else ()
        return {
            sample: Trained(
                batch.step,
                batch.rewards[place],
                into,
                by_sample.get(sample),
                since + self._branches.of_sample(own, sample, into),
            )
            for place, sample in counted
            if sample in wanted
        }

    async def of_groups(
        self, part: Part, steps: Mapping[str, int | None], about: Said, only: str | None = None
    ) -> Made:
        """Groups that `part` has, each with its step; only: one sample of them. Raises RunNotFound for no such one."""
        members = {group: self._members(part, group, about, only) for group in steps}
        everyone = [sample for samples in members.values() for sample in samples]
        said = await self._reading.said(part, OF_SAMPLE, _with_asked(everyone))
        there = [sample for sample in everyone if _is_there(said, sample)]
        if only is not None and not there:
            raise RunNotFound(f"run {part.run} has group {group_of(only)}, but no sample {only!r}")
        trained: dict[str, Trained] = {}
        for step, (owner, batch_said) in (await self._reading.batches(some(steps.values()))).items():
            batch = batch_said.event(BatchSealed, str(step))
            assert batch is not None
            committed = batch_said.event(StepCommitted, str(step)) is not None
            trained |= await self._trained(owner, batch, committed, [s for s in there if s in batch.samples], said)
        under_way = [sample for sample in there if said.event(RolloutCompleted, sample) is None]
        so_far = {sample: await self._reading.spans_so_far(part, sample) for sample in under_way}
        samples = tuple(
            self._sample(part, sample, said, trained.get(sample), so_far.get(sample, ())) for sample in there
        )
        named = frozenset(there)
        groups = tuple(
            group_fact(group, about, tuple(sample for sample in members[group] if sample in named), step)
            for group, step in steps.items()
        )
        return Made(groups, samples)

    def _members(self, part: Part, group: str, about: Said, only: str | None) -> tuple[str, ...]:
        """The group's samples, or those that it may have."""
        if only is not None:
            return (only,)
        verdict = about.event(GroupAccepted, group) or about.event(GroupRejected, group)
        if verdict is not None and verdict.samples:
            return verdict.samples
        settings, prompt = part.opened.settings, about.event(PromptSubmitted, group)
        count = settings.rollout.n_samples_per_prompt
        if prompt is not None and prompt.purpose is Purpose.EVAL:
            count = settings.evaluation.n_samples_per_eval_prompt
        return tuple(sample_id(group, index) for index in range(count))


def _with_asked(samples: Iterable[str]) -> list[str]:
    return [name for sample in samples for name in dict.fromkeys((sample, asked_for(sample)))]


def _is_there(said: Said, sample: str) -> bool:
    return said.recorded(RolloutRequested, sample) is not None or said.recorded(RolloutCompleted, sample) is not None


def some(steps: Iterable[int | None]) -> list[int]:
    """Those that are one, each once, in order."""
    return sorted({step for step in steps if step is not None})
