"""`SessionClient`: opens and seals sessions at a run's gateway, like any harness."""

import asyncio
import ssl
from typing import Any, Self

import aiohttp

from schemas.errors import ConfigError
from schemas.text import raised_text

WAIT_S = 30
"""Seconds that a request waits for a rollout."""
AGAIN_S = 1.0
ANSWER_S = 120.0
GONE = (404, 409, 410)
"""HTTP statuses for a session that does not exist or has ended."""


class SessionClient:
    """A client of a gateway. token: of a source. tls_ca: PEM file of the gateway's certificate, for HTTPS."""

    def __init__(self, url: str, run: str, token: str, tls_ca: str = "") -> None:
        self._url, self._run, self._token = url, run, token
        self._tls = ssl.create_default_context(cafile=tls_ca) if tls_ca else None
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._tls or True, limit=0)
        self._http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=ANSWER_S))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            await self._http.close()

    async def open(self, key: str) -> dict[str, Any]:
        """Wait for the next rollout that waits for an agent, and return its session as JSON.

        The same key opens the same session again. Raises ConfigError if the gateway refuses for good.
        """
        where, headers = f"/v1/runs/{self._run}/sessions", self._bearer(self._token) | {"Idempotency-Key": key}
        while True:
            status, answer, again_s = await self._send("POST", where, headers, {"wait_s": WAIT_S})
            if status in (200, 201):
                return dict(answer)
            if status not in (409, 429) and status < 500:
                raise ConfigError(f"the gateway at {self._url} refuses to open a session: {status} {answer}")
            await asyncio.sleep(again_s)

    async def takes_turns(self, session: str, control_key: str) -> bool:
        """Return whether the session is open."""
        status, answer, _ = await self._send("GET", f"/v1/sessions/{session}", self._bearer(control_key))
        return status == 200 and not (answer.get("sealed") or answer.get("result"))

    async def seal(self, session: str, control_key: str, body: dict[str, Any]) -> str:
        """Seal a session, with retries until the gateway answers. A session that has already ended is no error.

        Returns the reason if the gateway refuses the body, such as a reward for a turn that does not exist; else empty.
        """
        headers = self._bearer(control_key)
        while True:
            status, answer, again_s = await self._send("POST", f"/v1/sessions/{session}/seal", headers, body)
            if status < 300 or status in GONE:
                return ""
            if status < 500 and status != 429:
                return f"{status} {answer}"
            await asyncio.sleep(again_s)

    async def _send(
        self, method: str, where: str, headers: dict[str, str], body: dict[str, Any] | None = None
    ) -> tuple[int, Any, float]:
        """Return status, decoded body and seconds until a retry; status 503 if the gateway cannot be reached."""
        assert self._http is not None
        try:
            async with self._http.request(method, self._url + where, headers=headers, json=body) as response:
                again = response.headers.get("Retry-After", "")
                is_json = response.content_type == "application/json"
                answer = await (response.json() if is_json else response.text())
                return response.status, answer, float(again) if again.isdecimal() else AGAIN_S
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return 503, raised_text(error), AGAIN_S

    @staticmethod
    def _bearer(key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}
