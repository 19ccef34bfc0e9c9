"""`remote_rm`: a judge behind HTTP. POST {prompt, response, label}; its JSON answer is the reward, or a dict with it.

This process sends the requests, one per sample: a slow answer for one sample delays no other.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from typing import Any

import aiohttp

from schemas.references import expand
from schemas.rewards import RewardFailureKind
from slime_events.plugins.rewards.outcome import Outcome, RewardFailure, failure, signed, value_of
from slime_events.plugins.rewards.registry import response_for
from slime_events.plugins.sample import Sample

TRIES = 10
CONNECTIONS = 64
"""Maximum number of requests in flight. A sample's time limit starts with its first request."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
SHOWN = 200  # characters of an answer in a message


class _Retryable(Exception):
    """No answer, or one that a retry may change."""


class _Refused(Exception):
    """An answer that a retry would not change."""


def _question(name: str, sample: Sample) -> dict[str, Any]:
    return {"prompt": sample.prompt, "response": response_for(name, sample.response), "label": sample.label}


class RemoteJudge:
    """Client of one judge. Use it as `async with`. `timeout_s` limits one sample, with all its tries and pauses."""

    def __init__(self, url: str, timeout_s: float, *, tries: int = TRIES) -> None:
        self._url, self._timeout_s, self._tries = url, timeout_s, tries
        self._digest = hashlib.sha256(url.encode()).hexdigest()
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> RemoteJudge:
        # Each sample has its own limit, over all its requests.
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def grade(self, name: str, sample: Sample, reward_key: str | None) -> Outcome:
        """Return the reward or failure of one sample. With `boxed_` the judge gets only the last box."""
        async with self._room:
            begun = time.perf_counter()
            outcome = await self._answer(_question(name, sample), reward_key)
        return signed(outcome, name, self._digest, time.perf_counter() - begun)

    async def ask(self, name: str, sample: Sample) -> object:
        """Return the judge's answer unchanged, for `async_rm`, without a time limit. Raises RuntimeError."""
        return await self.post(_question(name, sample))

    async def post(self, question: dict[str, Any]) -> object:
        """Send a request body unchanged and return the answer, as `ask` does."""
        try:
            return await self._ask(question, [])
        except _Refused as error:
            raise RuntimeError(f"{self._url} {error}") from error

    async def _answer(self, question: dict[str, Any], reward_key: str | None) -> Outcome:
        endings: list[str] = []
        try:
            async with asyncio.timeout(self._timeout_s):
                outcome = value_of(await self._ask(question, endings), reward_key)
        except TimeoutError:
            tries = f"{len(endings)} {'try' if len(endings) == 1 else 'tries'}"
            message = f"no reward from {self._url} within {self._timeout_s:g} s ({tries}; the last: {endings[-1]})"
            return failure(RewardFailureKind.TIMEOUT, message)
        except _Refused as error:
            return failure(RewardFailureKind.RAISED, f"{self._url} {error}")
        if isinstance(outcome, RewardFailure):
            return failure(outcome.kind, f"{self._url}: {outcome.message}")
        return outcome

    async def _ask(self, question: dict[str, Any], endings: list[str]) -> object:
        """Try several times. Each request appends its result in words to `endings`."""
        for number in range(self._tries):
            endings.append("it has not answered")
            try:
                return await self._try(question)
            except _Retryable as ending:
                endings[-1] = str(ending)
            await asyncio.sleep(min(FIRST_PAUSE_S * 2**number, LONGEST_PAUSE_S) * (0.5 + random.random()))
        raise _Refused(f"gave no reward in {self._tries} tries; the last: {endings[-1]}")

    async def _try(self, question: dict[str, Any]) -> object:
        """Return the answer. Raises _Retryable, _Refused."""
        assert self._session is not None, "enter the judge before asking it"
        try:
            async with self._session.post(expand(self._url), json=question) as response:
                text = await response.text(errors="replace")
                if response.status in TRY_AGAIN:
                    raise _Retryable(f"{response.status} {response.reason}: {text[:SHOWN]}")
                if response.status != 200:
                    raise _Refused(f"answered {response.status} {response.reason}: {text[:SHOWN]}")
                return await response.json(content_type=None)
        except ValueError as error:
            raise _Refused(f"answered with invalid JSON: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Retryable(f"{type(error).__name__}: {error}") from error
