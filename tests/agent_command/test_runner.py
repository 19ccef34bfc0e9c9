"""The runner against a gateway that is played: sessions are opened, made and sealed, also after it was killed."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from schemas.errors import ConfigError, InvalidValue
from serve_apps.agent_command.actor import check_agent_command
from serve_apps.agent_command.runner import AgentProgram, Runner, words_of
from serve_apps.agent_command.sessions import SessionClient
from slime_events.core.config.agents import AgentSettings

WAIT_S = 60.0


@dataclass
class Gateway:
    """wanted: rollouts. failures: statuses that come first."""

    wanted: int
    failures: list[int] = field(default_factory=list)
    opened: dict[str, str] = field(default_factory=dict)
    sealed: dict[str, Any] = field(default_factory=dict)
    opens: Counter[str] = field(default_factory=Counter)
    url: str = ""

    async def open(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer token"
        if self.failures:
            return web.Response(status=self.failures.pop(0), headers={"Retry-After": "0"})
        key = request.headers["Idempotency-Key"]
        self.opens[key] += 1
        if key not in self.opened:
            if len(self.opened) == self.wanted:
                await asyncio.sleep(0.2)
                return web.json_response({}, status=429, headers={"Retry-After": "0"})
            self.opened[key] = f"s{len(self.opened)}.0"
        name = self.opened[key]
        said = {"session": name, "control_key": f"c-{name}", "agent_key": f"{name}.a", "prompt": "1+1", "label": "2"}
        return web.json_response(said | {"base_url": f"{self.url}/v1/sessions/{name}.a/v1"}, status=201)

    async def state(self, request: web.Request) -> web.Response:
        name = request.match_info["session"]
        assert request.headers["Authorization"] == f"Bearer c-{name}"
        return web.json_response({"sealed": self.sealed.get(name)})

    async def seal(self, request: web.Request) -> web.Response:
        name = request.match_info["session"]
        assert request.headers["Authorization"] == f"Bearer c-{name}"
        self.sealed.setdefault(name, await request.json())
        return web.json_response({})

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Gateway]:
        app = web.Application()
        app.router.add_post("/v1/runs/run/sessions", self.open)
        app.router.add_get("/v1/sessions/{session}", self.state)
        app.router.add_post("/v1/sessions/{session}/seal", self.seal)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


def program(tmp_path: Path, code: str, timeout_s: float = WAIT_S) -> AgentProgram:
    return AgentProgram((sys.executable, "-c", code), timeout_s, tmp_path / "agents", tmp_path / "logs")


async def run(gateway: Gateway, made: AgentProgram, until: Any, concurrency: int = 2) -> None:
    """The runner, until the condition holds; then it ends as with its run."""
    async with SessionClient(gateway.url, "run", "token") as client, asyncio.timeout(WAIT_S):
        running = asyncio.create_task(Runner(client, made, concurrency).run())
        try:
            while not until() and not running.done():
                await asyncio.wait([running], timeout=0.02)
            if running.done():
                await running
        finally:
            running.cancel()
            await asyncio.wait([running])


ANSWERS = """
import json, os, sys
task = json.load(sys.stdin)
assert not {"control_key", "agent_key"} & task.keys()
assert "c-" + task["session"] not in " ".join(os.environ.values())
print(json.dumps({"reward": float(task["prompt"] == "1+1"), "metadata": {
    "url": os.environ["OPENAI_BASE_URL"], "key": os.environ["OPENAI_API_KEY"],
    "other": os.environ["ANTHROPIC_BASE_URL"], "session": os.environ["SLIME_EVENTS_SESSION"]}}))
"""


async def test_each_wanted_rollout_gets_a_program(tmp_path: Path) -> None:
    async with Gateway(wanted=5, failures=[503, 429]).serving() as gateway:
        await run(gateway, program(tmp_path, ANSWERS), lambda: len(gateway.sealed) == 5)
        assert sorted(gateway.sealed) == [f"s{number}.0" for number in range(5)]
        for name, body in gateway.sealed.items():
            url = f"{gateway.url}/v1/sessions/{name}.a"
            said = {"url": f"{url}/v1", "key": f"{name}.a", "other": url, "session": name}
            assert body == {"exit_code": 0, "reward": 1.0, "rewards": {}, "metadata": said}
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [f"s{number}.0.log" for number in range(5)]


@pytest.mark.parametrize(("code", "exit_code"), [("exit(3)", 3), ("import time; time.sleep(99)", 124)])
async def test_a_program_that_fails_seals_its_session_so(tmp_path: Path, code: str, exit_code: int) -> None:
    async with Gateway(wanted=1).serving() as gateway:
        await run(gateway, program(tmp_path, code, timeout_s=1.0), lambda: gateway.sealed)
        assert gateway.sealed["s0.0"]["exit_code"] == exit_code


async def test_one_that_cannot_start_is_a_failed_session(tmp_path: Path) -> None:
    made = AgentProgram(("/nowhere",), WAIT_S, tmp_path / "agents", tmp_path / "logs")
    async with Gateway(wanted=1).serving() as gateway:
        await run(gateway, made, lambda: gateway.sealed)
        assert gateway.sealed["s0.0"]["exit_code"] == 127


async def test_what_a_killed_runner_left_is_opened_again_and_begun_anew(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    once = f"import pathlib, time\np = pathlib.Path({str(begun)!r})\nif not p.exists():\n p.touch()\n time.sleep(99)\n"
    async with Gateway(wanted=2).serving() as gateway:
        await run(gateway, program(tmp_path, once + ANSWERS), lambda: begun.exists() and gateway.sealed)
        (name,) = [key for key, session in gateway.opened.items() if session not in gateway.sealed]
        left = tmp_path / "agents" / name
        (left / "half").mkdir()
        await run(gateway, program(tmp_path, once + ANSWERS), lambda: len(gateway.sealed) == 2)
        assert gateway.opens[left.name] == 2
        assert {body["exit_code"] for body in gateway.sealed.values()} == {0}
        await run(gateway, program(tmp_path, ANSWERS), lambda: not list((tmp_path / "agents").glob(left.name)))


async def test_a_session_that_was_sealed_meanwhile_is_let_go(tmp_path: Path) -> None:
    (tmp_path / "agents" / "left").mkdir(parents=True)
    async with Gateway(wanted=1, opened={"left": "s9.0"}, sealed={"s9.0": {"reason": "idle"}}).serving() as gateway:
        await run(gateway, program(tmp_path, "exit(1)"), lambda: not (tmp_path / "agents" / "left").exists())
        assert gateway.sealed["s9.0"] == {"reason": "idle"}
    assert not (tmp_path / "logs" / "s9.0.log").exists()


async def test_a_gateway_that_refuses_ends_the_role(tmp_path: Path) -> None:
    async with Gateway(wanted=1, failures=[403] * 2).serving() as gateway:
        with pytest.raises(ExceptionGroup) as raised:
            await run(gateway, program(tmp_path, ANSWERS), lambda: False)
    assert raised.group_contains(ConfigError, match="403")


def test_the_words_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "agent.py").touch()
    found = words_of(f"python agent.py --say 'a b' other.py {shlex.quote('/bin/sh')}", tmp_path)
    assert found == ("python", str(tmp_path / "agent.py"), "--say", "a b", "other.py", "/bin/sh")


@pytest.mark.parametrize("command", ["", "no-such-program --x", "python 'x"])
def test_a_command_that_cannot_start_stops_a_run_before_it_starts(command: str) -> None:
    with pytest.raises(InvalidValue, match="--agent-command"):
        check_agent_command(AgentSettings(agent_command=command))
