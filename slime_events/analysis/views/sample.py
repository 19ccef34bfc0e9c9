"""`SampleView`: a rollout token by token, with its requests, turns, reward and fate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from schemas.arrays import Array
from schemas.doc import doc
from schemas.event import Purpose
from schemas.prompts import Label
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import (
    Origin,
    RolloutFailed,
    RolloutRequested,
    RolloutSuspended,
    Sampling,
    StopReason,
    Timings,
    spans_text,
)
from schemas.turns import RootReason, ToolCall, TurnRecorded, TurnRole
from slime_events.analysis.views.group import Decision, view_decision
from slime_events.core.tokens.trajectory import Trajectory
from slime_events.model import Run, Sample
from slime_events.model.agent_session import AgentSession
from slime_events.model.records import Entry
from slime_events.plugins.sample_view import DecodePrompt, prompt_text

Decode = Callable[[int], str]
"""Returns the text of one token."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the rollout."""

    attempt: Annotated[int, doc("0, and 1 more after each failure or suspension")]
    at: Annotated[int, doc("UTC [ns]")]
    seed: Annotated[int, doc("seed of the generation")]
    min_version: Annotated[int, doc("oldest weights with which the engine may start")]
    purpose: Annotated[Purpose, doc("use of the rollout")]
    sampling: Annotated[Sampling, doc("sampling parameters")]


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that has ended. Only an agent's turn has the fields from `dialect` on."""

    turn: Annotated[int, doc("index of the turn")]
    role: Annotated[TurnRole, doc("author of the turn")]
    seconds: Annotated[float, doc("duration [s]")]
    tokens: Annotated[int, doc("number of generated tokens")]
    text: Annotated[str, doc("text of the generated tokens")]
    call: Annotated[ToolCall | None, doc("tool call, if the role is `tool`")]
    result: Annotated[Any, doc("JSON value that the tool returned")]
    error: Annotated[str, doc("error that the tool raised; empty if none")]
    extends: Annotated[int | None, doc("turn that it continues; None: a root")]
    dialect: Annotated[str | UnsetType, doc("API of the agent's request")] = UNSET
    root: Annotated[RootReason | UnsetType | None, doc("why it continues no turn; None if it continues one")] = UNSET
    nearest: Annotated[int | UnsetType | None, doc("for a root: the turn with which it shares most tokens")] = UNSET
    drift: Annotated[
        int | UnsetType | None, doc("for a root: index of the first token that differs from that turn's path")
    ] = UNSET
    rule: Annotated[str | UnsetType, doc("rule that made the new token ids of its prompt")] = UNSET
    generation: Annotated[str | UnsetType, doc("sample under which its generation was requested")] = UNSET


class Token(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A token of the response."""

    token: Annotated[int, doc("token id")]
    text: Annotated[str | None, doc("its text; None without a tokenizer")]
    log_prob: Annotated[float, doc("log-prob (nats) at its generation; 0 if no engine generated it")]
    version: Annotated[int | None, doc("weight version that generated it; None if no engine did")]
    trained: Annotated[bool, doc("it is trained on")]


class SampleView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the log holds about one sample. Fields of the completed rollout are None until its end."""

    sample: Annotated[str, doc("id of the sample")]
    group: Annotated[str, doc("id of its group")]
    requests: Annotated[tuple[Request, ...], doc("requests of its rollout, one per attempt")]
    interruptions: Annotated[
        tuple[RolloutFailed | RolloutSuspended, ...], doc("failures and suspensions of its rollout")
    ]
    chunks: Annotated[int, doc("number of chunks before the end")]
    turns: Annotated[tuple[Turn, ...], doc("turns that have ended")]
    sessions: Annotated[tuple[AgentSession, ...], doc("agents' sessions that made it")]
    prompt: Annotated[str, doc("text of its prompt after the chat template; empty if unknown")]
    prompt_is_own: Annotated[bool, doc("its prompt differs from the group's")]
    label: Annotated[Label, doc("label of the prompt: a text or another JSON value")]
    source: Annotated[str, doc("file URL of the prompt, or `inbox`; empty if unknown")]
    text: Annotated[str, doc("text of the response; empty until the end")]
    stop: Annotated[StopReason | None, doc("why the rollout ended")]
    length: Annotated[int, doc("response length so far [tokens]")]
    spans: Annotated[
        tuple[tuple[int, int, int], ...], doc("first token, token after the last, and their weight version")
    ]
    versions: Annotated[str, doc("`spans` as text, such as `v3` or `v3[0:40] v4[40:52]`")]
    digest: Annotated[str | None, doc("sha256 (hex) of all response tokens and log-probs")]
    engine: Annotated[str | None, doc("worker that ended the rollout")]
    timings: Annotated[Timings | None, doc("durations within the rollout")]
    origin: Annotated[Origin | None, doc("recorded rollout that the sample reuses")]
    functions: Annotated[
        dict[str, str] | None, doc("user's functions that made it: sha256 (hex) of the source by `module:name`")
    ]
    completed_at: Annotated[int | None, doc("UTC of the end [ns]")]
    reward: Annotated[RewardAssigned | RewardFailed | None, doc("its reward, or why it has none; None until then")]
    decision: Annotated[Decision | None, doc("decision about its group; None if there is none yet")]
    step: Annotated[int | None, doc("step whose batch has its group")]
    version: Annotated[int | None, doc("weight version that the step made; None until the commit")]
    removed: Annotated[bool, doc("in a batch, but --rollout-sample-filter-path removed it from training")]
    tokens: Annotated[tuple[Token, ...], doc("its response so far [length]")]


def view_sample(
    run: Run,
    sample: Sample,
    trajectory: Trajectory | None,
    decode: Decode | None = None,
    decode_prompt: DecodePrompt | None = None,
    sessions: Sequence[AgentSession] = (),
) -> SampleView:
    """Return everything that the log holds about one sample.

    trajectory: its tokens; None if it has none. decode_prompt: returns the text of the sample's own prompt, if the log
    holds only its tokens. sessions: agents' sessions that made it.
    """
    group, done = run.groups[sample.group], sample.completed.event if sample.completed else None
    prompt = group.prompt.event if group.prompt else None
    batch = run.steps.get(group.step) if group.step is not None else None
    removed = batch is not None and sample.sample in batch.sealed.event.removed

    def own_prompt(_: Array) -> str:  # the trajectory holds the token ids, records do not
        return decode_prompt(trajectory.prompt) if decode_prompt and trajectory else ""

    return SampleView(
        sample=sample.sample,
        group=sample.group,
        requests=tuple(_request(entry) for entry in sample.requests),
        interruptions=tuple(interruption.event for interruption in sample.interruptions),
        chunks=sample.chunks,
        turns=tuple(_turn(entry.event) for entry in sample.turns),
        sessions=tuple(sessions),
        prompt=prompt_text(prompt, done, own_prompt) if prompt else "",
        prompt_is_own=bool(done and done.prompt is not None),
        label=prompt.label if prompt else None,
        source=prompt.source.path if prompt else "",
        length=sample.length,
        spans=tuple((span.start, span.end, span.version) for span in sample.spans),
        versions=spans_text(sample.spans),
        text=done.text if done else "",
        stop=done.stop if done else None,
        digest=done.digest if done else None,
        engine=done.engine if done else None,
        timings=done.timings if done else None,
        origin=done.origin if done else None,
        functions=done.functions if done else None,
        completed_at=sample.completed.at if sample.completed else None,
        reward=sample.reward.event if sample.reward else None,
        decision=view_decision(group),
        step=group.step,
        version=run.version_of_step(group.step),
        removed=removed,
        tokens=_tokens(trajectory, decode, removed=removed) if trajectory else (),
    )


def _request(entry: Entry[RolloutRequested]) -> Request:
    event = entry.event
    return Request(
        attempt=event.attempt,
        at=entry.at,
        seed=event.seed,
        min_version=event.min_version,
        purpose=event.purpose,
        sampling=event.sampling,
    )


def _turn(turn: TurnRecorded) -> Turn:
    agent = turn.agent
    return Turn(
        turn=turn.index,
        role=turn.role,
        seconds=turn.seconds,
        tokens=turn.length,
        text=turn.text,
        call=turn.call,
        result=turn.result,
        error=turn.error,
        extends=turn.extends,
        dialect=agent.dialect if agent else UNSET,
        root=agent.root if agent else UNSET,
        nearest=agent.nearest if agent else UNSET,
        drift=agent.drift if agent else UNSET,
        rule=agent.rule if agent else UNSET,
        generation=agent.call if agent else UNSET,
    )


def _tokens(trajectory: Trajectory, decode: Decode | None, *, removed: bool) -> tuple[Token, ...]:
    versions: list[int | None] = [None] * trajectory.length  # tokens that no engine generated have no version
    for span in trajectory.spans:
        versions[span.start : span.end] = [span.version] * (span.end - span.start)
    mask = [1] * trajectory.length if trajectory.loss_mask is None else trajectory.loss_mask.tolist()
    columns = (trajectory.tokens.tolist(), trajectory.log_probs.tolist(), versions, mask)
    return tuple(
        Token(
            token=token,
            text=decode(token) if decode else None,
            log_prob=log_prob,
            version=version,
            trained=bool(trained) and not removed,
        )
        for token, log_prob, version, trained in zip(*columns, strict=True)
    )
