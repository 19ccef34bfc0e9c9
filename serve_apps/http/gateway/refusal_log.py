"""`RefusalLog`: logs refused requests with their route, source, address and reason."""

import http
import logging
import time
from collections.abc import Callable, Iterator

from fastapi import Request

from schemas.redaction import cut, shown

WINDOW_S = 60.0
MOST = 100
"""Most lines in `WINDOW_S` seconds, so that repeated refusals do not fill the disk. More refusals are counted."""
LONGEST = 300
"""Most characters of a reason, which may contain text from the client."""
log = logging.getLogger(__name__)


class RefusalLog:
    """Writes the log. now: returns seconds of a monotonic clock."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since, self._lines, self._more = now(), 0, 0

    def write(self, request: Request, status: int) -> None:
        """Log a request that is refused with this status. The line has no secrets: it names the route by its pattern,
        because a path may contain a key, and the reason is redacted."""
        if self._now() - self._since >= WINDOW_S:
            if self._more:
                log.warning("refused: %d more requests", self._more)
            self._since, self._lines, self._more = self._now(), 0, 0
        if self._lines == MOST:
            self._more += 1
            return
        self._lines += 1
        route = getattr(request.scope.get("route"), "path", "-")
        who = getattr(request.state, "who", "nobody")
        where = request.client.host if request.client else "?"
        why = _plain(getattr(request.state, "why", http.HTTPStatus(status).phrase), request)
        log.warning("refused: %d %s %s of %s at %s: %s", status, request.method, route, who, where, why)


def _plain(text: str, request: Request) -> str:
    """Return the text in ASCII without the request's secrets. It is cut first, because it may be as long as a head."""
    text = shown(cut(text, 2 * LONGEST, tuple(_secrets(request))), LONGEST)
    return text.encode("unicode_escape").decode("ascii")


def _secrets(request: Request) -> Iterator[str]:
    """Yield the tokens and keys of a request."""
    _, _, token = request.headers.get("authorization", "").partition(" ")
    keys = token, request.headers.get("x-api-key", ""), request.path_params.get("key", "")
    yield from filter(None, keys)
