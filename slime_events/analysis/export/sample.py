"""`ExportedSample`: one sample of a run with everything that is known of it, as plain values."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


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
    group. rollout: the sample that was asked for, where this is a further one of its rollout. reason: why it was
    rejected.
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
    label: str | None
    tools: list[dict[str, Any]] | None
    metadata: dict[str, Any]
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
