"""Requests and answers about sessions over HTTP, as JSON of these structs."""

import enum
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.ids import session_name
from schemas.outside_sessions import OpenedSession
from schemas.prompts import PromptSubmitted
from schemas.rewards import MOST_REWARD, is_reward
from schemas.rollouts import RolloutFailed, StopReason
from schemas.sessions import SealReason
from schemas.turns import RootReason
from serve_apps.engines.engine import sampling_params
from serve_apps.http.gateway.agents import Capability, SessionKeys
from serve_apps.http.gateway.refusals import Refused
from slime_events.core.sessions.session import Limits, Session

MOST_WAIT_S = 60.0


class SessionWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to open a session."""

    group: Annotated[str | None, doc("Opens a rollout of this group only.")] = None
    wait_s: Annotated[float, doc("Seconds to wait for a rollout, at most 60.")] = 0.0


class SealWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to end a session. At least one of `reward`, `rewards` and `exit_code` is required."""

    reward: Annotated[
        float | None, doc("Reward of each path that `rewards` does not list; null: the run's grader grades it.")
    ] = None
    rewards: Annotated[dict[int, float], doc("Rewards of single paths, by the index of their last turn.")] = {}
    exit_code: Annotated[
        int | None, doc("Exit code of the agent's program. If it is not 0, the session is not trained on.")
    ] = None
    metadata: Annotated[dict[str, Any], doc("Metadata to add to each sample of the session.")] = {}

    def check(self, leaves: list[int]) -> None:
        """Raise Refused if a reward is not valid or is for a turn that ends no path, or if no field is set."""
        rewards = [*self.rewards.values(), *([] if self.reward is None else [self.reward])]
        if not all(map(is_reward, rewards)):
            raise Refused(422, f"reward: must be a finite number from {-MOST_REWARD:g} to {MOST_REWARD:g}")
        if self.reward is None and not self.rewards and self.exit_code is None:
            raise Refused(422, "set reward, rewards or exit_code: at least one is required to end a session")
        if unknown := sorted(self.rewards.keys() - set(leaves)):
            raise Refused(422, f"rewards.{unknown[0]}: turn {unknown[0]} ends no path; paths end with turns {leaves}")


class TurnView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A recorded turn."""

    index: Annotated[int, doc("Index of the turn in its session, from 0.")]
    tokens: Annotated[int, doc("Number of generated tokens.")]
    stop: Annotated[StopReason | None, doc("Reason why generation ended.")]
    seconds: Annotated[float, doc("Seconds that the turn took.")]
    extends: Annotated[int | None, doc("Index of the turn that this turn continues; absent for a root.")] = None
    root: Annotated[RootReason | None, doc("Reason why the turn continues no earlier turn.")] = None


class OpenTurnView(msgspec.Struct, frozen=True):
    """A turn in progress."""

    index: Annotated[int, doc("Index of the turn in its session, from 0.")]
    age_s: Annotated[float, doc("Seconds since the turn began.")]


class SessionResult(enum.StrEnum):
    """End of the rollout that a session is about."""

    COMPLETED = "completed"
    FAILED = "failed"


class SessionView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session in the log."""

    session: Annotated[str, doc("Name of the session.")]
    sample: Annotated[str, doc("Id of the sample.")]
    attempt: Annotated[int, doc("Attempt of the sample, from 0.")]
    age_s: Annotated[float, doc("Seconds since the session was opened; if it is sealed, until it was sealed.")]
    turns: Annotated[list[TurnView], doc("Recorded turns.")]
    open: Annotated[list[OpenTurnView], doc("Turns in progress.")] = []
    leaves: Annotated[list[int], doc("Indices of the turns that end a path.")] = []
    orphans: Annotated[list[int], doc("Indices of turns without effect: retried later, or never recorded.")] = []
    sealed: Annotated[SealReason | None, doc("Reason of the seal. A sealed session takes no more turns.")] = None
    result: Annotated[SessionResult | None, doc("End of the rollout; absent until then.")] = None
    failed: Annotated[str, doc("Reason why the rollout failed; absent if it is trained on.")] = ""


def opened_session(
    session: Session, prompt: PromptSubmitted, keys: SessionKeys, limits: Limits, url: str
) -> OpenedSession:
    """Return the answer to a harness that opened a session. url: base URL of the gateway in the harness's request."""
    assert session.request is not None
    name = session.name
    agent = f"{name}.{keys.of(name, Capability.AGENT)}"
    return OpenedSession(
        session=name,
        sample=session.sample,
        group=session.request.group,
        attempt=session.attempt,
        purpose=session.request.purpose,
        prompt=prompt.messages or prompt.text,
        metadata=prompt.metadata,
        label=prompt.label,
        tools=prompt.tools,
        sampling=sampling_params(session.request.sampling),
        base_url=f"{url}/v1/sessions/{agent}/v1",
        agent_key=agent,
        control_key=keys.of(name, Capability.CONTROL),
        limits={"turn_s": limits.turn_s, "session_s": limits.session_s, "idle_s": limits.idle_s},
    )


def session_view(session: Session, now: int) -> SessionView:
    """Return the view of a session. now: nanoseconds of Unix time."""
    failed = session.ended.message if isinstance(session.ended, RolloutFailed) else ""
    turns = [
        TurnView(
            turn.index, turn.length, turn.stop, turn.seconds, turn.extends, turn.agent.root if turn.agent else None
        )
        for turn in session.turns.values()
    ]
    return SessionView(
        session=session_name(session.sample, session.attempt),
        sample=session.sample,
        attempt=session.attempt,
        age_s=((session.moved_at if session.sealed else now) - session.opened_at) / 1e9,
        turns=turns,
        open=[OpenTurnView(turn.number, (now - turn.at) / 1e9) for turn in session.open.values()],
        leaves=session.leaves(),
        orphans=session.orphans(),
        sealed=session.sealed.reason if session.sealed else None,
        result=_result(session),
        failed=failed,
    )


def _result(session: Session) -> SessionResult | None:
    if session.ended is None:
        return None
    return SessionResult.FAILED if isinstance(session.ended, RolloutFailed) else SessionResult.COMPLETED
