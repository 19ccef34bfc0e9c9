"""`Retry`: wait for a NATS server that is `Away`, up to a deadline. `json_answer`: map JetStream's errors to ours."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

from schemas.errors import LogUnavailable, NoSpace, StorageError
from storage.jetstream.error_codes import NO_ROOM, TEMPORARY, TOO_MANY_BATCHES

REPORT_AFTER_S = 0.5
"""Seconds without an answer after which the wait is reported."""

OnWait = Callable[[str], None]
log_wait: OnWait = logging.getLogger(__name__).warning
"""Writes to the process log."""


class Away(StorageError):
    """The server does not answer now. The request may be repeated until the caller's deadline."""


class TooManyBatches(Away):
    """The server lacks the first part of a batch: too many batches were open, or the server was away."""


class Retry:
    """A deadline with growing pauses. It reports the wait once, then raises LogUnavailable.

    It raises NoSpace if the server was full at any attempt: a full server may not answer later requests.
    """

    def __init__(self, url: str, seconds: float, on_wait: OnWait) -> None:
        self._url, self._seconds, self._on_wait = url, seconds, on_wait
        self._begin, self._pause, self._reported = time.monotonic(), 0.01, False
        self._since = time.strftime("%H:%M:%S")
        self._full: NoSpace | None = None

    @property
    def left(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self._begin + self._seconds - time.monotonic())

    async def pause(self, reason: object) -> None:
        """Sleep before the next attempt. After the deadline, raise an error with `reason`."""
        waited = time.monotonic() - self._begin
        self._full = reason if isinstance(reason, NoSpace) else self._full
        if waited > self._seconds and self._full is not None:
            raise self._full
        if waited > self._seconds:
            raise LogUnavailable(
                f"NATS at {self._url} did not complete the request within {self._seconds:.0f} s: {reason}"
            )
        if waited > REPORT_AFTER_S and not self._reported:
            self._reported = True
            limit = f"{self._seconds:.0f} s at most"
            self._on_wait(f"waiting for NATS at {self._url} since {self._since}, {limit}: {reason}")
        await asyncio.sleep(min(self._pause, self._seconds))
        self._pause = min(self._pause * 2, 0.5)


class ApiError(StorageError):
    """JetStream refused a request. `code`: an `ErrorCode`, or a code that this package does not handle."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"JetStream error {code}: {description}")
        self.code = code


def json_answer(data: bytes) -> Any:
    """Return the JSON of an answer. Raises ApiError, NoSpace, TooManyBatches or Away for an error, Away if not JSON."""
    try:
        answer = json.loads(data)
    except ValueError as error:
        raise Away(f"an answer that is not JSON: {data[:80]!r}") from error
    refusal = answer.get("error")
    if not refusal:
        return answer
    code, description = int(refusal.get("err_code", 0)), str(refusal.get("description", ""))
    if code in NO_ROOM:
        raise NoSpace(f"NATS has no room to store more ({description}): free disk space in its folder")
    if code in TOO_MANY_BATCHES:
        raise TooManyBatches(
            f"JetStream error {code} ({description}): the server was away, or more appends are in flight than it "
            "accepts. If this happens often, raise max_inflight_per_stream in its configuration (jetstream, limits, "
            "batch)"
        )
    if code in TEMPORARY or refusal.get("code") in (429, 503):
        raise Away(f"JetStream error {code}: {description}")
    raise ApiError(code, description)
