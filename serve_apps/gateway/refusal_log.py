"""`RefusalLog`: a line in the gateway's log for each request that was refused: what, of whom, from where, and why."""

import http
import logging
import time
from collections.abc import Callable, Iterator

from fastapi import Request

from schemas.redaction import cut, shown

WINDOW_S = 60.0
MOST = 100
"""Lines in so many seconds: whoever is refused all the time does not fill a disk. The others are counted."""
LONGEST = 300
"""Characters of a reason, which may have words of the client's."""
log = logging.getLogger(__name__)


class RefusalLog:
    """now: seconds of a clock that only goes forward."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since, self._lines, self._more = now(), 0, 0

    def write(self, request: Request, status: int) -> None:
        """Of a request whose answer has this status. The route is named by its pattern, since a path may have a key in
        it, and a reason never has what the client proved itself with."""
        if self._now() - self._since >= WINDOW_S:
            if self._more:
                log.warning("refused: %d requests more", self._more)
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
    """Cut first: a client's words may have the length of a whole head, and this is done for each refusal."""
    text = shown(cut(text, 2 * LONGEST, tuple(_given(request))), LONGEST)
    return text.encode("unicode_escape").decode("ascii")


def _given(request: Request) -> Iterator[str]:
    """What the request proves itself with."""
    _, _, token = request.headers.get("authorization", "").partition(" ")
    keys = token, request.headers.get("x-api-key", ""), request.path_params.get("key", "")
    yield from filter(None, keys)
