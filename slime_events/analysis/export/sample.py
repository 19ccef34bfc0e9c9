"""`ExportedSample`, `ExportedPrompt`: a sample and a prompt of a run as plain values, and as samples of slime."""

import enum
from collections.abc import Sequence
from typing import Any

import msgspec

from slime_events.plugins.sample import FINISH, Sample, Status


class Fate(enum.StrEnum):
    """What became of a sample."""

    TRAINED = "trained"
    REJECTED = "rejected"
    EVALUATED = "evaluated"


class ExportedSample(msgspec.Struct, frozen=True, kw_only=True):
    """step: that it was trained in, of a rejected one None, of an evaluation the weight version that it is of.

    prompt: text as the model saw it, messages: the chat it was made from. group_prompt: chat or text of the group's
    prompt, where a generate function gave the sample another; it then has no messages. tokens: ids, prompt_length of
    them the prompt's, then response_length of the response; log_probs, loss_mask: of the response. spans: (start, end,
    weight version) over the response. reward: as graded, None where there is none; advantage_input: normalised over its
    group. rollout: the requested sample, where this is a further one of its rollout. reason: why it was rejected.
    teacher_log_probs: of the response, where its grader asked a teacher.
    """

    run: str
    fate: Fate
    step: int | None
    group: str
    sample: str
    rollout: str
    index: int
    dataset: str
    prompt: str
    messages: list[dict[str, Any]] | None
    label: Any
    tools: list[dict[str, Any]] | None
    metadata: Any
    source: str
    line: int
    tokens: list[int]
    prompt_length: int
    response: str
    response_length: int
    log_probs: list[float]
    loss_mask: list[int]
    spans: list[tuple[int, int, int]]
    stop: str | None
    reward: float | None
    reward_detail: dict[str, Any] | None
    advantage_input: float | None
    reason: str | None
    group_prompt: str | list[dict[str, Any]] | None = None
    teacher_log_probs: list[float] | None = None


class ExportedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """input: the chat where there was one (for --apply-chat-template), else the text. rewards: of its samples."""

    input: str | list[dict[str, Any]]
    label: Any
    metadata: Any
    tools: list[dict[str, Any]] | None
    group: str
    rewards: list[float | None]


def prompts_of(samples: list[ExportedSample]) -> list[ExportedPrompt]:
    """One for each group, in order."""
    groups: dict[str, list[ExportedSample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    return [
        ExportedPrompt(
            input=members[0].group_prompt or members[0].messages or members[0].prompt,
            label=members[0].label,
            metadata=members[0].metadata,
            tools=members[0].tools,
            group=group,
            rewards=[member.reward for member in members],
        )
        for group, members in groups.items()
    ]


OURS = "slime_events"
"""Under which a sample's metadata has what slime has no field for."""


def as_slime(rows: Sequence[ExportedSample]) -> list[Sample]:
    """One for each. Groups are numbered in the order that they come in, and so are rollouts: samples of one rollout
    share its `rollout_id`, as in slime.
    """
    groups = {group: place for place, group in enumerate(dict.fromkeys(row.group for row in rows))}
    rollouts = {name: place for place, name in enumerate(dict.fromkeys(row.rollout or row.sample for row in rows))}
    return [
        Sample(
            group_index=groups[row.group],
            index=place,
            rollout_id=rollouts[row.rollout or row.sample],
            prompt=row.prompt,
            tokens=row.tokens,
            response=row.response,
            response_length=row.response_length,
            label=row.label,
            reward=row.reward,
            loss_mask=row.loss_mask,
            weight_versions=[str(version) for _, _, version in row.spans],
            rollout_log_probs=row.log_probs,
            teacher_log_probs=row.teacher_log_probs,
            status=FINISH.get(row.stop or "", Status.PENDING),
            metadata={
                **(row.metadata if isinstance(row.metadata, dict) else {}),
                OURS: {
                    **({} if isinstance(row.metadata, dict) else {"metadata": row.metadata}),
                    "run": row.run,
                    "sample": row.sample,
                    "rollout": row.rollout or row.sample,
                    "group": row.group,
                    "messages": row.messages,
                    "detail": row.reward_detail,
                    "spans": [list(span) for span in row.spans],
                    "tools": row.tools,
                },
            },
            session_id=row.sample,
        )
        for place, row in enumerate(rows)
    ]
