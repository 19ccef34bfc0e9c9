"""`Streams`: sends the states of groups as server-sent events."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from schemas.inbox import Fate, InboxFate
from serve_apps.http.gateway.refusals import AGAIN_S, Refused

KEEP_ALIVE_S = 15.0
SHARE = 0.2
"""Largest share of a stream's time for reads of the log: after a slow read, the next read is delayed."""
SEEN_S = 1.0
"""Seconds within which a revoked token ends its streams."""
FINAL = (Fate.REJECTED, Fate.TRAINED)
Look = Callable[[], Awaitable[InboxFate | None]]
Holds = Callable[[], bool]


class Streams:
    """Streams of all sources. most: streams of one source at once. poll_s: seconds between two reads of the log."""

    def __init__(self, most: int, poll_s: float, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._most, self._poll_s, self._keep_alive_s = most, poll_s, keep_alive_s
        self._open = Counter[str]()

    def check(self, source: str) -> None:
        """Raise Refused if a source has as many streams as it may."""
        if self._open[source] >= self._most:
            message = f"{source} already follows {self._most:,} groups, the most at once: retry when a stream has ended"
            raise Refused(429, message, {"Retry-After": str(AGAIN_S)})

    async def follow(self, source: str, first: InboxFate, look: Look, holds: Holds) -> AsyncIterator[bytes]:
        """Yield an event for each change of a group, and a comment after a long time without one.

        The stream ends once the group is final or the token is revoked. look: returns the current state, None if the
        log cannot be read now. holds: returns whether the token is valid.
        """
        self._open[source] += 1
        try:
            async for piece in self._changes(first, look, holds):
                yield piece
        finally:
            self._open[source] -= 1

    async def _changes(self, last: InboxFate, look: Look, holds: Holds) -> AsyncIterator[bytes]:
        yield _event(last.fate.value, last)
        pause, sent_at = self._poll_s, time.monotonic()
        while last.fate not in FINAL:
            if not await _waited(pause, holds):
                yield _event("error", {"error": "the token of this source was revoked"})
                return
            begin = time.monotonic()
            now = await look()
            end = time.monotonic()
            pause = max(self._poll_s, (end - begin) / SHARE)
            if now is not None and now != last:
                last, sent_at = now, end
                yield _event(now.fate.value, now)
            elif end - sent_at >= self._keep_alive_s:
                sent_at = end
                yield b": still there\n\n"


async def _waited(seconds: float, holds: Holds) -> bool:
    """Wait, and return whether the token stayed valid."""
    while seconds > 0 and holds():
        await asyncio.sleep(min(seconds, SEEN_S))
        seconds -= SEEN_S
    return holds()


def _event(name: str, value: InboxFate | dict[str, str]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))
