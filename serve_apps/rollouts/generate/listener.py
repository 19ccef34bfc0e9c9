"""`Listener`: SGLang's HTTP interface to one rollout's engine, for generate functions with their own HTTP client.

Each call of a function has its own port on loopback, so that a request belongs to its sample without a header. It is
answered as `slime/requests.py: post` answers it: by the same turns.
"""

import asyncio
import socket
import threading
from collections import defaultdict
from collections.abc import Callable

import msgspec
from aiohttp import web

from schemas.errors import PlugPointError, reason_of
from schemas.text import raised_text
from serve_apps.rollouts.generate.function import UserLoop
from serve_apps.rollouts.generate.session import Session
from serve_apps.rollouts.generate.slime.requests import UnknownPath, answer
from serve_apps.rollouts.rollout import Suspended
from slime_events.plugins.args_view import ROUTER
from storage.cancellation import end_all

CLOSE_S = 1.0  # seconds for an answer that is being written when the call ends
_JSON = "application/json"


class Listener:
    """HTTP server of one call, open from the first request for its port until `close`.

    Its loop is not the function's, which a synchronous client blocks. `refused` is the reason for the first request
    that it could not answer. `failed` is called, in another thread, once the rollout makes no more turns.
    """

    def __init__(self, session: Session, loop: UserLoop, failed: Callable[[], object]) -> None:
        self._session, self._loop, self._failed = session, loop, failed
        self._opening, self._closed = threading.Lock(), False
        self._socket: socket.socket | None = None
        self._left: defaultdict[tuple[str, str, bytes], list[asyncio.Task[tuple[str, bytes]]]] = defaultdict(list)
        self._tasks: set[asyncio.Task[tuple[str, bytes]]] = set()
        self.refused: PlugPointError | None = None

    def open(self) -> int:
        """Return the port. The first call binds it. Raises PlugPointError after `close`."""
        with self._opening:
            if self._closed:
                raise PlugPointError("the generate call has ended: its engine no longer answers")
            if self._socket is None:
                self._socket = socket.create_server((str(ROUTER["sglang_router_ip"]), 0))
                self._session.router_port = int(self._socket.getsockname()[1])
                self._serving = self._loop.begin(self._serve(self._socket))
        return self._session.router_port

    async def close(self) -> None:
        """Close the port and its connections, and cancel the turns that no client waits for."""
        with self._opening:
            self._closed = True
        if self._socket is not None:
            await self._loop.run(self._stop())

    async def _serve(self, bound: socket.socket) -> tuple[web.Server, asyncio.Server]:
        handler = web.Server(self._handle, handler_cancellation=True, access_log=None)
        return handler, await asyncio.get_running_loop().create_server(handler, sock=bound)

    async def _stop(self) -> None:
        handler, server = await asyncio.wrap_future(self._serving)
        server.close()
        await end_all(*self._tasks)
        await handler.shutdown(CLOSE_S)

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        try:
            kind, body = await self._answer(request.method, request.path, await request.content.read())
            return web.Response(body=body, content_type=kind)
        except UnknownPath as error:
            return self._refuse(404, error)
        except (Exception, Suspended) as error:  # every error becomes an HTTP answer
            if self._session.failure is None:
                raised = raised_text(error)
                return self._refuse(400, error if isinstance(error, PlugPointError) else PlugPointError(raised))
            self._failed()
            return _refusal(503, error)

    async def _answer(self, method: str, path: str, body: bytes) -> tuple[str, bytes]:
        """Answer a request. If its client disconnects, the answer goes to the next equal request, the retry."""
        key = (method, path, body)
        task = self._left[key].pop(0) if self._left[key] else asyncio.create_task(self._ask(*key))
        self._tasks.add(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._left[key].append(task)
            raise

    async def _ask(self, method: str, path: str, body: bytes) -> tuple[str, bytes]:
        """Return content type and body. A stream is one event with the whole answer, as SGLang's last event."""
        payload = msgspec.json.decode(body) if body else {}
        streams = isinstance(payload, dict) and payload.pop("stream", False)
        encoded = msgspec.json.encode(await answer(self._session, method, path, payload))
        return ("text/event-stream", b"data: %b\n\ndata: [DONE]\n\n" % encoded) if streams else (_JSON, encoded)

    def _refuse(self, status: int, error: PlugPointError) -> web.Response:
        self.refused = self.refused or error
        return _refusal(status, error)


def _refusal(status: int, error: BaseException) -> web.Response:
    body = msgspec.json.encode({"error": {"message": reason_of(error)}})
    return web.Response(status=status, body=body, content_type=_JSON)
