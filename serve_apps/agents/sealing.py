"""A session that is sealed, as events: the samples that its turns come to, their rewards, or why it is not trained on.

forest of turns -> its leaves -> one sample each, of the tokens on the path to it -> rollout.completed

A token of several paths is trained on in one of them alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from schemas.arrays import Array, pack
from schemas.errors import shown_text
from schemas.event import Event
from schemas.ids import sibling_id
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, RolloutRequested, StopReason, Timings
from schemas.sessions import SealReason, SessionSealed
from serve_apps.agents.live_session import LoadedTurn
from serve_apps.engine.engine import Tokens
from serve_apps.generate.custom import Made, completion
from serve_apps.generate.journal import Ended
from slime_events.core.credit import CreditedPath, CreditRule, TurnTokens, credited_paths
from slime_events.core.state.sessions import Session
from slime_events.plugins.sample import Sample, Status
from slime_events.plugins.sample_view import sample_to_make

HARNESS = "harness:"
"""Before the source's name, in the place of a grader's."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a harness says of a session. rewards: of single paths, by the turns that ended them."""

    reason: SealReason
    reward: float | None = None
    rewards: dict[int, float] = field(default_factory=dict)
    exit_code: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def reward_of(self, leaf: int) -> float | None:
        """Of the path that ended with this turn."""
        return self.rewards.get(leaf, self.reward)


def verdict_of(
    reward: float | None, rewards: dict[int, float], exit_code: int | None, metadata: dict[str, Any]
) -> Verdict:
    """A harness's."""
    rewarded = not exit_code and (reward is not None or bool(rewards))
    return Verdict(SealReason.REWARD if rewarded else SealReason.EXIT, reward, rewards, exit_code, metadata)


@dataclass(frozen=True, slots=True)
class Sealing:
    """What is needed of the run. prompt: as requested. gateway: who seals. grades: the run's grader grades what has no
    reward. now: ns of Unix time. fails_idle: an idle session is a failed rollout.
    """

    asked: PromptSubmitted
    prompt: Tokens
    credit: CreditRule
    tokenizer: Any
    gateway: str
    grades: bool
    now: int
    fails_idle: bool = False


def sealed(session: Session, known: Sequence[LoadedTurn], verdict: Verdict, run: Sealing) -> list[Event]:
    """The events that end a session, in the order in which they are appended."""
    assert session.request is not None
    assert session.opened is not None
    sender = session.opened.sender
    leaves = session.leaves()
    paths = credited_paths({turn.index: turn.extends for turn in known}, leaves, run.credit)
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
    turns = {turn.index: turn for turn in known}
    completed = list[RolloutCompleted]()
    for number, credited in enumerate(paths):
        path = [turns[index] for index in credited.turns]
        made = Made(
            session.request,
            run.asked,
            run.prompt,
            list(_placed(path)),
            run.gateway,
            run.tokenizer,
            Timings(generating=seconds),
        )
        sample, credit = _sample(path, credited, verdict, session.request, run), _credit(path, credited)
        one = completion(sample, sibling_id(session.sample, number), made)
        completed.append(one if credit is None else replace(one, credit=credit))
    rewards = [
        RewardAssigned(sample=one.sample, group=one.group, value=value, grader=f"{HARNESS}{sender}", grader_digest="")
        for one, leaf in zip(completed, trained, strict=True)
        if (value := verdict.reward_of(leaf)) is not None
    ]
    return [seal, *completed[1:], *completed[:1], *rewards[1:], *rewards[:1]]


def why_not_trained(
    session: Session, verdict: Verdict, trained: Sequence[int], *, grades: bool, fails_idle: bool = False
) -> str:
    """Empty where it is trained on."""
    if verdict.exit_code:
        error = verdict.metadata.get("error")
        why = f": {shown_text(error)}" if isinstance(error, str) and error else ""
        return f"its program ended with exit code {verdict.exit_code}{why}"
    if verdict.reason is SealReason.OVER:
        return "nothing could come of it any more: its group was decided, or the run has ended"
    if not trained:
        under_way = f" ({len(session.open)} under way)" if session.open else ""
        return f"it made no turn that ended{under_way}"
    if verdict.reason is SealReason.IDLE and fails_idle:
        return "it was idle, and the run fails idle sessions (--agent-idle fail)"
    if not grades and any(verdict.reward_of(leaf) is None for leaf in trained):
        return "nobody gave it a reward, and the run has no grader"
    return ""


def _placed(path: Sequence[LoadedTurn]) -> Iterator[tuple[int, Ended]]:
    """The turns, and where the tokens of each begin."""
    begin = 0
    for turn in path:
        begin += len(turn.observed)
        yield begin, Ended(turn.event, turn.generated, turn.log_probs)
        begin += len(turn.generated)


def _sample(
    path: Sequence[LoadedTurn], credited: CreditedPath, verdict: Verdict, request: RolloutRequested, run: Sealing
) -> Sample:
    """What is trained on of a path: the tokens of its trained turns. All before the first answer is its prompt."""
    sample = sample_to_make(request, run.asked)
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
