"""`Collector`: the records of batches and groups, looked up, as the parts of a lineage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from schemas.errors import RunNotFound
from schemas.event import Purpose
from schemas.groups import GroupAccepted
from schemas.ids import group_of, sample_id
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutProgressed, WeightSpan
from slime_events.analysis import model
from slime_events.analysis.lineage.lineage import Advantage, Decision, Group, Mask, Reward, Sample, Step, Version
from slime_events.analysis.model.advantages import has_kl_penalty, sample_advantages
from slime_events.analysis.model.ancestry import Ancestor, Ancestry, Branches, VersionRange
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.trajectory import Fetch, merge_spans


@dataclass(frozen=True, slots=True)
class Members:
    """Some prompts and their samples."""

    groups: tuple[Group, ...] = ()
    samples: tuple[Sample, ...] = ()

    def __add__(self, other: Members) -> Members:
        return Members(self.groups + other.groups, self.samples + other.samples)


class Trained(NamedTuple):
    """A sample's part in a batch, and what came of it. into: null while the step is not committed."""

    step: int
    normalised: float
    into: int | None
    advantage: Advantage | None
    descendants: tuple[VersionRange, ...]


class Collector:
    """newest: the newest version of the run that was asked. branches: of that run."""

    def __init__(self, ancestry: Ancestry, newest: int, branches: Branches) -> None:
        self._ancestry, self._newest, self._branches = ancestry, newest, branches

    async def batches(self, steps: Iterable[int]) -> dict[int, tuple[Ancestor, model.Step]]:
        """Each of these steps that is sealed, and whose it is."""
        by_run: dict[Ancestor, list[int]] = {}
        for step in steps:
            by_run.setdefault(await self._ancestry.of_step(step), []).append(step)
        return {
            number: (ancestor, record)
            for ancestor, own in by_run.items()
            for number, record in model.folded(ancestor.run, await ancestor.last_events(steps=own)).steps.items()
        }

    async def of_batch(self, ancestor: Ancestor, step: model.Step) -> Members:
        """All groups and samples of a batch."""
        batch = step.sealed.event
        run = await self._ancestry.records(ancestor, groups=batch.groups, samples=batch.samples)
        trained = await self._trained(ancestor, step, batch.samples, run)
        groups = [
            make_group(run.groups[name], tuple(s for s in batch.samples if group_of(s) == name), step.step)
            for name in batch.groups
            if name in run.groups and run.groups[name].prompt
        ]
        records = [run.sample(name, group_of(name)) for name in batch.samples]
        samples = [make_sample(record, ancestor.opened.fetch, trained.get(record.sample)) for record in records]
        return Members(tuple(groups), tuple(samples))

    async def of_groups(self, ancestor: Ancestor, steps: Mapping[str, int | None], only: str | None = None) -> Members:
        """Groups that `ancestor` has, each with its step. only: one sample of them. Raises RunNotFound without it."""
        groups = (await self._ancestry.records(ancestor, groups=steps)).groups
        named = {name: (only,) if only else _members(ancestor, groups[name]) for name in steps}
        run = await self._ancestry.records(ancestor, samples=[name for names in named.values() for name in names])
        members = {group: tuple(name for name in names if name in run.samples) for group, names in named.items()}
        if only is not None and only not in run.samples:
            raise RunNotFound(f"run {ancestor.run} has group {group_of(only)}, but no sample {only!r}")
        trained: dict[str, Trained] = {}
        for step, (owner, record) in (await self.batches(distinct(steps.values()))).items():
            names = [name for group, names in members.items() if steps[group] == step for name in names]
            trained |= await self._trained(owner, record, names, run)
        samples = []
        for name in (name for names in members.values() for name in names):
            if run.samples[name].completed is None:
                run.samples[name].spans = await _spans_so_far(ancestor, name)
            samples.append(make_sample(run.samples[name], ancestor.opened.fetch, trained.get(name)))
        return Members(tuple(make_group(groups[name], members[name], steps[name]) for name in steps), tuple(samples))

    async def _trained(
        self, ancestor: Ancestor, step: model.Step, wanted: Iterable[str], run: model.Run
    ) -> dict[str, Trained]:
        """The part of the wanted samples in the batch, each with its advantage."""
        settings, batch, names = ancestor.opened.settings.algorithm, step.sealed.event, set(wanted)
        whitened = settings.normalize_advantages and not has_kl_penalty(settings)
        if whitened and not names.issuperset(batch.samples):  # over all samples of the batch
            run = await self._ancestry.records(ancestor, samples=batch.samples)
        advantages = make_advantages(
            [
                (name, reward, loss_mask(record.completed.event, ancestor.opened.fetch))
                for name, reward in zip(batch.samples, batch.rewards, strict=True)
                if (name in names or whitened) and (record := run.samples.get(name)) and record.completed
            ],
            settings,
        )
        into = step.step + 1 if step.committed else None
        since = () if into is None else self._ancestry.versions(into + 1, self._newest)
        own = self._ancestry.own.run
        return {
            name: Trained(
                step.step, reward, into, advantages.get(name), since + self._branches.of_sample(own, name, into)
            )
            for name, reward in zip(batch.samples, batch.rewards, strict=True)
            if name in names
        }


def make_advantages(
    samples: Sequence[tuple[str, float, npt.NDArray[np.int8]]], settings: AlgorithmSettings
) -> dict[str, Advantage]:
    """By sample, of those with a trained token. samples: name, reward as sealed, loss mask."""
    left_out: tuple[str, ...] = ()
    if has_kl_penalty(settings):
        left_out = ("kl", *(("whitening",) if settings.normalize_advantages else ()))
        settings = replace(settings, normalize_advantages=False)
    masks = [mask for _, _, mask in samples]
    found = sample_advantages([reward for _, reward, _ in samples], masks, settings)
    return {
        name: Advantage(estimator=settings.advantage_estimator, first=float(first), last=float(last), left_out=left_out)
        for (name, _, mask), first, last in zip(samples, found.first, found.last, strict=True)
        if mask.any()
    }


def _members(ancestor: Ancestor, group: model.Group) -> tuple[str, ...]:
    """The group's samples, or those that it may have."""
    if group.verdict is not None and group.verdict.event.samples:
        return group.verdict.event.samples
    settings, count = ancestor.opened.settings, ancestor.opened.settings.rollout.n_samples_per_prompt
    if group.prompt is not None and group.prompt.event.purpose is Purpose.EVAL:
        count = settings.evaluation.n_samples_per_eval_prompt
    return tuple(sample_id(group.group, index) for index in range(count))


async def _spans_so_far(ancestor: Ancestor, sample: str) -> tuple[WeightSpan, ...]:
    """Weight versions over the tokens of a rollout that is under way; turns are counted once it is whole."""
    spans: tuple[WeightSpan, ...] = ()
    async for recorded in ancestor.of_type(RolloutProgressed, sample):
        event = recorded.envelope.event
        if isinstance(event, RolloutProgressed) and event.turn is None:
            spans = merge_spans(spans, event.spans)
    return spans


def distinct(steps: Iterable[int | None]) -> list[int]:
    """The steps among them, each once, in order."""
    return sorted({step for step in steps if step is not None})


def make_step(record: model.Step) -> Step:
    """Of a sealed step."""
    batch, committed = record.sealed.event, record.committed.event if record.committed else None
    return Step(
        step=record.step,
        run=record.sealed.run,
        parent=record.step,
        version=record.step + 1,
        groups=batch.groups,
        samples=batch.samples,
        rewards=batch.raw_rewards,
        oldest_version=batch.oldest_version,
        batch_digest=batch.digest,
        sealed_at=record.sealed.at,
        committed_at=record.committed.at if record.committed else None,
        weights_digest=committed.weights_digest if committed else None,
        optimizer_digest=committed.optimizer_digest if committed else None,
        tokens=committed.tokens if committed else None,
    )


def make_version(record: model.Version, run: str) -> Version:
    """Of a version that was published or committed. run: that made it."""
    published, committed = record.published, record.committed
    digest = published.event.digest if published else committed.event.weights_digest if committed else None
    before = record.version - 1 if record.version else None
    return Version(
        version=record.version,
        run=run,
        parent=before,
        step=before,
        digest=digest,
        url=published.event.url if published else None,
        published_at=published.at if published else None,
    )


def make_group(record: model.Group, samples: tuple[str, ...], step: int | None) -> Group:
    """Of a group whose prompt is there."""
    assert record.prompt is not None
    prompt = record.prompt.event
    return Group(
        group=record.group,
        run=record.prompt.run,
        dataset=prompt.dataset,
        purpose=prompt.purpose,
        source=prompt.source,
        text=prompt.text,
        label=prompt.label,
        submitted_at=record.prompt.at,
        samples=samples,
        decision=_decision(record),
        step=step,
    )


def _decision(record: model.Group) -> Decision | None:
    if record.verdict is None:
        return None
    verdict = record.verdict.event
    return Decision(
        accepted=isinstance(verdict, GroupAccepted),
        run=record.verdict.run,
        at=record.verdict.at,
        filter=verdict.filter,
        filter_digest=verdict.filter_digest,
        reason=verdict.reason,
        cause=None if isinstance(verdict, GroupAccepted) else verdict.cause.value,
        figures=verdict.figures,
    )


def make_sample(record: model.Sample, fetch: Fetch, trained: Trained | None) -> Sample:
    """Of a sample that was requested, or came with one that was."""
    request, spans = record.requests[-1] if record.requests else None, record.spans
    done = record.completed.event if record.completed else None
    entry = record.completed or request
    return Sample(
        sample=record.sample,
        group=record.group,
        run=entry.run if entry else "",
        asked_version=request.event.min_version if request else None,
        seed=request.event.seed if request else None,
        attempts=request.event.attempt + 1 if request else 0,
        length=done.length if done else max((span.end for span in spans), default=0),
        stop=done.stop if done else None,
        digest=done.digest if done else None,
        spans=spans,
        made_by=() if done and done.origin else tuple(sorted({span.version for span in spans})),
        mask=_mask(loss_mask(done, fetch)) if done else None,
        reward=_reward(record),
        normalised=trained.normalised if trained else None,
        advantage=trained.advantage if trained else None,
        step=trained.step if trained else None,
        trained_into=trained.into if trained else None,
        descendants=trained.descendants if trained else (),
        origin=done.origin if done else None,
        prompt=done.prompt_text if done and done.prompt else None,
    )


def loss_mask(done: RolloutCompleted, fetch: Fetch) -> npt.NDArray[np.int8]:
    """int8 [response], 1 = trained on."""
    return np.ones(done.length, np.int8) if done.loss_mask is None else fetch(done.loss_mask)


def _mask(mask: npt.NDArray[np.int8]) -> Mask:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], (mask != 0).astype(np.int8), [0])))).reshape(-1, 2)
    ranges = tuple((int(begin), int(end)) for begin, end in edges)
    return Mask(tokens=len(mask), trained=sum(end - begin for begin, end in ranges), ranges=ranges)


def _reward(record: model.Sample) -> Reward | None:
    if record.reward is None:
        return None
    event = record.reward.event
    if isinstance(event, RewardAssigned):
        return Reward(grader=event.grader, grader_digest=event.grader_digest, value=event.value)
    failure = f"{event.kind.value}: {event.message}"
    return Reward(grader=event.grader, grader_digest=event.grader_digest, failure=failure)
