"""What is said of sessions over HTTP: JSON of these structs."""

from typing import Any

import msgspec

from schemas.ids import session_name
from schemas.outside_sessions import OpenedSession
from schemas.prompts import PromptSubmitted
from schemas.rewards import MOST_REWARD, is_reward
from schemas.rollouts import RolloutFailed, StopReason
from schemas.sessions import SealReason
from schemas.turns import RootReason
from serve_apps.agents.keys import Capability, SessionKeys
from serve_apps.engine.engine import sampling_params
from serve_apps.gateway.refusals import Refused
from slime_events.core.state.sessions import Limits, Session

MOST_WAIT_S = 60.0


class SessionWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """group: only a rollout of this group. wait_s: how long to wait for one, 60 s at most."""

    group: str | None = None
    wait_s: float = 0.0


class SealWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a session ended. reward: None where the run's grader grades. rewards: of single paths, by the index of the
    turn that ended them. exit_code: of the program; another than 0 is never trained on. metadata: for the sample.
    """

    reward: float | None = None
    rewards: dict[int, float] = {}
    exit_code: int | None = None
    metadata: dict[str, Any] = {}

    def check(self, leaves: list[int]) -> None:
        """Raises Refused for a reward that is no number, or of a turn that ended no path."""
        given = [*self.rewards.values(), *([] if self.reward is None else [self.reward])]
        if not all(map(is_reward, given)):
            raise Refused(422, f"reward: a finite number, {MOST_REWARD:g} at most")
        if self.reward is None and not self.rewards and self.exit_code is None:
            raise Refused(422, "give a reward, rewards or an exit_code: without, nothing says that it has ended")
        if unknown := sorted(self.rewards.keys() - set(leaves)):
            raise Refused(422, f"rewards.{unknown[0]}: no path ended with turn {unknown[0]}; paths end with {leaves}")


class TurnView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A recorded turn. extends: the turn that it goes on from; root: why it goes on from none."""

    index: int
    tokens: int
    stop: StopReason | None
    seconds: float
    extends: int | None = None
    root: RootReason | None = None


class OpenTurnView(msgspec.Struct, frozen=True):
    """A turn under way. age_s: since it was begun."""

    index: int
    age_s: float


class SessionView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session as the log has it. leaves: turns that ended a path. orphans: that nothing came of. age_s: since it was
    opened; of one that was sealed, until then. sealed: why, where it was; then it takes no more turns. result: what its
    rollout came to: `completed`, or why it failed. failed: the same reason again; absent where it is trained on.
    """

    session: str
    sample: str
    attempt: int
    age_s: float
    turns: list[TurnView]
    open: list[OpenTurnView] = []
    leaves: list[int] = []
    orphans: list[int] = []
    sealed: SealReason | None = None
    result: str = ""
    failed: str = ""


def opened_session(
    session: Session, asked: PromptSubmitted, keys: SessionKeys, limits: Limits, url: str
) -> OpenedSession:
    """url: of the gateway, as the harness knows it."""
    assert session.request is not None
    name = session.name
    agent = f"{name}.{keys.of(name, Capability.AGENT)}"
    return OpenedSession(
        session=name,
        sample=session.sample,
        group=session.request.group,
        attempt=session.attempt,
        purpose=session.request.purpose,
        prompt=asked.messages or asked.text,
        metadata=asked.metadata,
        label=asked.label,
        tools=asked.tools,
        sampling=sampling_params(session.request.sampling),
        base_url=f"{url}/v1/sessions/{agent}/v1",
        agent_key=agent,
        control_key=keys.of(name, Capability.CONTROL),
        limits={"turn_s": limits.turn_s, "session_s": limits.session_s, "idle_s": limits.idle_s},
    )


def session_view(session: Session, now: int) -> SessionView:
    """now: ns of Unix time."""
    failed = session.ended.message if isinstance(session.ended, RolloutFailed) else ""
    turns = [
        TurnView(one.index, one.length, one.stop, one.seconds, one.extends, one.agent.root if one.agent else None)
        for one in session.turns.values()
    ]
    return SessionView(
        session=session_name(session.sample, session.attempt),
        sample=session.sample,
        attempt=session.attempt,
        age_s=((session.moved_at if session.sealed else now) - session.opened_at) / 1e9,
        turns=turns,
        open=[OpenTurnView(one.number, (now - one.at) / 1e9) for one in session.open.values()],
        leaves=session.leaves(),
        orphans=session.orphans(),
        sealed=session.sealed.reason if session.sealed else None,
        result=failed or ("" if session.ended is None else "completed"),
        failed=failed,
    )
