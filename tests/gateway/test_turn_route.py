"""The route of agents' turns over sessions that keep what they are asked: keys, retries, bounds, streams, refusals."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from schemas.errors import EngineError, EventTooLarge, LogUnavailable, SlimeEventsError, UnwritableEvent
from serve_apps.http.gateway.agent_routes import TurnRoute
from serve_apps.http.gateway.agents import AgentAccess, Capability, SessionKeys
from serve_apps.http.gateway.refusals import Refused
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.rollouts.agents.agent_request import BadField
from serve_apps.rollouts.agents.live_session import TurnKey, TurnRefused
from serve_apps.rollouts.agents.sessions import _client
from tests.agents.stage import RULES

SESSION, KEYS = "s0.0", SessionKeys(b"secret")
KEY = f"{SESSION}.{KEYS.of(SESSION, Capability.AGENT)}"


@dataclass(frozen=True)
class Asked:
    stream: bool = False


class Dialect:
    """It says in bytes what is asked of it."""

    def refusal(self, status: int, message: str, field_: str | None = None) -> Any:
        return {"status": status, "field": field_}

    def whole(self, request: Asked, answer: Any) -> Any:
        return {"said": answer}

    def stream(self, request: Asked, id_: str, created: int, prompt: int) -> Any:
        return SimpleNamespace(
            begin=lambda: f"begin {id_} {created} {prompt}\n".encode(),
            part=lambda part: f"part {part}\n".encode(),
            fail=lambda status, message: f"fail {status} {message}\n".encode(),
            end=lambda answer: f"end {answer}\n".encode(),
        )


@dataclass
class Turn:
    """pieces: of its tokens, as they come. error: how it ends."""

    pieces: tuple[tuple[int, ...], ...] = ()
    error: Exception | None = None
    request: Asked = Asked()
    id: str = "id"
    created: int = 7
    prompt: tuple[int, ...] = (1, 2, 3)

    async def parts(self, quiet_s: float) -> AsyncIterator[list[Any]]:
        assert quiet_s > 0
        for piece in self.pieces:
            yield list(piece)
        await self.answer()
        yield ["last"]

    async def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return "stop"


@dataclass
class Sessions:
    """error: of the next turn."""

    turn: Turn = field(default_factory=Turn)
    error: Exception | None = None
    stream: bool = False
    calls: list[tuple[str, str, bytes, TurnKey]] = field(default_factory=list)
    setup: Any = field(default_factory=lambda: SimpleNamespace(rules=replace(RULES, room=1)))

    async def open_turn(self, session: str, dialect: Any, path: str, body: bytes, headers: Any) -> Turn:
        self.calls.append((session, _client(headers), body, TurnKey.of(headers, "digest")))
        if self.error is not None:
            raise self.error
        return replace(self.turn, request=Asked(self.stream))


class Scene:
    def __init__(self, **settings: Any) -> None:
        self.sessions = Sessions()

        async def sessions() -> Sessions:
            return self.sessions

        desk: Any = SimpleNamespace(sessions=sessions)
        turn = TurnRoute(AgentAccess(desk, KEYS), Dialect(), GatewaySettings(**settings))
        routes = [Route(path, turn, methods=["POST"]) for path in ("/turn", "/{key}/turn")]
        self._app, self.states = Starlette(routes=routes), list[Any]()

    async def _asgi(self, scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {}
        self.states.append(scope["state"])
        await self._app(scope, receive, send)

    async def post(self, path: str = "/turn", content: bytes = b"{}", **headers: str) -> httpx.Response:
        all_headers = {"authorization": f"Bearer {KEY}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        transport = httpx.ASGITransport(self._asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://a", headers=all_headers) as client:
            return await client.post(path, content=content)

    async def key(self, **headers: str) -> TurnKey:
        assert (await self.post(**headers)).status_code == 200
        return self.sessions.calls[-1][3]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/turn", {}, 200),
        ("/turn", {"authorization": f"bearer {KEY}"}, 200),
        ("/turn", {"authorization": "", "x_api_key": KEY}, 200),
        ("/turn", {"authorization": f"Basic {KEY}", "x_api_key": KEY}, 200),
        (f"/{KEY}/turn", {"authorization": ""}, 200),
        (f"/{KEY}/turn", {"authorization": "Bearer other"}, 200),
        ("/other/turn", {}, 401),
        ("/turn", {"authorization": ""}, 401),
        ("/turn", {"authorization": "Bearer other", "x_api_key": KEY}, 401),
        ("/turn", {"authorization": f"Basic {KEY}"}, 401),
        ("/turn", {"authorization": f"Bearer {SESSION}.{KEYS.of(SESSION, Capability.CONTROL)}"}, 401),
    ],
)
async def test_a_turn_is_of_the_session_whose_key_it_has(path: str, headers: dict[str, str], status: int) -> None:
    scene = Scene()
    answer = await scene.post(path, **headers)
    assert answer.status_code == status
    assert [call[0] for call in scene.sessions.calls] == ([SESSION] if status == 200 else [])
    assert scene.states[-1].get("who") == (f"the agent of {SESSION}" if status == 200 else None)
    if status == 401:
        assert answer.json() == {"status": 401, "field": None}


async def test_a_turn_is_known_again_by_its_key_or_its_body() -> None:
    scene = Scene()
    assert await scene.key() == TurnKey("digest", False)
    named = hashlib.sha256(b"key:mine").hexdigest()
    assert await scene.key(idempotency_key="mine") == TurnKey(named, True)
    assert await scene.key(idempotency_key="") == TurnKey("digest", True)
    for count, is_retry in (("0", False), ("1", True), ("2", True), ("x", False), ("-1", False), ("", False)):
        assert await scene.key(x_stainless_retry_count=count) == TurnKey("digest", is_retry)


async def test_what_a_client_calls_itself_is_kept_as_people_can_read_it() -> None:
    scene = Scene()
    for named, kept in (("ab\tc", "abc"), ("x" * 121, "x" * 120), ("", "")):
        await scene.post(user_agent=named)
        assert scene.sessions.calls[-1][1] == kept


async def test_a_turn_has_as_many_bytes_as_the_context_and_the_gateway_have_room_for() -> None:
    most = Sessions().setup.rules.most_bytes
    for scene, bound in ((Scene(), most), (Scene(max_body=100), 100)):
        assert (await scene.post(content=b"x" * bound)).status_code == 200
        assert scene.sessions.calls[-1][2] == b"x" * bound
        assert (await scene.post(content=b"x" * (bound + 1))).status_code == 413
        assert len(scene.sessions.calls) == 1


async def test_a_turn_is_answered_whole_or_as_it_comes() -> None:
    scene = Scene()
    assert (await scene.post()).json() == {"said": "stop"}
    scene.sessions.stream, scene.sessions.turn = True, Turn(((5, 6), (), (7,)))
    answer = await scene.post()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.splitlines() == [
        *("begin id 7 3", "part 5", "part 6", ": still there", "", "part 7", "part last", "end stop"),
    ]


ERRORS: list[tuple[Exception, int, str | None]] = [
    (TurnRefused(429, "no", again_s=3.0), 429, "3"),
    (TurnRefused(409, "no"), 409, None),
    (Refused(404, "no"), 404, None),
    (EventTooLarge("no"), 413, None),
    (UnwritableEvent("no"), 400, None),
    (LogUnavailable("no"), 503, "2"),
    (EngineError("no"), 502, None),
    (SlimeEventsError("no"), 500, None),
]


@pytest.mark.parametrize(("error", "status", "again"), ERRORS, ids=lambda error: type(error).__name__)
async def test_each_refusal_has_its_status_and_when_to_come_again(
    error: Exception, status: int, again: str | None
) -> None:
    scene = Scene()
    scene.sessions.error = error
    answer = await scene.post()
    assert (answer.status_code, answer.headers.get("retry-after")) == (status, again)
    assert answer.json() == {"status": status, "field": None}
    assert scene.states[-1]["why"] == "no"


@pytest.mark.parametrize(("error", "status", "again"), ERRORS, ids=lambda error: type(error).__name__)
async def test_a_stream_that_fails_says_so_in_its_way(error: Exception, status: int, again: str | None) -> None:
    scene = Scene()
    scene.sessions.stream, scene.sessions.turn = True, Turn(((5,),), error)
    answer = await scene.post()
    assert answer.text.splitlines() == ["begin id 7 3", "part 5", f"fail {status} no"]


async def test_a_field_that_cannot_be_is_named() -> None:
    scene = Scene()
    scene.sessions.error = BadField("messages.0", "no")
    answer = await scene.post()
    assert (answer.status_code, answer.json()) == (400, {"status": 400, "field": "messages.0"})
    assert scene.states[-1]["why"] == "messages.0: no"


async def test_what_nobody_foresaw_is_no_refusal() -> None:
    scene = Scene()
    scene.sessions.error = KeyError("bug")
    with pytest.raises(KeyError):
        await scene.post()
