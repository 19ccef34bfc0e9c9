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
from serve_apps.http.agent_command.actor import check_agent_command
from serve_apps.http.agent_command.runner import AgentProgram, Runner, os_variables, words_of
from serve_apps.http.agent_command.sessions import SessionClient
from slime_events.core.config.agents import AgentSettings
from slime_events.plugins.user_environment import grader_environment

WAIT_S = 60.0


@dataclass
class Gateway:
    """wanted: rollouts. failures: statuses that come first."""

    wanted_sessions: int
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
            if len(self.opened) == self.wanted_sessions:
                await asyncio.sleep(0.2)
                return web.json_response({}, status=429, headers={"Retry-After": "0"})
            self.opened[key] = f"s{len(self.opened)}.0"
        name = self.opened[key]
        fields = {"session": name, "control_key": f"c-{name}", "agent_key": f"{name}.a", "prompt": "1+1", "label": "2"}
        return web.json_response(fields | {"base_url": f"{self.url}/v1/sessions/{name}.a/v1"}, status=201)

    async def state(self, request: web.Request) -> web.Response:
        name = request.match_info["session"]
        assert request.headers["Authorization"] == f"Bearer c-{name}"
        return web.json_response({"sealed": self.sealed.get(name)})

    async def seal(self, request: web.Request) -> web.Response:
        name = request.match_info["session"]
        assert request.headers["Authorization"] == f"Bearer c-{name}"
        body = await request.json()
        if body["rewards"].keys() - {"0"}:
            return web.json_response({"error": "no path ended there"}, status=422)
        self.sealed.setdefault(name, body)
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


def program(
    tmp_path: Path, code: str, timeout_s: float = WAIT_S, secret: str = "", passed: frozenset[str] = frozenset()
) -> AgentProgram:
    words = (sys.executable, "-c", code)
    return AgentProgram(words, timeout_s, tmp_path / "agents", tmp_path / "logs", frozenset({secret}), passed)


async def run(gateway: Gateway, agent_program: AgentProgram, until: Any, concurrency: int = 2) -> None:
    """The runner, until the condition holds; then it ends as with its run."""
    async with SessionClient(gateway.url, "run", "token") as client, asyncio.timeout(WAIT_S):
        running = asyncio.create_task(Runner(client, agent_program, concurrency).run())
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


REFUSED = 'print(\'{"rewards": {"7": 1.0}}\')'


async def test_each_wanted_rollout_gets_a_program(tmp_path: Path) -> None:
    async with Gateway(wanted_sessions=5, failures=[503, 429]).serving() as gateway:
        await run(gateway, program(tmp_path, ANSWERS), lambda: len(gateway.sealed) == 5)
        assert sorted(gateway.sealed) == [f"s{number}.0" for number in range(5)]
        for name, body in gateway.sealed.items():
            url = f"{gateway.url}/v1/sessions/{name}.a"
            metadata = {"url": f"{url}/v1", "key": f"{name}.a", "other": url, "session": name}
            assert body == {"exit_code": 0, "reward": 1.0, "rewards": {}, "metadata": metadata}
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [f"s{number}.0.log" for number in range(5)]


async def test_the_run_s_secrets_are_not_in_a_program_s_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_KEY", "hidden")
    monkeypatch.setenv("RAY_ADDRESS", "ours")
    monkeypatch.setenv("OWN", "kept")
    code = "import json, os; print(json.dumps({'metadata': {'names': sorted(os.environ)}}))"
    async with Gateway(wanted_sessions=1).serving() as gateway:
        await run(gateway, program(tmp_path, code, secret="STORE_KEY"), lambda: gateway.sealed)
        names = gateway.sealed["s0.0"]["metadata"]["names"]
    assert "OWN" in names
    assert not {"STORE_KEY", "RAY_ADDRESS"} & set(names)


SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "wJalr", "HF_TOKEN": "t", "WANDB_API_KEY": "k", "NATS_PASSWORD": "p", "STORE_KEY": "s",
    "DATABASE": "postgres://me:hidden@db/x", "FSSPEC_S3": '{"key": "k", "secret": "hidden-too"}',
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abcdefgh", "MINE": "hf_abcdefghijklmnopqrstuvwx",
    "SSH_AUTH_SOCK": "/tmp/agent", "RAY_AUTH_TOKEN": "r", "SLIME_EVENTS_NATS_URL_PASSWORD": "s3cret",
    "ENDPOINT": "https://h/x?api_key=abcdefgh",
}  # fmt: skip
NEEDED = {
    "PATH": "/usr/bin:/bin", "HOME": "/home/me", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TMPDIR": "/tmp",
    "TERM": "xterm", "USER": "me", "SHELL": "/bin/sh", "HTTPS_PROXY": "http://me:word@proxy:3128", "no_proxy": "h",
    "VIRTUAL_ENV": "/venv", "PYTHONPATH": "/src", "CUDA_VISIBLE_DEVICES": "0", "SSL_CERT_FILE": "/etc/ca.pem",
    "DOCKER_HOST": "unix:///run/docker.sock", "XDG_CACHE_HOME": "/home/me/.cache", "HF_HOME": "/hf", "PWD": "/x",
}  # fmt: skip


async def test_a_program_sees_no_secret_but_those_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (SECRETS | NEEDED).items():
        monkeypatch.setenv(name, value)
    code = "import json, os; print(json.dumps({'metadata': dict(os.environ)}))"
    named = frozenset({"HF_TOKEN", "STORE_KEY"})
    async with Gateway(wanted_sessions=1).serving() as gateway:
        agent_program = program(tmp_path, code.replace("json, os", "json, os, sys"), secret="STORE_KEY", passed=named)
        await run(gateway, agent_program, lambda: gateway.sealed)
        seen = gateway.sealed["s0.0"]["metadata"]
    assert {name: seen.get(name) for name in SECRETS} == dict.fromkeys(SECRETS) | {"HF_TOKEN": "t", "STORE_KEY": "s"}
    assert {name: seen.get(name) for name in NEEDED if name != "PWD"} == {k: v for k, v in NEEDED.items() if k != "PWD"}
    assert seen["OPENAI_API_KEY"] == seen["ANTHROPIC_API_KEY"] == "s0.0.a", "its own key"


def test_graders_and_programs_of_agents_see_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", SECRETS | NEEDED | {"OMP_NUM_THREADS": "1"})
    seen = {"OMP_NUM_THREADS": "1"} | NEEDED
    assert grader_environment(SECRETS | NEEDED, []) == seen
    assert os_variables([]) == seen
    assert os_variables([], ["RAY_AUTH_TOKEN"]) == seen | {"RAY_AUTH_TOKEN": "r"}


@pytest.mark.parametrize(("code", "exit_code"), [("exit(3)", 3), ("import time; time.sleep(99)", 124), (REFUSED, 65)])
async def test_a_program_that_fails_seals_its_session_so(tmp_path: Path, code: str, exit_code: int) -> None:
    async with Gateway(wanted_sessions=1).serving() as gateway:
        await run(gateway, program(tmp_path, code, timeout_s=1.0), lambda: gateway.sealed)
        assert gateway.sealed["s0.0"]["exit_code"] == exit_code


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("print('first'); raise ValueError('no answer')", "ValueError: no answer ("),
        ("import sys; sys.stderr.write('x' * 1000); exit(1)", "x" * 200),
        ("import sys; sys.stderr.buffer.write(b'\\xff half'); exit(1)", "\ufffd half ("),
        ("exit(1)", None),
        ("import sys; print('it went well', file=sys.stderr)", None),
    ],
)
async def test_a_seal_says_the_last_line_of_a_failed_program_s_errors(
    tmp_path: Path, code: str, error: str | None
) -> None:
    agent_program = program(tmp_path, code)
    async with Gateway(wanted_sessions=1).serving() as gateway:
        await run(gateway, agent_program, lambda: gateway.sealed)
        reported = gateway.sealed["s0.0"]["metadata"].get("error")
    if error is None:
        assert reported is None
    else:
        assert reported.startswith(error)
        assert str(agent_program.logs) in reported
        assert len(reported) < 500


async def test_one_that_cannot_start_is_a_failed_session(tmp_path: Path) -> None:
    agent_program = AgentProgram(("/nowhere",), WAIT_S, tmp_path / "agents", tmp_path / "logs")
    async with Gateway(wanted_sessions=1).serving() as gateway:
        await run(gateway, agent_program, lambda: gateway.sealed)
        assert gateway.sealed["s0.0"]["exit_code"] == 127


async def test_what_a_killed_runner_left_is_opened_again_and_begun_anew(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    once = f"import pathlib, time\np = pathlib.Path({str(begun)!r})\nif not p.exists():\n p.touch()\n time.sleep(99)\n"
    async with Gateway(wanted_sessions=2).serving() as gateway:
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
    async with Gateway(
        wanted_sessions=1, opened={"left": "s9.0"}, sealed={"s9.0": {"reason": "idle"}}
    ).serving() as gateway:
        await run(gateway, program(tmp_path, "exit(1)"), lambda: not (tmp_path / "agents" / "left").exists())
        assert gateway.sealed["s9.0"] == {"reason": "idle"}
    assert not (tmp_path / "logs" / "s9.0.log").exists()


async def test_a_gateway_that_refuses_ends_the_role(tmp_path: Path) -> None:
    async with Gateway(wanted_sessions=1, failures=[403] * 2).serving() as gateway:
        with pytest.raises(ExceptionGroup) as raised:
            await run(gateway, program(tmp_path, ANSWERS), lambda: False)
    assert raised.group_contains(ConfigError, match="403")


def test_the_words_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "agent.py").touch()
    words = words_of(f"python agent.py --say 'a b' other.py {shlex.quote('/bin/sh')}", tmp_path)
    assert words == ("python", str(tmp_path / "agent.py"), "--say", "a b", "other.py", "/bin/sh")


@pytest.mark.parametrize("command", ["", "no-such-program --x", "python 'x"])
def test_a_command_that_cannot_start_stops_a_run_before_it_starts(command: str) -> None:
    with pytest.raises(InvalidValue, match="--agent-command"):
        check_agent_command(AgentSettings(agent_command=command))
