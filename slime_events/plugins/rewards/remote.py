"""`remote_rm`: a judge behind HTTP. POST {prompt, response, label}; its JSON answer is the reward, or a dict with it.

It waits in this process, each sample by itself: a judge that takes its time over one delays no other.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

from schemas.rewards import RewardFailureKind
from slime_events.plugins.rewards.dispatch import response_for
from slime_events.plugins.rewards.outcome import Graded, NoValue, Outcome, RewardFailure, value_of
from slime_events.plugins.sample import Sample

TRIES = 10
CONNECTIONS = 64
"""Questions under way at most. A sample's time does not run while it waits for one."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
SHOWN = 200
"""Characters of an answer that a message quotes."""


@dataclass(slots=True)
class _Course:
    """How asking for one reward has gone so far."""

    tries: int = 0
    last: str = "it has not answered"


class _Refused(Exception):
    """An answer that asking again would not change."""


class RemoteJudge:
    """One judge's address. Use it as `async with`. timeout_s: of one sample, all tries and pauses included."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s
        self._digest = hashlib.sha256(url.encode()).hexdigest()
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> RemoteJudge:
        # The limit is each sample's own, over all its tries.
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def grade(self, name: str, sample: Sample, reward_key: str | None) -> Outcome:
        """The reward of one sample, or why there is none. name: with `boxed_`, only what the last box holds is sent."""
        question = {
            "prompt": sample.prompt,
            "response": response_for(name, sample.response),
            "label": sample.label,
        }
        async with self._room:
            return await self._answer(name, question, reward_key)

    async def _answer(self, name: str, question: dict[str, Any], reward_key: str | None) -> Outcome:
        begun, course = time.perf_counter(), _Course()

        def failure(kind: RewardFailureKind, message: str) -> RewardFailure:
            seconds = time.perf_counter() - begun
            return RewardFailure(
                kind=kind, message=message[:2000], seconds=seconds, grader=name, grader_digest=self._digest
            )

        try:
            async with asyncio.timeout(self._timeout_s):
                returned = await self._ask(question, course)
        except TimeoutError:
            tries = f"{course.tries} {'try' if course.tries == 1 else 'tries'}"
            message = f"no reward from {self._url} within {self._timeout_s:g} s ({tries}; the last: {course.last})"
            return failure(RewardFailureKind.TIMEOUT, message)
        except _Refused as error:
            return failure(RewardFailureKind.RAISED, f"{self._url} {error}")
        found = value_of(returned, reward_key)
        if isinstance(found, NoValue):
            return failure(found.kind, f"{self._url}: {found.message}")
        return Graded(
            value=found.value,
            detail=found.detail,
            seconds=time.perf_counter() - begun,
            grader=name,
            grader_digest=self._digest,
        )

    async def _ask(self, question: dict[str, Any], course: _Course) -> Any:
        for number in range(TRIES):
            course.tries, course.last = number + 1, "it has not answered"
            answer = await self._try(question, course)
            if answer is not None:
                return answer[0]
            await asyncio.sleep(min(FIRST_PAUSE_S * 2**number, LONGEST_PAUSE_S) * (0.5 + random.random()))
        raise _Refused(f"gave no reward in {TRIES} tries; the last: {course.last}")

    async def _try(self, question: dict[str, Any], course: _Course) -> tuple[Any] | None:
        """What it answered; None where it may be asked again. Raises _Refused."""
        assert self._session is not None, "enter the judge before asking it"
        try:
            async with self._session.post(self._url, json=question) as response:
                text = await response.text(errors="replace")
                if response.status in TRY_AGAIN:
                    course.last = f"{response.status} {response.reason}: {text[:SHOWN]}"
                    return None
                if response.status != 200:
                    raise _Refused(f"answered {response.status} {response.reason}: {text[:SHOWN]}")
                return (await response.json(content_type=None),)
        except ValueError as error:
            raise _Refused(f"answered what is no JSON: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            course.last = f"{type(error).__name__}: {error}"
            return None
