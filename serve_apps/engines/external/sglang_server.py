"""`SglangServer`: the HTTP interface of an SGLang server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import msgspec

from schemas.errors import DeadlineExceeded, EngineError
from serve_apps.engines.external.steps import messages_of, refusal, shown

CONNECT_S = 10.0
SILENT_S = 600.0
"""Seconds without a byte after which a response counts as lost; a queued request waits for its first token."""


class SglangServer:
    """One server, at a URL. Its methods raise EngineError with the URL if it does not answer, or not as SGLang does.

    Use it in one event loop.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, deadline_s: float) -> dict[str, Any]:
        """Return the JSON object at a path."""
        return await self._call("GET", path, None, deadline_s)

    async def post(self, path: str, body: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """Send a JSON object and return the answer; an empty answer is {}. Raises RequestRefused for status 400."""
        return await self._call("POST", path, body, deadline_s)

    async def stream(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """Send /generate and yield the messages of its stream. Close it early to end the request."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
        with self._named("/generate"):
            async with self._opened().post(f"{self.url}/generate", json=body, timeout=timeout) as answer:
                await self._check(answer)
                messages = messages_of(answer.content.iter_any())
                async with contextlib.aclosing(messages):  # type: ignore[type-var]
                    async for message in messages:
                        yield message

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _call(self, method: str, path: str, body: dict[str, Any] | None, deadline_s: float) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=deadline_s, sock_connect=min(CONNECT_S, deadline_s))
        with self._named(path, deadline_s):
            async with self._opened().request(method, self.url + path, json=body, timeout=timeout) as answer:
                await self._check(answer)
                data = await answer.read()
            try:
                value = msgspec.json.decode(data) if data else {}
            except (msgspec.DecodeError, ValueError) as error:
                raise EngineError(f"the answer is not JSON: {shown(data)}") from error
            if not isinstance(value, dict):
                raise EngineError(f"the answer is not a JSON object: {shown(data)}")
            return value

    async def _check(self, answer: aiohttp.ClientResponse) -> None:
        """Raise the error of an answer without success."""
        if answer.status < 300:
            return
        data = await answer.read()
        if answer.status in (401, 403):
            raise EngineError("the server wants an API key, which a run does not send: start it without --api-key")
        text: object = f"HTTP status {answer.status}: {shown(data)}"
        with contextlib.suppress(msgspec.DecodeError, ValueError):
            value = msgspec.json.decode(data)
            error = value.get("error", value) if isinstance(value, dict) else None
            text = error if isinstance(error, str) else error.get("message", text) if isinstance(error, dict) else text
        raise refusal({"code": answer.status, "message": text})

    @contextlib.contextmanager
    def _named(self, path: str, deadline_s: float = SILENT_S) -> Iterator[None]:
        """Name the server and the path in errors."""
        try:
            yield
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self.url}{path} did not answer within {deadline_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EngineError(f"{self.url}{path} did not answer: {str(error) or type(error).__name__}") from error
        except EngineError as error:
            raise type(error)(f"{self.url}{path}: {error}") from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=True)
        return self._session
