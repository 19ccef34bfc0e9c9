"""`GroupView`: a prompt, its samples and the decision of the filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.groups import GroupAccepted, RejectionCause
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardFailed
from schemas.rollouts import StopReason, spans_text
from slime_events.model import Group, Run, Sample
from slime_events.model.agent_session import AgentSession


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Decision whether a group is trained on."""

    accepted: Annotated[bool, doc("the group is trained on")]
    cause: Annotated[RejectionCause | None, doc("why it was rejected; None if it was accepted")]
    reason: Annotated[str | None, doc("reason that the filter gave, or why the group was rejected")]
    filter: Annotated[str, doc("path of the filter; `none` if the run has none")]
    filter_digest: Annotated[str, doc("sha256 (hex) of the filter's source")]
    figures: Annotated[dict[str, float], doc("statistics of the rewards at the decision")]
    rewards: Annotated[tuple[float, ...], doc("rewards as graded, by sample")]
    at: Annotated[int, doc("UTC of the decision [ns]")]


class GroupSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of the group."""

    sample: Annotated[str, doc("id of the sample")]
    reward: Annotated[float | None, doc("reward as graded; None until then, and if grading failed")]
    length: Annotated[int, doc("response length so far [tokens]")]
    stop: Annotated[StopReason | None, doc("why its rollout ended; None until then")]
    versions: Annotated[str, doc("weight versions of its tokens, such as `v3` or `v3[0:40] v4[40:52]`")]
    attempts: Annotated[int, doc("number of requests of its rollout")]
    text: Annotated[str, doc("text of the response; empty until the rollout has ended")]
    failure: Annotated[str | None, doc("why its grading, or its newest attempt, failed; None without a failure")]


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and its samples."""

    group: Annotated[str, doc("id of the group")]
    submitted_at: Annotated[int | None, doc("UTC of the prompt [ns]; None if the prompt is unknown")]
    submitted_by: Annotated[str | None, doc("worker that submitted the prompt")]
    prompt: Annotated[PromptSubmitted | None, doc("the prompt, without the numbers of its token ids")]
    samples: Annotated[tuple[GroupSample, ...], doc("samples in index order")]
    sessions: Annotated[tuple[AgentSession, ...], doc("agents' sessions that made the samples")]
    decision: Annotated[Decision | None, doc("decision whether it is trained on; None if there is none yet")]
    step: Annotated[int | None, doc("step whose batch has the group")]
    version: Annotated[int | None, doc("weight version that the step made; None until the commit")]


def view_group(run: Run, group: Group, sessions: Sequence[AgentSession] = ()) -> GroupView:
    """Return a group. run: has the step of its batch. sessions: agents' sessions that made the samples."""
    prompt = group.prompt
    return GroupView(
        group=group.group,
        submitted_at=prompt.at if prompt else None,
        submitted_by=prompt.producer if prompt else None,
        prompt=prompt.event if prompt else None,
        samples=tuple(_sample(sample) for sample in group.members),
        sessions=tuple(sessions),
        decision=view_decision(group),
        step=group.step,
        version=run.version_of_step(group.step),
    )


def view_decision(group: Group) -> Decision | None:
    """Return the decision about a group; None if there is none yet."""
    if group.verdict is None:
        return None
    event = group.verdict.event
    return Decision(
        accepted=isinstance(event, GroupAccepted),
        cause=None if isinstance(event, GroupAccepted) else event.cause,
        reason=event.reason,
        filter=event.filter,
        filter_digest=event.filter_digest,
        figures=event.figures,
        rewards=event.rewards,
        at=group.verdict.at,
    )


def _sample(sample: Sample) -> GroupSample:
    done = sample.completed.event if sample.completed else None
    failure = sample.reward.event.message if sample.reward and isinstance(sample.reward.event, RewardFailed) else None
    if done is None and sample.interruptions:
        failure = getattr(sample.interruptions[-1].event, "message", None)
    return GroupSample(
        sample=sample.sample,
        reward=sample.value,
        length=sample.length,
        stop=done.stop if done else None,
        versions=spans_text(sample.spans),
        attempts=len(sample.requests),
        text=done.text if done else "",
        failure=failure,
    )
