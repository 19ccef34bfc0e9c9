"""`ExportedSample`, `ExportedPrompt`: a sample and a prompt of a run as plain values, and as samples of slime."""

import enum
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from slime_events.plugins.sample import FINISH, Sample, Status


class Fate(enum.StrEnum):
    """Outcome of a sample."""

    TRAINED = "trained"
    REJECTED = "rejected"
    EVALUATED = "evaluated"


class ExportedSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of a run."""

    run: Annotated[str, doc("name of the run")]
    fate: Annotated[Fate, doc("what became of it")]
    step: Annotated[int | None, doc("step that trained on it, or evaluated weight version; None if rejected")]
    group: Annotated[str, doc("id of its group")]
    sample: Annotated[str, doc("id of the sample")]
    rollout: Annotated[str, doc("requested sample, if this is a further one of its rollout")]
    index: Annotated[int, doc("index of its rollout in the group")]
    dataset: Annotated[str, doc("`train`, `inbox`, or the evaluation's name")]
    prompt: Annotated[str, doc("prompt as the model saw it")]
    messages: Annotated[list[dict[str, Any]] | None, doc("chat from which the prompt was made")]
    label: Annotated[Any, doc("right answer, if there is one")]
    tools: Annotated[list[dict[str, Any]] | None, doc("tools of the prompt")]
    metadata: Annotated[Any, doc("metadata of prompt and sample")]
    source: Annotated[str, doc("file URL, or `inbox`")]
    line: Annotated[int, doc("line of the file, from 1")]
    tokens: Annotated[list[int], doc("token ids of prompt and response")]
    prompt_length: Annotated[int, doc("prompt length [tokens]")]
    response: Annotated[str, doc("text of the response")]
    response_length: Annotated[int, doc("response length [tokens]")]
    log_probs: Annotated[list[float], doc("log-probs by the engine [response], nats")]
    loss_mask: Annotated[list[int], doc("loss mask [response], 1 = trained on")]
    spans: Annotated[list[tuple[int, int, int]], doc("(start, end, weight version) over the response")]
    stop: Annotated[str | None, doc("how it ended")]
    reward: Annotated[float | None, doc("reward as graded; None if there is none")]
    reward_detail: Annotated[dict[str, Any] | None, doc("dict that the grader returned")]
    advantage_input: Annotated[float | None, doc("reward normalised over its group")]
    reason: Annotated[str | None, doc("why it was rejected")]
    group_prompt: Annotated[
        str | list[dict[str, Any]] | None,
        doc(
            "chat or text of the group's prompt, if a generate function gave the sample another; then "
            "`messages` is None"
        ),
    ] = None
    teacher_log_probs: Annotated[list[float] | None, doc("log-probs by its grader's teacher [response], nats")] = None


class ExportedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt of a run."""

    input: Annotated[str | list[dict[str, Any]], doc("chat (for --apply-chat-template), or the text if there is none")]
    label: Annotated[Any, doc("right answer, if there is one")]
    metadata: Annotated[Any, doc("metadata of the prompt")]
    tools: Annotated[list[dict[str, Any]] | None, doc("tools of the prompt")]
    group: Annotated[str, doc("id of its group")]
    rewards: Annotated[list[float | None], doc("rewards of its samples")]


def prompts_of(samples: list[ExportedSample]) -> list[ExportedPrompt]:
    """Return a prompt per group, in order."""
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
"""Key in a sample's metadata for values that slime has no field for."""


def as_slime(rows: Sequence[ExportedSample]) -> list[Sample]:
    """Return a sample of slime per row. Groups and rollouts are numbered in the order in which they occur. Samples of
    one rollout share its `rollout_id`, as in slime.
    """
    groups = {group: index for index, group in enumerate(dict.fromkeys(row.group for row in rows))}
    rollouts = {name: index for index, name in enumerate(dict.fromkeys(row.rollout or row.sample for row in rows))}
    return [
        Sample(
            group_index=groups[row.group],
            index=index,
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
        for index, row in enumerate(rows)
    ]
