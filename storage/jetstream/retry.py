"""`Patience`: how long one waits for a NATS server that is `Away`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from schemas.errors import LogUnavailable, StorageError

SAID_AFTER_S = 0.5
"""Seconds without an answer that are nothing to speak of."""

OnWait = Callable[[str], None]
_log = logging.getLogger(__name__)


def log_wait(message: str) -> None:
    """The default for `on_wait`: a warning in the log of the process."""
    _log.warning(message)


class Away(StorageError):
    """No answer for now. Ask again within the caller's patience."""


class Patience:
    """A deadline with growing pauses. Says once that it waits, then raises LogUnavailable."""

    def __init__(self, url: str, seconds: float, on_wait: OnWait) -> None:
        self._url, self._seconds, self._on_wait = url, seconds, on_wait
        self._begin, self._pause, self._said = time.monotonic(), 0.01, False
        self._since = time.strftime("%H:%M:%S")

    @property
    def left(self) -> float:
        """Seconds, never below 0."""
        return max(0.0, self._begin + self._seconds - time.monotonic())

    async def pause(self, reason: object) -> None:
        """Sleep a little. `reason` is for the message when the deadline is over."""
        waited = time.monotonic() - self._begin
        if waited > self._seconds:
            raise LogUnavailable(f"NATS at {self._url} did not do it within {self._seconds:.0f} s: {reason}")
        if waited > SAID_AFTER_S and not self._said:
            self._said = True
            limit = f"{self._seconds:.0f} s at most"
            self._on_wait(f"waiting for NATS at {self._url} since {self._since}, {limit}: {reason}")
        await asyncio.sleep(min(self._pause, self._seconds))
        self._pause = min(self._pause * 2, 0.5)
