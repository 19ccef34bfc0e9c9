"""`HarnessSession`: one session of a `Harness`: what an agent needs of it, and its end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import msgspec

from schemas.errors import InvalidValue, SlimeEventsError
from schemas.outside_sessions import OpenedSession
from slime_events.app.harness_http import HarnessHttp

GONE = (404, 409, 410)
"""Statuses of a session that has ended otherwise."""
GIVE_BACK_S = 5.0
log = logging.getLogger(__name__)


class SealResult(NamedTuple):
    """is_trained: whether its samples are trained on, or graded first. why_not: empty where they are."""

    is_trained: bool
    why_not: str


class _Sealed(msgspec.Struct):
    failed: str = ""


class HarnessSession:
    """As a context manager it ends with its block: failed by an exception, else graded by the run's grader, unless it
    was sealed before. opened: all that the gateway says of it. turns: that it had when an earlier harness was lost.
    """

    def __init__(self, opened: OpenedSession, http: HarnessHttp, turns: int, ended: Callable[[], object]) -> None:
        self.opened, self.turns = opened, turns
        self._http, self._ended = http, ended
        self.result: SealResult | None = None

    @property
    def name(self) -> str:
        """Of the session."""
        return self.opened.session

    @property
    def base_url(self) -> str:
        """For an agent. The session's key is in it."""
        return self.opened.base_url

    @property
    def prompt(self) -> Any:
        """A text, or chat messages."""
        return self.opened.prompt

    @property
    def label(self) -> Any:
        """The prompt's."""
        return self.opened.label

    @property
    def metadata(self) -> Any:
        """The prompt's."""
        return self.opened.metadata

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self.result is not None:
            return
        if kind is None:
            self.end()
            return
        with contextlib.suppress(SlimeEventsError):  # the error of the block is the one to tell
            self.end(1, f"{kind.__name__}: {error}")

    def seal(
        self,
        reward: float | None = None,
        *,
        rewards: Mapping[int, float] | None = None,
        exit_code: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SealResult:
        """End it; the same again is no error. reward: of all its samples. rewards: of single paths, by the turns that
        ended them. exit_code: another than 0 is never trained on. metadata: for the sample.

        Raises InvalidValue for what cannot be, LogUnavailable.
        """
        return self._seal(reward, rewards, exit_code, metadata)

    def end(self, exit_code: int = 0, error: str = "") -> SealResult:
        """End it without a reward: with 0 the run's grader grades it, else its rollout has failed for this reason."""
        return self._seal(None, None, exit_code, {"error": error} if error else None)

    def give_back(self, why: str) -> SealResult:
        """Its rollout fails, and is asked for again. The gateway is not waited for: idle, it ends by itself."""
        return self._seal(None, None, 1, {"error": why}, GIVE_BACK_S)

    def _seal(
        self,
        reward: float | None,
        rewards: Mapping[int, float] | None,
        exit_code: int | None,
        metadata: Mapping[str, Any] | None,
        wait_s: float | None = None,
    ) -> SealResult:
        body = {
            "reward": None if reward is None else float(reward),
            "rewards": {str(turn): float(one) for turn, one in (rewards or {}).items()},
            "exit_code": exit_code,
            "metadata": dict(metadata or {}),
        }
        path, key = f"/v1/sessions/{self.name}/seal", self.opened.control_key
        said = self._http.ask("POST", path, key, body, wait_s=wait_s)
        if said.status in GONE:
            why = said.reason
        elif said.status < 300:
            why = msgspec.json.decode(said.body, type=_Sealed).failed
        else:
            raise InvalidValue(f"the seal of session {self.name} is refused: {said.status}: {said.reason}")
        if why and not exit_code:
            log.warning("session %s: %s", self.name, why)
        self.result = SealResult(not why, why)
        self._ended()
        return self.result
