"""`Streams`: what becomes of groups, as server-sent events for whoever follows them."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from schemas.inbox import Fate, InboxFate
from serve_apps.gateway.refusals import AGAIN_S, Refused

KEEP_ALIVE_S = 15.0
SHARE = 0.2
"""Of a stream's time, that looks at the log may take: where one takes long, the next comes later."""
SEEN_S = 1.0
"""Within which the end of a token ends its streams."""
FINAL = (Fate.REJECTED, Fate.TRAINED)
Look = Callable[[], Awaitable[InboxFate | None]]
Holds = Callable[[], bool]


class Streams:
    """most: of one source at once. poll_s: between two looks at the log."""

    def __init__(self, most: int, poll_s: float, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._most, self._poll_s, self._keep_alive_s = most, poll_s, keep_alive_s
        self._open = Counter[str]()

    def check(self, source: str) -> None:
        """Raises Refused where it follows as many groups as it may."""
        if self._open[source] >= self._most:
            message = f"{source} follows {self._most:,} groups already: come again when one of them has ended"
            raise Refused(429, message, {"Retry-After": str(AGAIN_S)})

    async def follow(self, source: str, first: InboxFate, look: Look, holds: Holds) -> AsyncIterator[bytes]:
        """One event for each change, and a comment where there was none for long. It ends with the group's end, and
        with the source's token. look: None where the log does not answer now. holds: whether the token is admitted.
        """
        self._open[source] += 1
        try:
            async for piece in self._changes(first, look, holds):
                yield piece
        finally:
            self._open[source] -= 1

    async def _changes(self, last: InboxFate, look: Look, holds: Holds) -> AsyncIterator[bytes]:
        yield _event(last.fate.value, last)
        pause, said = self._poll_s, time.monotonic()
        while last.fate not in FINAL:
            if not await _waited(pause, holds):
                yield _event("error", {"error": "the token of this source has ended"})
                return
            begin = time.monotonic()
            now = await look()
            end = time.monotonic()
            pause = max(self._poll_s, (end - begin) / SHARE)
            if now is not None and now != last:
                last, said = now, end
                yield _event(now.fate.value, now)
            elif end - said >= self._keep_alive_s:
                said = end
                yield b": still there\n\n"


async def _waited(seconds: float, holds: Holds) -> bool:
    """Whether the token holds all the time."""
    while seconds > 0 and holds():
        await asyncio.sleep(min(seconds, SEEN_S))
        seconds -= SEEN_S
    return holds()


def _event(name: str, value: InboxFate | dict[str, str]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))
