"""`Scene`: the live run as an attacker finds it: a token of a source, keys of sessions, a producer's credentials."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import nats

from schemas.subjects import inbox
from serve_apps.http.gateway.sources import Sources
from storage.nats.accounts import Access
from storage.open_log import live_address
from tests.harness.attacks.attack import REFUSED, Answer, answer_of

ATTACKER = "127.0.0.9"
"""An address of loopback that nobody else uses, so that limits for an address meet the attacker alone."""
WAIT_S = 60.0


@dataclass(slots=True)
class Session:
    """A session, as its harness and its agent know it."""

    name: str
    group: str
    base_url: str
    control_key: str


@dataclass(slots=True)
class Scene:
    """run, folder: of the run. port: of its gateway. token: of a source that may do everything."""

    run: str
    folder: Path
    port: int
    token: str
    work: Path
    http: httpx.AsyncClient = field(init=False)
    sessions: list[Session] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.http = httpx.AsyncClient(base_url=self.url, timeout=WAIT_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    @property
    def sources(self) -> Sources:
        return Sources(self.folder)

    async def post(
        self, path: str, body: Any = None, *, raw: bytes | None = None, kind: str = "json"
    ) -> httpx.Response:
        """Post to a route of sources. kind: json or x-ndjson."""
        data = json.dumps(body).encode() if raw is None else raw
        headers = self.bearer | {"content-type": f"application/{kind}"}
        return await self.http.post(f"/v1/runs/{self.run}/{path}", content=data, headers=headers)

    async def session(self) -> Session:
        """Return an open session: the last one again, while it is open."""
        if self.sessions and await self.is_open(self.sessions[-1]):
            return self.sessions[-1]
        async with asyncio.timeout(WAIT_S):
            while (answer := await self.post("sessions", {"wait_s": 10})).status_code != 201:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        self.sessions.append(_session(answer.json()))
        return self.sessions[-1]

    async def is_open(self, session: Session) -> bool:
        control = {"authorization": f"Bearer {session.control_key}"}
        answer = await self.http.get(f"/v1/sessions/{session.name}", headers=control)
        return answer.status_code == 200 and not answer.json().get("sealed")

    async def seal(self) -> None:
        """The sessions of attackers fail, and are asked for again."""
        for session in self.sessions:
            control = {"authorization": f"Bearer {session.control_key}"}
            with contextlib.suppress(httpx.HTTPError):
                await self.http.post(f"/v1/sessions/{session.name}/seal", headers=control, json={"exit_code": 1})
        self.sessions.clear()

    async def turn(self, path: str, body: Any, *, raw: bytes | None = None, **headers: str) -> httpx.Response:
        """Make a turn of a session, in the dialect that the path names."""
        session = await self.session()
        root = session.base_url.removesuffix("/v1")
        data = json.dumps(body).encode() if raw is None else raw
        return await self.http.post(root + path, content=data, headers={"content-type": "application/json", **headers})

    async def plain(self) -> str:
        """Ask a plain question; return what is wrong with the answer, empty if nothing is."""
        body = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "1+1"}]}
        try:
            answer = await self.turn("/v1/chat/completions", body)
        except (httpx.HTTPError, TimeoutError) as error:
            return f"a plain question afterwards: {type(error).__name__}"
        return "" if answer.status_code == 200 else f"a plain question afterwards: {answer.status_code}"

    async def nats(self, data: bytes, what: str = "prompts", seconds: float = 20.0) -> str:
        """Return the reply to a message of a producer; an object without a key gets one."""
        if data.startswith(b"{") and b'"key"' not in data:
            key = b'{"key": "%s"' % hashlib.sha256(data).hexdigest().encode()
            data = key + (b"" if data[1:].strip() == b"}" else b", ") + data[1:]
        address = live_address(self.folder, Access.PRODUCER)
        assert address is not None, "the run has no server"
        client = await nats.connect(**address.options(), allow_reconnect=False)
        try:
            reply = await client.request(inbox(self.run, what), data, timeout=seconds)
            return reply.data.decode("utf-8", "replace")
        finally:
            await client.close()

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect from the attacker's own address."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(ATTACKER, 0))

    async def raw(self, *parts: bytes, expected: Collection[int] = REFUSED, seconds: float = 20.0) -> Answer:
        """Send bytes over a new connection; return the status that comes. Closed without a status is refused, too."""
        reader, writer = await self.connection()
        answering = asyncio.ensure_future(reader.readline())
        try:
            async with asyncio.timeout(seconds):
                await _sent(writer, parts, answering)
                line = await answering
        except ConnectionError:
            line = b""
        finally:
            answering.cancel()
            writer.transport.abort()
        if not line:
            return Answer("closed", True)
        status = int(line.split()[1])
        return Answer(line.decode("latin-1").strip(), status in expected)


async def _sent(writer: asyncio.StreamWriter, parts: Iterable[bytes], answering: asyncio.Future[bytes]) -> None:
    """Send the parts until an answer comes: a gateway that has refused reads no more."""
    for part in parts:
        writer.write(part)
        draining = asyncio.ensure_future(writer.drain())
        await asyncio.wait([draining, answering], return_when=asyncio.FIRST_COMPLETED)
        if not draining.done() or draining.exception() is not None:
            draining.cancel()
            return


def _session(answer: dict[str, Any]) -> Session:
    group = str(answer.get("group") or answer["session"].rpartition("-s")[0])
    return Session(answer["session"], group, answer["base_url"], answer["control_key"])


async def turned(scene: Scene, path: str, body: Any, expected: Collection[int], *, raw: bytes | None = None) -> Answer:
    """Make a turn, then ask a plain question of the same session."""
    answer = answer_of(await scene.turn(path, body, raw=raw), expected)
    broken = await scene.plain()
    return Answer(f"{answer.text}; {broken}", False) if broken else answer
