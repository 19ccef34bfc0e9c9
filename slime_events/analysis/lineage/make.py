"""Events into facts. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.batches import BatchSealed
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of, place_of, sample_id
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutRequested, WeightSpan
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.analysis.lineage.event_index import Said
from slime_events.analysis.lineage.facts import Advantage, Decision, Group, Mask, Reward, Sample, Step, Version
from slime_events.analysis.model.ancestry import Versions
from slime_events.core.trajectory import Fetch

OF_VERSION: tuple[type[Event], ...] = (WeightsPublished, StepCommitted)
OF_GROUP: tuple[type[Event], ...] = (PromptSubmitted, GroupAccepted, GroupRejected)
OF_SAMPLE: tuple[type[Event], ...] = (RolloutRequested, RolloutCompleted, RewardAssigned, RewardFailed)
"""What has to be looked up for each."""


class Trained(NamedTuple):
    """What a batch and what came of it say of one of its samples. into: null while the step is not committed."""

    step: int
    normalised: float
    into: int | None
    advantage: Advantage | None
    descendants: tuple[Versions, ...]


def step_fact(step: int, run: str, said: Said) -> Step:
    """Of a sealed step."""
    sealed, batch = said.recorded(BatchSealed, str(step)), said.event(BatchSealed, str(step))
    assert sealed is not None
    assert batch is not None
    when, committed = said.recorded(StepCommitted, str(step)), said.event(StepCommitted, str(step))
    return Step(
        step=step,
        run=run,
        parent=step,
        version=step + 1,
        groups=batch.groups,
        samples=batch.samples,
        rewards=batch.raw_rewards,
        oldest_version=batch.oldest_version,
        batch_digest=batch.digest,
        sealed_at=sealed.envelope.at,
        committed_at=when.envelope.at if when else None,
        weights_digest=committed.weights_digest if committed else None,
        optimizer_digest=committed.optimizer_digest if committed else None,
        tokens=committed.tokens if committed else None,
    )


def version_fact(version: int, run: str, said: Said) -> Version:
    """Of a version that was published or committed. run: that made it."""
    when, published = said.recorded(WeightsPublished, str(version)), said.event(WeightsPublished, str(version))
    committed = said.event(StepCommitted, str(version - 1))
    digest = published.digest if published else committed.weights_digest if committed else None
    begins = version == 0
    return Version(
        version=version,
        run=run,
        parent=None if begins else version - 1,
        step=None if begins else version - 1,
        digest=digest,
        url=published.url if published else None,
        published_at=when.envelope.at if when else None,
    )


def group_fact(group: str, said: Said, samples: tuple[str, ...], step: int | None) -> Group:
    """Of a group whose prompt is there."""
    when, prompt = said.recorded(PromptSubmitted, group), said.event(PromptSubmitted, group)
    assert when is not None
    assert prompt is not None
    return Group(
        group=group,
        run=said.run(PromptSubmitted, group),
        dataset=prompt.dataset,
        purpose=prompt.purpose,
        source=prompt.source,
        text=prompt.text,
        label=prompt.label,
        submitted_at=when.envelope.at,
        samples=samples,
        decision=_decision(group, said),
        step=step,
    )


def _decision(group: str, said: Said) -> Decision | None:
    verdict = said.event(GroupAccepted, group) or said.event(GroupRejected, group)
    if verdict is None:
        return None
    when = said.recorded(type(verdict), group)
    assert when is not None
    return Decision(
        accepted=isinstance(verdict, GroupAccepted),
        run=said.run(type(verdict), group),
        at=when.envelope.at,
        filter=verdict.filter,
        filter_digest=verdict.filter_digest,
        reason=verdict.reason,
        cause=None if isinstance(verdict, GroupAccepted) else verdict.cause.value,
        figures=verdict.figures,
    )


def sample_fact(
    sample: str,
    said: Said,
    mask: npt.NDArray[np.int8] | None,
    trained: Trained | None,
    so_far: tuple[WeightSpan, ...] = (),
) -> Sample:
    """Of a sample that was asked for, or came with one. mask: int8 [response], of a completed one. so_far: the spans of
    one that is under way.
    """
    request = said.event(RolloutRequested, sample) or said.event(RolloutRequested, asked_for(sample))
    done = said.event(RolloutCompleted, sample)
    spans = done.spans if done else so_far
    return Sample(
        sample=sample,
        group=group_of(sample),
        run=said.run(RolloutCompleted if done else RolloutRequested, sample),
        asked_version=request.min_version if request else None,
        seed=request.seed if request else None,
        attempts=request.attempt + 1 if request else 0,
        length=done.length if done else max((span.end for span in spans), default=0),
        stop=done.stop if done else None,
        digest=done.digest if done else None,
        spans=spans,
        made_by=() if done and done.origin else tuple(sorted({span.version for span in spans})),
        mask=None if mask is None else _mask(mask),
        reward=_reward(sample, said),
        normalised=trained.normalised if trained else None,
        advantage=trained.advantage if trained else None,
        step=trained.step if trained else None,
        trained_into=trained.into if trained else None,
        descendants=trained.descendants if trained else (),
        origin=done.origin if done else None,
        prompt=done.prompt_text if done and done.prompt else None,
    )


def asked_for(sample: str) -> str:
    """The sample whose rollout this one came of: itself, but for the further ones of a rollout that gave several."""
    return sample_id(group_of(sample), place_of(sample)[0])


def loss_mask(done: RolloutCompleted, fetch: Fetch) -> npt.NDArray[np.int8]:
    """int8 [response], 1 = trained on."""
    return np.ones(done.length, np.int8) if done.loss_mask is None else fetch(done.loss_mask)


def _mask(mask: npt.NDArray[np.int8]) -> Mask:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], (mask != 0).astype(np.int8), [0])))).reshape(-1, 2)
    ranges = tuple((int(begin), int(end)) for begin, end in edges)
    return Mask(tokens=len(mask), trained=sum(end - begin for begin, end in ranges), ranges=ranges)


def _reward(sample: str, said: Said) -> Reward | None:
    if (given := said.event(RewardAssigned, sample)) is not None:
        return Reward(grader=given.grader, grader_digest=given.grader_digest, value=given.value)
    if (failed := said.event(RewardFailed, sample)) is not None:
        return Reward(
            grader=failed.grader, grader_digest=failed.grader_digest, failure=f"{failed.kind.value}: {failed.message}"
        )
    return None
