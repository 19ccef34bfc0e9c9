"""Events that seal a session: samples of its turns with their rewards, or the reason why it is not trained on.

forest of turns -> its leaves -> for each leaf, a sample of the tokens on the path to it -> rollout.completed

A token that several paths share is trained on in only one path.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec.structs import replace

from schemas.arrays import Array, pack
from schemas.doc import doc
from schemas.errors import shown_text
from schemas.event import Event
from schemas.ids import sibling_id
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, RolloutRequested, StopReason, Timings
from schemas.sessions import SealReason, SessionSealed
from serve_apps.engines.engine import Tokens
from serve_apps.rollouts.agents.live_session import LoadedTurn
from serve_apps.rollouts.agents.rendering import ChatTokenizer
from serve_apps.rollouts.generate.custom import CompletionContext, completion
from serve_apps.rollouts.generate.journal import EndedTurn
from slime_events.algorithms.credit import CreditedPath, CreditRule, TurnTokens, credited_paths
from slime_events.core.sessions.session import Session
from slime_events.plugins.sample import Sample, Status
from slime_events.plugins.sample_view import requested_sample

HARNESS = "harness:"
"""Prefix of `RewardAssigned.grader` if the harness named after it gave the reward."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a session, from its harness or from the gateway."""

    reason: SealReason
    reward: Annotated[float | None, doc("reward of each path that has none in `rewards`")] = None
    rewards: Annotated[dict[int, float], doc("rewards of single paths, by the index of their last turn")] = field(
        default_factory=dict
    )
    exit_code: Annotated[int | None, doc("exit code of the harness; nonzero: it failed")] = None
    metadata: Annotated[dict[str, Any], doc("JSON values that are added to the metadata of each sample")] = field(
        default_factory=dict
    )

    def reward_of(self, leaf: int) -> float | None:
        """Return the reward of the path whose last turn is `leaf`."""
        return self.rewards.get(leaf, self.reward)


def verdict_of(
    reward: float | None, rewards: dict[int, float], exit_code: int | None, metadata: dict[str, Any]
) -> Verdict:
    """Return a harness's verdict."""
    rewarded = not exit_code and (reward is not None or bool(rewards))
    return Verdict(SealReason.REWARD if rewarded else SealReason.EXIT, reward, rewards, exit_code, metadata)


@dataclass(frozen=True, slots=True)
class Sealing:
    """Run data that `sealed` needs."""

    prompt: Annotated[PromptSubmitted, doc("prompt of the session's group")]
    prompt_tokens: Annotated[Tokens, doc("token ids of the requested prompt, int32 [tokens]")]
    credit: CreditRule
    tokenizer: ChatTokenizer
    gateway: Annotated[str, doc("id of the gateway that seals")]
    grades: Annotated[bool, doc("the run's grader grades samples without a reward")]
    now: Annotated[int, doc("nanoseconds of Unix time")]
    fails_idle: Annotated[bool, doc("an idle session becomes a failed rollout")] = False


def sealed(session: Session, recorded: Sequence[LoadedTurn], verdict: Verdict, run: Sealing) -> list[Event]:
    """Return the events that end a session, in the order in which they are appended."""
    assert session.request is not None
    assert session.opened is not None
    sender = session.opened.sender
    leaves = session.leaves()
    paths = credited_paths({turn.index: turn.extends for turn in recorded}, leaves, run.credit)
    trained = [path.turns[-1] for path in paths]
    seconds = (run.now - session.opened_at) / 1e9
    seal = SessionSealed(
        sample=session.sample,
        attempt=session.attempt,
        reason=verdict.reason,
        gateway=run.gateway,
        exit_code=verdict.exit_code,
        reward=verdict.reward,
        rewards=verdict.rewards,
        leaves=tuple(leaves),
        orphans=tuple(session.orphans()),
        credit=run.credit.credit,
        metadata=verdict.metadata,
        turns=len(session.turns),
        seconds=seconds,
        discount=run.credit.discount,
    )
    if why := why_not_trained(session, verdict, trained, grades=run.grades, fails_idle=run.fails_idle):
        return [seal, _failed(session, why, run.gateway)]
    turns = {turn.index: turn for turn in recorded}
    completed = list[RolloutCompleted]()
    for number, credited in enumerate(paths):
        path = [turns[index] for index in credited.turns]
        shared = CompletionContext(
            session.request,
            run.prompt,
            run.prompt_tokens,
            list(_with_starts(path)),
            run.gateway,
            run.tokenizer,
            Timings(generating=seconds),
        )
        sample, credit = _sample(path, credited, verdict, session.request, run), _credit(path, credited)
        event = completion(sample, sibling_id(session.sample, number), shared)
        completed.append(event if credit is None else replace(event, credit=credit))
    grader = f"{HARNESS}{sender}"
    rewards = [
        RewardAssigned(sample=event.sample, group=event.group, value=value, grader=grader, grader_digest="")
        for event, leaf in zip(completed, trained, strict=True)
        if (value := verdict.reward_of(leaf)) is not None
    ]
    return [seal, *completed[1:], *completed[:1], *rewards[1:], *rewards[:1]]


def why_not_trained(
    session: Session, verdict: Verdict, trained: Sequence[int], *, grades: bool, fails_idle: bool = False
) -> str:
    """Return the reason why a session is not trained on; empty if it is."""
    if verdict.exit_code:
        error = verdict.metadata.get("error")
        why = f": {shown_text(error)}" if isinstance(error, str) and error else ""
        return f"its program ended with exit code {verdict.exit_code}{why}"
    if verdict.reason is SealReason.OVER:
        return "its rollout is no longer needed: its group was decided, or the run has ended"
    if not trained:
        under_way = f" ({len(session.open)} in progress)" if session.open else ""
        return f"it has no completed turn{under_way}"
    if verdict.reason is SealReason.IDLE and fails_idle:
        return "it was idle, and the run fails idle sessions (--agent-idle fail)"
    if not grades and any(verdict.reward_of(leaf) is None for leaf in trained):
        return "it was sealed without a reward, and the run has no grader"
    return ""


def _with_starts(path: Sequence[LoadedTurn]) -> Iterator[tuple[int, EndedTurn]]:
    """Yield each turn with the index of its first generated token."""
    begin = 0
    for turn in path:
        begin += len(turn.observed)
        yield begin, EndedTurn(turn.event, turn.generated, turn.log_probs)
        begin += len(turn.generated)


def _sample(
    path: Sequence[LoadedTurn], credited: CreditedPath, verdict: Verdict, request: RolloutRequested, run: Sealing
) -> Sample:
    """Return the sample of a path. Its prompt ends at the first answer; its loss mask selects the trained turns."""
    sample = requested_sample(request, run.prompt)
    tokens, log_probs, texts = list[int](), list[float](), list[str]()
    for turn in path:
        if tokens:
            observed = turn.observed.tolist()
            tokens += observed
            log_probs += [0.0] * len(observed)
            texts.append(str(run.tokenizer.decode(observed, skip_special_tokens=False)))
        tokens += turn.generated.tolist()
        log_probs += turn.log_probs.tolist()
        texts.append(turn.event.text)
    sample.tokens, sample.response_length = [*path[0].observed.tolist(), *tokens], len(tokens)
    sample.loss_mask = credited.mask(_tokens_of(path)).tolist()
    sample.rollout_log_probs, sample.response = log_probs, "".join(texts)
    cut_off = path[-1].event.stop is StopReason.LENGTH or verdict.reason is SealReason.TIME
    sample.status = Status.TRUNCATED if cut_off else Status.COMPLETED
    if verdict.metadata and isinstance(sample.metadata, dict):
        sample.metadata = sample.metadata | verdict.metadata
    return sample


def _tokens_of(path: Sequence[LoadedTurn]) -> dict[int, TurnTokens]:
    return {turn.index: TurnTokens(turn.extends, len(turn.observed), len(turn.generated)) for turn in path}


def _credit(path: Sequence[LoadedTurn], credited: CreditedPath) -> Array | None:
    credit = credited.credit(_tokens_of(path))
    return None if credit is None else pack(credit, "float32")


def _failed(session: Session, why: str, gateway: str) -> RolloutFailed:
    assert session.request is not None
    return RolloutFailed(
        sample=session.sample,
        group=session.request.group,
        attempt=session.attempt,
        kind=FailureKind.AGENT,
        message=f"the agent's session is not trained on: {why}",
        engine=gateway,
    )
