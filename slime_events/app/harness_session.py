"""`HarnessSession`: one session of a `Harness`, with an agent's address, the prompt, and the seal."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Self

import msgspec

from schemas.doc import doc
from schemas.errors import InvalidValue, SlimeEventsError
from schemas.outside_sessions import OpenedSession
from slime_events.app.harness_http import HarnessHttp

GONE = (404, 409, 410)
"""Statuses of a session that was not ended by its harness."""
GIVE_BACK_S = 5.0
log = logging.getLogger(__name__)


class SealResult(NamedTuple):
    """Result of sealing a session."""

    is_trained: Annotated[bool, doc("Whether its samples are trained on, or graded first")]
    why_not: Annotated[str, doc("Why they are not; empty if they are")]


class _Sealed(msgspec.Struct):
    failed: str = ""


class HarnessSession:
    """A session for one rollout of an agent.

    As a context manager it is sealed at the end of the block, unless it was sealed before: failed after an exception,
    else graded by the run's grader. opened: the gateway's reply. turns: turns that an earlier harness made before it
    was lost.
    """

    def __init__(self, opened: OpenedSession, http: HarnessHttp, turns: int, ended: Callable[[], object]) -> None:
        self.opened, self.turns = opened, turns
        self._http, self._ended = http, ended
        self.result: SealResult | None = None

    @property
    def name(self) -> str:
        """Id of the session."""
        return self.opened.session

    @property
    def base_url(self) -> str:
        """Base URL for an agent. It contains the session's key."""
        return self.opened.base_url

    @property
    def prompt(self) -> Any:
        """The prompt: a text, or chat messages."""
        return self.opened.prompt

    @property
    def label(self) -> Any:
        """Label of the prompt."""
        return self.opened.label

    @property
    def metadata(self) -> Any:
        """Metadata of the prompt."""
        return self.opened.metadata

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self.result is not None:
            return
        if kind is None:
            self.end()
            return
        with contextlib.suppress(SlimeEventsError):  # the error of the block is more important
            self.end(1, f"{kind.__name__}: {error}")

    def seal(
        self,
        reward: float | None = None,
        *,
        rewards: Mapping[int, float] | None = None,
        exit_code: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SealResult:
        """Seal the session. To seal it again with the same values is no error.

        reward: reward of all its samples. rewards: rewards of single paths, by the last turn of each path. exit_code:
        if not 0, its samples are not trained on. metadata: added to the sample. Raises InvalidValue, LogUnavailable.
        """
        return self._seal(reward, rewards, exit_code, metadata)

    def end(self, exit_code: int = 0, error: str = "") -> SealResult:
        """Seal the session without a reward.

        exit_code: if 0, the run's grader grades it; else its rollout fails with `error` as the reason.
        """
        return self._seal(None, None, exit_code, {"error": error} if error else None)

    def give_back(self, why: str) -> SealResult:
        """Fail the rollout, so that the run requests it again. Waits a few seconds for the gateway at most: an idle
        session ends by itself.
        """
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
            "rewards": {str(turn): float(value) for turn, value in (rewards or {}).items()},
            "exit_code": exit_code,
            "metadata": dict(metadata or {}),
        }
        path, key = f"/v1/sessions/{self.name}/seal", self.opened.control_key
        reply = self._http.ask("POST", path, key, body, wait_s=wait_s)
        if reply.status in GONE:
            why = reply.reason
        elif reply.status < 300:
            why = msgspec.json.decode(reply.body, type=_Sealed).failed
        else:
            raise InvalidValue(f"the gateway refused to seal session {self.name}: {reply.status}: {reply.reason}")
        if why and not exit_code:
            log.warning("session %s: %s", self.name, why)
        self.result = SealResult(not why, why)
        self._ended()
        return self.result
