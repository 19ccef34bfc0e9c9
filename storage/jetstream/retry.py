"""`Retry`: how long a call waits for a NATS server that is `Away`; and what JetStream's refusals mean."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

from schemas.errors import LogUnavailable, NoSpace, StorageError

REPORT_AFTER_S = 0.5
"""Seconds without an answer after which the wait is reported."""

OnWait = Callable[[str], None]
log_wait: OnWait = logging.getLogger(__name__).warning
"""Into the log of the process."""


class Away(StorageError):
    """No answer for now. Ask again until the caller's deadline."""


class TooManyBatches(Away):
    """A batch without its first part: the server had refused it, as too many were open, or was away then."""


class Retry:
    """A deadline with growing pauses. Reports once that it waits, then raises LogUnavailable, or NoSpace for a server
    that is full: one that has said so may be silent afterwards.
    """

    def __init__(self, url: str, seconds: float, on_wait: OnWait) -> None:
        self._url, self._seconds, self._on_wait = url, seconds, on_wait
        self._begin, self._pause, self._reported = time.monotonic(), 0.01, False
        self._since = time.strftime("%H:%M:%S")
        self._full: NoSpace | None = None

    @property
    def left(self) -> float:
        """Seconds, never below 0."""
        return max(0.0, self._begin + self._seconds - time.monotonic())

    async def pause(self, reason: object) -> None:
        """Sleep a little. `reason` is for the message when the deadline is over."""
        waited = time.monotonic() - self._begin
        self._full = reason if isinstance(reason, NoSpace) else self._full
        if waited > self._seconds and self._full is not None:
            raise self._full
        if waited > self._seconds:
            raise LogUnavailable(f"NATS at {self._url} did not do it within {self._seconds:.0f} s: {reason}")
        if waited > REPORT_AFTER_S and not self._reported:
            self._reported = True
            limit = f"{self._seconds:.0f} s at most"
            self._on_wait(f"waiting for NATS at {self._url} since {self._since}, {limit}: {reason}")
        await asyncio.sleep(min(self._pause, self._seconds))
        self._pause = min(self._pause * 2, 0.5)


class ApiError(StorageError):
    """JetStream refused. `code` is its own error code, e.g. 10071."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"JetStream error {code}: {description}")
        self.code = code


_FULL = {10023, 10047, 10077}
"""JetStream's codes for no room: insufficient resources, insufficient storage, maximum bytes exceeded."""

_BUSY = {10005, 10008, 10009, 10158, 10167}
"""JetStream's codes for a refusal that passes: too few nodes known yet for the replicas, no leader yet, a cluster that
is not ready, the same event on its way from another writer, too much in flight."""

_TOO_MANY_BATCHES = 10176
"""JetStream's code for a batch whose first part is missing."""


def json_answer(data: bytes) -> Any:
    """The JSON of an answer. Raises Away (TooManyBatches), NoSpace or ApiError for a refusal, Away for other bytes."""
    try:
        answer = json.loads(data)
    except ValueError as error:
        raise Away(f"an answer that is not JSON: {data[:80]!r}") from error
    refusal = answer.get("error")
    if not refusal:
        return answer
    code, description = int(refusal.get("err_code", 0)), str(refusal.get("description", ""))
    if code in _FULL:
        raise NoSpace(f"NATS has no room to store more ({description}): free disk space in its folder")
    if code == _TOO_MANY_BATCHES:
        raise TooManyBatches(
            f"JetStream error {code} ({description}): it was away, or more appends are under way than it takes; "
            "if this is said often, raise max_inflight_per_stream in its configuration (jetstream, limits, batch)"
        )
    if code in _BUSY or refusal.get("code") in (429, 503):
        raise Away(f"JetStream error {code}: {description}")
    raise ApiError(code, description)
