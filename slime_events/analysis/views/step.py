"""`StepView`: a training step, its batch and the result of training on it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.groups import GroupAccepted
from schemas.ids import group_of
from schemas.prompts import Label
from schemas.rollouts import StopReason, spans_text
from schemas.steps import StepCommitted
from slime_events.model import Group, Run, Sample, Step


class BatchGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of the batch."""

    group: Annotated[str, doc("id of the group")]
    dataset: Annotated[str, doc("`train`, `inbox`, or the name of the evaluation; empty if the prompt is unknown")]
    label: Annotated[Label, doc("label of the prompt: a text or another JSON value")]
    rewards: Annotated[tuple[float, ...], doc("rewards as graded, by sample")]


class BatchSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of the batch."""

    sample: Annotated[str, doc("id of the sample")]
    group: Annotated[str, doc("id of its group")]
    reward: Annotated[float, doc("reward as graded")]
    normalised: Annotated[float, doc("reward that is trained on")]
    length: Annotated[int, doc("response length [tokens]")]
    stop: Annotated[StopReason | None, doc("why its rollout ended")]
    versions: Annotated[str, doc("weight versions of its tokens, such as `v3` or `v3[0:40] v4[40:52]`")]
    digest: Annotated[str, doc("sha256 (hex) of its tokens and log-probs")]


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A training step."""

    step: Annotated[int, doc("number of the step, from 0")]
    sealed_at: Annotated[int, doc("UTC of the batch [ns]")]
    batch_digest: Annotated[str, doc("digest of the batch")]
    oldest_version: Annotated[int, doc("oldest weight version that generated a token of the batch")]
    groups: Annotated[tuple[BatchGroup, ...], doc("groups of the batch")]
    samples: Annotated[tuple[BatchSample, ...], doc("samples in training order")]
    commands: Annotated[tuple[str, ...], doc("commands of the client that drives the run")]
    committed: Annotated[StepCommitted | None, doc("the result of training; None until the commit")]
    committed_at: Annotated[int | None, doc("UTC of the commit [ns]")]
    version: Annotated[int | None, doc("weight version that the step made; None until the commit")]


def view_step(run: Run, step: Step) -> StepView:
    """Return a step. run: has the groups and samples of its batch."""
    batch = step.sealed.event
    return StepView(
        step=step.step,
        sealed_at=step.sealed.at,
        batch_digest=batch.digest,
        oldest_version=batch.oldest_version,
        groups=tuple(_group(run.groups[group]) for group in batch.groups),
        samples=tuple(
            _sample(name, raw, reward, run.samples.get(name))
            for name, raw, reward in zip(batch.samples, batch.raw_rewards, batch.rewards, strict=True)
        ),
        commands=batch.commands,
        committed=step.committed.event if step.committed else None,
        committed_at=step.committed.at if step.committed else None,
        version=run.version_of_step(step.step),
    )


def _group(group: Group) -> BatchGroup:
    verdict = group.verdict.event if group.verdict else None
    prompt = group.prompt.event if group.prompt else None
    return BatchGroup(
        group=group.group,
        dataset=prompt.dataset if prompt else "",
        label=prompt.label if prompt else None,
        rewards=verdict.rewards if isinstance(verdict, GroupAccepted) else (),
    )


def _sample(name: str, raw: float, reward: float, sample: Sample | None) -> BatchSample:
    done = sample.completed.event if sample and sample.completed else None
    return BatchSample(
        sample=name,
        group=sample.group if sample else group_of(name),
        reward=raw,
        normalised=reward,
        length=sample.length if sample else 0,
        stop=done.stop if done else None,
        versions=spans_text(sample.spans) if sample else "",
        digest=done.digest if done else "",
    )
