"""A harness at its gateway: when it comes again, what it takes for an end, and what it tells its caller."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from schemas.errors import ConfigError
from serve_apps.http.agent_command import sessions
from serve_apps.http.agent_command.actor import _first, check_agent_command
from serve_apps.http.agent_command.program import Ended, _Output, run_program
from serve_apps.http.agent_command.runner import AgentProgram, Runner, os_variables, variables_of
from serve_apps.http.agent_command.sessions import AGAIN_S, WAIT_S, SessionClient
from slime_events.core.config.agents import AgentSettings

Answer = tuple[int, Any, str]
"""Status, body (a text is no JSON), Retry-After."""


@dataclass
class Scripted:
    """Answer as scripted, and keep each request and how long its client waits."""

    answers: list[Answer] = field(default_factory=list)
    requests: list[tuple[str, str, Any, str, str]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        key = request.headers.get("Idempotency-Key", "")
        self.requests.append((request.method, request.path, body, request.headers["Authorization"], key))
        status, content, again = self.answers.pop(0)
        headers = {"Retry-After": again} if again else {}
        if isinstance(content, str):
            return web.Response(status=status, text=content, headers=headers)
        return web.json_response(content, status=status, headers=headers)


@pytest.fixture
async def gateway(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scripted]:
    scripted = Scripted()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", scripted.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    scripted.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def pause(seconds: float) -> None:
        scripted.pauses.append(seconds)

    monkeypatch.setattr(sessions.asyncio, "sleep", pause)
    try:
        yield scripted
    finally:
        monkeypatch.undo()
        await runner.cleanup()


@contextlib.asynccontextmanager
async def client_of(gateway: Scripted, *answers: Answer) -> AsyncIterator[SessionClient]:
    gateway.answers += answers
    async with SessionClient(gateway.url, "r", "token") as client:
        yield client
    assert gateway.answers == []


OPEN = {"session": "s.0"}


@pytest.mark.parametrize("status", [200, 201])
async def test_a_session_is_opened_by_its_key(gateway: Scripted, status: int) -> None:
    async with client_of(gateway, (status, OPEN, "")) as client:
        assert await client.open("k") == OPEN
    assert gateway.requests == [("POST", "/v1/runs/r/sessions", {"wait_s": WAIT_S}, "Bearer token", "k")]
    assert gateway.pauses == []


async def test_it_comes_again_when_it_is_told_to(gateway: Scripted) -> None:
    busy: list[Answer] = [(429, {}, "3"), (409, {}, ""), (503, "away", "x"), (500, {}, "0"), (502, "", "7")]
    async with client_of(gateway, *busy, (201, OPEN, "")) as client:
        assert await client.open("k") == OPEN
    assert gateway.pauses == [3.0, AGAIN_S, AGAIN_S, 0.0, 7.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 499, 204, 302])
async def test_a_gateway_that_never_will_open_one(gateway: Scripted, status: int) -> None:
    async with client_of(gateway, (status, "no" if status != 204 else {}, "")) as client:
        with pytest.raises(ConfigError, match=str(status)):
            await client.open("k")


async def test_a_gateway_that_is_away_is_asked_again(gateway: Scripted) -> None:
    async with client_of(gateway, (200, {}, "")) as client:
        client._url, there = "http://127.0.0.1:1", client._url
        assert not await client.takes_turns("s.0", "c")
        client._url = there
        assert await client.takes_turns("s.0", "c")


async def test_a_gateway_s_certificate_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check it against the certificates that the system trusts, or against a named file; the connections end
    with the client.
    """
    contexts, connector = list[Any](), sessions.aiohttp.TCPConnector

    def noted(**more: Any) -> Any:
        contexts.append(more["ssl"])
        return connector(**more | {"ssl": True})

    monkeypatch.setattr(sessions.aiohttp, "TCPConnector", noted)
    monkeypatch.setattr(sessions.ssl, "create_default_context", lambda cafile: cafile)
    for named in ("", "ca.pem"):
        async with SessionClient("https://127.0.0.1:1", "r", "token", named) as client:
            http = client._http
            assert http is not None
            assert not http.closed
        assert http.closed
    assert contexts == [True, "ca.pem"]


@pytest.mark.parametrize(
    ("answer", "takes"),
    [
        ((200, {"sealed": None, "result": None}, ""), True),
        ((200, {"sealed": {"reason": "idle"}}, ""), False),
        ((200, {"result": "failed"}, ""), False),
        ((404, {}, ""), False),
        ((503, {}, ""), False),
    ],
)
async def test_whether_a_session_takes_turns(gateway: Scripted, answer: Answer, takes: bool) -> None:
    async with client_of(gateway, answer) as client:
        assert await client.takes_turns("s.0", "c") is takes
    assert gateway.requests == [("GET", "/v1/sessions/s.0", None, "Bearer c", "")]


@pytest.mark.parametrize(
    ("answers", "why", "pauses"),
    [
        ([(200, {}, "")], "", []),
        ([(204, {}, "")], "", []),
        ([(404, {}, "")], "", []),
        ([(409, {}, "")], "", []),
        ([(410, {}, "")], "", []),
        ([(422, {"error": "no"}, "")], "422", []),
        ([(300, "no", "")], "300", []),
        ([(403, "no", "")], "403", []),
        ([(429, {}, "2"), (500, {}, ""), (200, {}, "")], "", [2.0, AGAIN_S]),
    ],
)
async def test_a_seal_is_sent_until_it_is_taken(
    gateway: Scripted, answers: list[Answer], why: str, pauses: list[float]
) -> None:
    async with client_of(gateway, *answers) as client:
        answer_ = await client.seal("s.0", "c", {"reward": 1})
    assert answer_[:3] == why
    assert gateway.requests == [("POST", "/v1/sessions/s.0/seal", {"reward": 1}, "Bearer c", "")] * len(answers)
    assert gateway.pauses == pauses


class Harness:
    """Replace the client by a gateway whose sessions are open. seals: what each seal is refused for."""

    def __init__(self, *seals: str, takes: bool = True) -> None:
        self.seals, self.takes, self.sealed, self.keys = list(seals), takes, list[Any](), list[str]()

    async def open(self, key: str) -> dict[str, Any]:
        self.keys.append(key)
        return {"session": f"s{len(self.keys)}.0", "control_key": "c", "agent_key": "a", "base_url": "http://g/v1"}

    async def takes_turns(self, session: str, control_key: str) -> bool:
        return self.takes

    async def seal(self, session: str, control_key: str, body: dict[str, Any]) -> str:
        self.sealed.append(body)
        return self.seals.pop(0) if self.seals else ""


def program(folder: Path, *words: str) -> AgentProgram:
    return AgentProgram(words or ("true",), 30.0, folder / "agents", folder / "logs")


async def pauses_of(
    harness: Harness, agent_program: AgentProgram, count: int, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """Return how long one runner waits after each of `count` programs."""
    waited, sleep = list[float](), asyncio.sleep

    async def pause(seconds: float) -> None:
        if seconds in (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0):
            waited.append(seconds)
            if len(waited) == count:
                raise asyncio.CancelledError
            return
        await sleep(seconds)

    with monkeypatch.context() as patch:
        patch.setattr("serve_apps.http.agent_command.runner.asyncio.sleep", pause)
        task = asyncio.create_task(Runner(harness, agent_program, 1).run())  # type: ignore[arg-type]
        await asyncio.wait([task])
    return waited


async def test_the_pause_after_programs_that_fail_doubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = program(tmp_path, "/nowhere")
    assert await pauses_of(Harness(), failing, 7, monkeypatch) == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert await pauses_of(Harness(takes=False), failing, 3, monkeypatch) == [0.0] * 3


async def test_a_refused_reward_seals_the_session_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness("422 no")
    assert await pauses_of(harness, program(tmp_path, "true"), 2, monkeypatch) == [1.0, 0.0]
    first, second, third = harness.sealed
    assert (first["exit_code"], second["exit_code"], third["exit_code"]) == (0, 65, 0)
    assert "422 no" in second["metadata"]["error"]


async def test_folders_are_gone_and_old_logs_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_apps.http.agent_command.runner.KEPT_LOGS", 2)
    harness = Harness()
    await pauses_of(harness, program(tmp_path, "true"), 3, monkeypatch)
    assert list((tmp_path / "agents").iterdir()) == []
    assert len(set(harness.keys)) == 3
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"s2.0.log", "s3.0.log"}


def test_the_variables_of_a_program() -> None:
    session = {"base_url": "http://g/v1/sessions/k/v1", "agent_key": "k", "session": "s.0", "control_key": "c"}
    assert variables_of(session) == {
        "OPENAI_BASE_URL": "http://g/v1/sessions/k/v1",
        "OPENAI_API_KEY": "k",
        "ANTHROPIC_BASE_URL": "http://g/v1/sessions/k",
        "ANTHROPIC_API_KEY": "k",
        "SLIME_EVENTS_SESSION": "s.0",
    }


def test_what_a_program_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the run's settings refer to, however it is called, and Ray's own."""
    monkeypatch.setattr("os.environ", {"PLAIN": "1", "OTHER": "2", "RAY_PLAIN": "3", "PATH": "/bin"})
    assert os_variables({"PLAIN"}) == {"OTHER": "2", "PATH": "/bin"}
    assert os_variables({"PLAIN", "OTHER"}, {"PLAIN", "RAY_PLAIN"}) == {"PLAIN": "1", "RAY_PLAIN": "3", "PATH": "/bin"}


async def test_why_the_programs_ended() -> None:
    async def fail(error: BaseException | None) -> None:
        if error is not None:
            raise error

    inner = ConfigError("no")
    for error in (inner, ExceptionGroup("a", [inner]), ExceptionGroup("a", [ExceptionGroup("b", [inner])])):
        task = asyncio.create_task(fail(error))
        await asyncio.wait([task])
        assert _first(task) is inner
    task = asyncio.create_task(fail(None))
    await task
    assert isinstance(_first(task), RuntimeError)


async def ran(tmp_path: Path, *words: str) -> Ended:
    return await run_program(words, folder=tmp_path, log=tmp_path / "log", variables={}, task=b"", timeout_s=30.0)


async def test_what_is_still_under_way_at_the_end_is_read(tmp_path: Path) -> None:
    """Read the output of a process that a program left, which holds it open."""
    with (tmp_path / "log").open("wb") as file, _Output(file) as output:
        left = os.dup(await output.pipe(is_standard=True))
        output.close_ours()

        def late() -> None:
            os.write(left, b"first\nlate\n")
            os.close(left)

        asyncio.get_running_loop().call_later(0.05, late)
        await output.end()
        assert output.ended(3) == Ended(3, "late", "")
    assert (tmp_path / "log").read_text() == "first\nlate\n"


async def test_no_file_stays_open_behind_a_program(tmp_path: Path) -> None:
    await ran(tmp_path, "/bin/sh", "-c", "echo warm")
    before = psutil.Process().num_fds()
    for _ in range(3):
        await ran(tmp_path, "/bin/sh", "-c", "echo a")
        with pytest.raises(OSError, match="nowhere"):
            await ran(tmp_path, "/nowhere")
    await asyncio.sleep(0)
    assert psutil.Process().num_fds() == before


def test_a_command_that_can_start() -> None:
    check_agent_command(AgentSettings(agent_command="python3 agent.py"))
    check_agent_command(AgentSettings(agent_command="/bin/sh -c 'exit 0'"))
