"""The routes of harnesses: what a session is opened with and shown as, who may, and what it may end with."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from schemas.errors import LogUnavailable, PlugPointError
from schemas.ids import session_name
from schemas.prompts import PromptSubmitted, Source
from schemas.rollouts import FailureKind, StopReason
from schemas.runs import FinishReason
from schemas.sessions import SealReason, SessionSealed
from schemas.turns import AgentTurn, RootReason, TurnRecorded
from serve_apps.http.gateway.agents import AgentAccess, Capability, SessionKeys
from serve_apps.http.gateway.app import gateway_app
from serve_apps.http.gateway.refusals import Refused
from serve_apps.http.gateway.session_views import SealWish, SessionWish, opened_session, session_view
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Scope, Sources
from serve_apps.rollouts.agents.dialects import PATHS
from serve_apps.rollouts.agents.dialects.messages import Messages
from serve_apps.rollouts.agents.live_session import TurnRefused
from serve_apps.rollouts.agents.sealing import Verdict
from slime_events.core.run.participant import Participant
from slime_events.core.sessions.session import Limits, OpenTurn, Session
from storage.memory_log import MemoryLog
from tests import made
from tests.agents.stage import RULES
from tests.tinker.lone import completed

SAMPLE, GROUP = "g-s0", "g"
NAME, KEYS = session_name(SAMPLE, 0), SessionKeys(b"secret")
CONTROL = KEYS.of(NAME, Capability.CONTROL)
SECOND = 10**9
PROMPT = made.submitted(text="1+1", source=Source(path="p", line=0), label="2", metadata={"a": 1})


def session(**more: Any) -> Session:
    request = made.requested(max_new_tokens=4)
    return Session(SAMPLE, request=request, opened_at=SECOND, moved_at=4 * SECOND, **more)


class Sessions:
    """Record each call. error: what calls raise."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.error: Exception | None = None
        self.setup = SimpleNamespace(rules=RULES)

    def _record_call(self, *args: Any) -> None:
        self.calls.append(args)
        if self.error is not None:
            raise self.error

    async def open(self, sender: str, **wish: Any) -> tuple[Session, PromptSubmitted]:
        self._record_call("open", sender, wish)
        return session(), PROMPT

    async def state(self, name: str) -> Session:
        self._record_call("state", name)
        return session()

    async def seal(self, name: str, verdict: Verdict) -> None:
        self._record_call("seal", name, verdict)

    async def count_tokens(self, name: str, dialect: Messages, path: str, body: bytes) -> int:
        self._record_call("count", name, dialect.name, path, body)
        return 7


class Scene:
    def __init__(self, folder: Path) -> None:
        self.sessions, self.sources = Sessions(), Sources(folder)
        self.token = self.sources.issue("team", [Scope.SESSIONS])

        self.is_on, self.log = True, MemoryLog("sim")

        async def sessions() -> Sessions:
            if not self.is_on:
                raise LogUnavailable("run sim is not on")
            return self.sessions

        @contextlib.asynccontextmanager
        async def log() -> AsyncIterator[MemoryLog]:
            yield self.log

        run, desk = (SimpleNamespace(name="sim", log=log), SimpleNamespace(sessions=sessions))
        self._app = gateway_app(run, self.sources, GatewaySettings(), AgentAccess(desk, KEYS))  # type: ignore[arg-type]

    @contextlib.asynccontextmanager
    async def client(self, key: str, scheme: str = "Bearer", **more: str) -> AsyncIterator[httpx.AsyncClient]:
        headers = {"authorization": f"{scheme} {key}"} | more
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:9", headers=headers) as client:
            yield client

    async def open(self, content: bytes = b"", token: str | None = None, **headers: str) -> httpx.Response:
        async with self.client(self.token if token is None else token, **headers) as client:
            return await client.post("/v1/runs/sim/sessions", content=content)

    async def seal(self, content: bytes, key: str = CONTROL, scheme: str = "Bearer") -> httpx.Response:
        async with self.client(key, scheme) as client:
            return await client.post(f"/v1/sessions/{NAME}/seal", content=content)

    async def state(self, key: str = CONTROL, scheme: str = "Bearer") -> httpx.Response:
        async with self.client(key, scheme) as client:
            return await client.get(f"/v1/sessions/{NAME}")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize(
    ("wish", "wait_s"),
    [(b"", 0.0), (b"{}", 0.0), (b'{"wait_s": 5}', 5.0), (b'{"wait_s": -5}', 0.0), (b'{"wait_s": 999}', 60.0)],
)
async def test_a_rollout_is_waited_for_as_long_as_it_is_wished(scene: Scene, wish: bytes, wait_s: float) -> None:
    answer = await scene.open(wish, **{"idempotency-key": "k"})
    assert answer.status_code == 201
    assert scene.sessions.calls == [("open", "team", {"group": None, "wait_s": wait_s, "key": "k"})]


async def test_a_session_is_opened_with_its_keys_and_where_it_is(scene: Scene) -> None:
    opened = (await scene.open(b'{"group": "g"}')).json()
    assert scene.sessions.calls[0][2] == {"group": "g", "wait_s": 0.0, "key": None}
    agent = f"{NAME}.{KEYS.of(NAME, Capability.AGENT)}"
    assert opened == {
        "session": NAME,
        "sample": SAMPLE,
        "group": GROUP,
        "attempt": 0,
        "purpose": "train",
        "prompt": "1+1",
        "metadata": {"a": 1},
        "label": "2",
        "tools": None,
        "sampling": opened["sampling"],
        "base_url": f"http://localhost:9/v1/sessions/{agent}/v1",
        "agent_key": agent,
        "control_key": CONTROL,
        "limits": {"turn_s": 20.0, "session_s": 60.0, "idle_s": 30.0},
    }
    assert opened["sampling"]["max_new_tokens"] == 4


def test_a_chat_is_given_as_its_messages() -> None:
    from msgspec.structs import replace

    messages = [{"role": "user", "content": "1+1"}]
    opened_session_ = opened_session(session(), replace(PROMPT, messages=messages), KEYS, Limits(1, 2, 3), "u")
    assert opened_session_.prompt == messages
    assert opened_session_.limits == {"turn_s": 1, "session_s": 2, "idle_s": 3}


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b"\xff", 400),
        (b"[]", 422),
        (b'{"wait_s": "x"}', 422),
        (b'{"more": 1}', 422),
        (b"{}".ljust(1024 * 1024), 201),
        (b"{}".ljust(1024 * 1024 + 1), 413),
    ],
    ids=range(7),
)
async def test_a_wish_is_json_of_its_fields(scene: Scene, content: bytes, status: int) -> None:
    assert (await scene.open(content)).status_code == status
    assert len(scene.sessions.calls) == (status == 201)


async def test_a_source_opens_sessions_where_its_token_is_for_it(scene: Scene) -> None:
    other = scene.sources.issue("other", [Scope.PROMPTS])
    assert [(await scene.open(token=token)).status_code for token in (other, "x")] == [403, 401]
    assert scene.sessions.calls == []


@pytest.mark.parametrize(
    ("key", "scheme", "status"),
    [
        (CONTROL, "Bearer", 200),
        (CONTROL, "bearer", 200),
        (CONTROL, "Basic", 401),
        (KEYS.of(NAME, Capability.AGENT), "Bearer", 401),
        (KEYS.of("g-s1.0", Capability.CONTROL), "Bearer", 401),
        ("", "Bearer", 401),
    ],
)
async def test_a_session_is_its_harness_s(scene: Scene, key: str, scheme: str, status: int) -> None:
    for answer in (await scene.state(key, scheme), await scene.seal(b'{"reward": 1}', key, scheme)):
        assert answer.status_code == status
        assert answer.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
    assert bool(scene.sessions.calls) is (status == 200)


async def test_a_session_is_sealed_and_shown(scene: Scene) -> None:
    answer = await scene.seal(b'{"reward": 0.5, "exit_code": 0, "metadata": {"a": 1}}')
    assert answer.json()["session"] == NAME
    (sealed,) = [call for call in scene.sessions.calls if call[0] == "seal"]
    assert sealed == ("seal", NAME, Verdict(SealReason.REWARD, 0.5, {}, 0, {"a": 1}))
    assert (await scene.state()).json()["sample"] == SAMPLE


@pytest.mark.parametrize("wish", [b"{}", b'{"reward": 1e308}', b'{"rewards": {"3": 1}}', b'{"exit": 1}'])
async def test_an_end_that_cannot_be_is_refused(scene: Scene, wish: bytes) -> None:
    assert (await scene.seal(wish)).status_code == 422
    assert not [call for call in scene.sessions.calls if call[0] == "seal"]


@pytest.mark.parametrize(
    ("error", "status", "again"),
    [
        (TurnRefused(429, "no", again_s=3.0), 429, "3"),
        (TurnRefused(409, "no"), 409, None),
        (PlugPointError("no"), 422, None),
    ],
)
async def test_what_a_harness_cannot_have_is_told(
    scene: Scene, caplog: pytest.LogCaptureFixture, error: Exception, status: int, again: str | None
) -> None:
    scene.sessions.error = error
    for answer in (await scene.open(), await scene.state(), await scene.seal(b'{"reward": 1}')):
        assert (answer.status_code, answer.headers.get("retry-after")) == (status, again)
        assert answer.json() == {"error": "no"}
    lines = [record.getMessage() for record in caplog.records if "of the harness of" in record.getMessage()]
    assert len(lines) == (0 if status == 429 else 2)


@pytest.mark.parametrize(
    ("reason", "status", "again"),
    [(None, 503, "2"), (FinishReason.INTERRUPTED, 503, "30"), (FinishReason.ALL_STEPS, 409, None)],
)
async def test_a_run_that_is_off_says_whether_to_come_again(
    scene: Scene, reason: FinishReason | None, status: int, again: str | None
) -> None:
    scene.is_on, worker = False, Participant(scene.log, "conductor")
    await worker.append([made.started()])
    if reason is not None:
        await worker.append_fenced(made.finished(reason))
    for answer in (await scene.open(), await scene.state(), await scene.seal(b'{"reward": 1}')):
        assert (answer.status_code, answer.headers.get("retry-after")) == (status, again)


async def test_models_are_listed_to_who_has_a_key(scene: Scene) -> None:
    agent = f"{NAME}.{KEYS.of(NAME, Capability.AGENT)}"
    async with scene.client(agent) as client:
        for path in ("/v1/models", f"/v1/sessions/{agent}/v1/models"):
            assert (await client.get(path)).json() == {
                "object": "list",
                "data": [{"id": "default", "object": "model", "created": 0, "owned_by": "slime-events"}],
            }
    async with scene.client("other") as client:
        for path in ("/v1/models", "/v1/sessions/other/v1/models"):
            assert (await client.get(path)).status_code == 401
        for path in ("/v1/messages/count_tokens", "/v1/sessions/other/v1/messages/count_tokens"):
            assert (await client.post(path, json={})).status_code == 401


async def test_every_api_of_agents_is_there_by_key_and_by_path(scene: Scene) -> None:
    async with scene.client("other") as client:
        for path in PATHS:
            for where in (path, f"/v1/sessions/other{path}"):
                assert (await client.post(where, json={})).status_code == 401, where
        assert (await client.get("/openapi.json")).status_code == 200


async def test_tokens_of_a_prompt_are_counted(scene: Scene) -> None:
    agent = f"{NAME}.{KEYS.of(NAME, Capability.AGENT)}"
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}]}).encode()
    async with scene.client(agent) as client:
        answer = await client.post("/v1/messages/count_tokens", content=body)
    assert answer.json() == {"input_tokens": 7}
    assert scene.sessions.calls == [("count", NAME, "messages", "/v1/messages/count_tokens", body)]


@pytest.mark.parametrize(
    ("wish", "is_fine"),
    [
        (SealWish(reward=0.0), True),
        (SealWish(exit_code=0), True),
        (SealWish(rewards={1: 0.5}), True),
        (SealWish(reward=1.0, rewards={1: 0.5, 2: 1.0}), True),
        (SealWish(), False),
        (SealWish(metadata={"a": 1}), False),
        (SealWish(reward=float("nan")), False),
        (SealWish(rewards={1: float("inf")}), False),
        (SealWish(rewards={1: 0.5, 3: 1.0}), False),
    ],
)
def test_a_session_ends_with_something_that_can_be(wish: SealWish, is_fine: bool) -> None:
    if is_fine:
        wish.check([1, 2])
    else:
        with pytest.raises(Refused) as error:
            wish.check([1, 2])
        assert error.value.status == 422
    assert SessionWish().group is None


def turn(index: int, extends: int | None, agent: AgentTurn | None) -> TurnRecorded:
    return made.turn(
        SAMPLE, index=index, asked="k", extends=extends, length=3, stop=StopReason.STOP, seconds=0.5, agent=agent
    )


def test_a_session_is_shown_as_it_is_now() -> None:
    shown = session_view(session(open={2: OpenTurn(2, "k", 3 * SECOND)}), 5 * SECOND + SECOND // 2)
    assert (shown.session, shown.sample, shown.attempt, shown.age_s) == (NAME, SAMPLE, 0, 4.5)
    assert [(turn_.index, turn_.age_s) for turn_ in shown.open] == [(2, 2.5)]
    assert (shown.sealed, shown.result, shown.orphans) == (None, None, [2])


def test_turns_are_shown_with_where_they_go_on() -> None:
    own = session()
    by = AgentTurn(key="k", dialect="chat", call="c", root=RootReason.FIRST, messages=("m",))
    for recorded_turn in (turn(0, None, by), turn(1, 0, AgentTurn(key="k", dialect="chat", call="c", messages=("n",)))):
        own._record(recorded_turn)
    own.turns[5] = turn(5, 1, None)
    own._extended.add(5)
    shown = session_view(own, 5 * SECOND)
    assert [(each.index, each.tokens, each.stop, each.seconds) for each in shown.turns] == [
        (index, 3, StopReason.STOP, 0.5) for index in (0, 1, 5)
    ]
    assert [(each.extends, each.root) for each in shown.turns] == [(None, RootReason.FIRST), (0, None), (1, None)]
    assert (shown.leaves, shown.orphans) == ([1], [])


@pytest.mark.parametrize("fails", [True, False])
def test_a_sealed_session_is_as_old_as_it_became(fails: bool) -> None:
    sealed = SessionSealed(sample=SAMPLE, attempt=0, reason=SealReason.EXIT, gateway="g")
    failure = made.failed(SAMPLE, FailureKind.AGENT, message="exit code 1")
    shown = session_view(session(sealed=sealed, ended=failure if fails else completed(SAMPLE)), 50 * SECOND)
    assert (shown.age_s, shown.sealed) == (3.0, SealReason.EXIT)
    assert shown.result == ("failed" if fails else "completed")
    assert shown.failed == ("exit code 1" if fails else "")
