"""The role of `--agent-command` by itself: what it does when it begins, at the end of its run, and where it fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from aiohttp import web

from schemas.errors import ConfigError
from schemas.workers import WorkerJoined
from serve_apps.http.agent_command import actor
from serve_apps.http.agent_command.actor import FOLDER, SOURCE, AgentCommandActor
from serve_apps.http.agent_command.runner import MARK
from serve_apps.http.gateway.sources import Scope, Sources
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import RunAddress
from storage.jetstream.address import NatsAddress
from storage.memory_log import MemoryLog
from tests import made
from tests.agent_command.test_runner import Gateway

WAIT_S = 20.0
WAITS = "import os, time; os.mkdir(f'{HOME}/pid-{os.getpid()}'); time.sleep(99)"


@dataclass
class OfRun(Gateway):
    """It gives sessions for a token of the run's sources. tokens: by which it was asked."""

    sources: Any = None
    tokens: set[str] = field(default_factory=set)

    async def open(self, request: web.Request) -> web.Response:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        self.tokens.add(token)
        name, source = self.sources.admitted(token)
        assert (name, source.may) == (SOURCE, (Scope.SESSIONS,))
        request = request.clone(headers={**request.headers, "Authorization": "Bearer token"})
        return await super().open(request)


class Scene:
    """A run of a log in memory, and its gateway."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, MemoryLog("run")
        self.sources = Sources(folder)
        self.gateway = OfRun(wanted_sessions=2, sources=self.sources)

    @property
    def alive(self) -> list[int]:
        """Programs that said who they are, and are there."""
        pids = [int(path.name.partition("-")[2]) for path in self.folder.glob("pid-*")]
        return [pid for pid in pids if psutil.pid_exists(pid)]

    async def over(self) -> None:
        finished = made.finished(steps=0)
        await Participant(self.log, "conductor").append_fenced(finished)

    def events(self, kind: type[Any]) -> list[Any]:
        events = [record.envelope.event for record in self.log.records]
        return [event for event in events if isinstance(event, kind)]

    @contextlib.asynccontextmanager
    async def running(self, code: str) -> AsyncIterator[asyncio.Task[None]]:
        """The role, with this program."""
        command = f"{sys.executable} -c {shlex.quote(f'HOME = {str(self.folder)!r}; {code}')}"
        settings = made.settings(
            agents={"agent_command": command, "agent_concurrency": 2, "agent_timeout": WAIT_S},
            gateway={"gateway": urlsplit(self.gateway.url).netloc},
        )
        address = RunAddress(
            run="run", nats=NatsAddress(url=""), folder=str(self.folder), blob_url="", archive_url="", weights_url=""
        )
        role = asyncio.create_task(AgentCommandActor().run(address, settings))
        try:
            async with asyncio.timeout(WAIT_S):
                yield role
        finally:
            role.cancel()
            await asyncio.wait([role])

    async def until(self, role: asyncio.Task[None], holds: Any) -> None:
        while not holds() and not role.done():
            await asyncio.wait([role], timeout=0.02)
        if role.done():
            await role


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    running = Scene(tmp_path)

    @contextlib.asynccontextmanager
    async def joined(address: RunAddress, role: str) -> AsyncIterator[Participant]:
        yield Participant(running.log, role)

    monkeypatch.setattr(actor, "join_run", joined)
    async with running.gateway.serving():
        yield running


async def test_it_makes_sessions_until_its_run_is_over(scene: Scene) -> None:
    code = "print('{\"reward\": 1}')"
    async with scene.running(code) as role:
        await scene.until(role, lambda: len(scene.gateway.sealed) == 2)
        await scene.over()
        await role
    assert [body["reward"] for body in scene.gateway.sealed.values()] == [1, 1]
    (joined,) = scene.events(WorkerJoined)
    assert (joined.role, joined.facts) == (FOLDER, {"programs": "2"})
    assert 0 <= joined.seconds["ready"] < WAIT_S
    assert not (scene.folder / FOLDER).exists()
    logs = sorted((scene.folder / "logs" / FOLDER).iterdir())
    assert [json.loads(path.read_text()) for path in logs] == [{"reward": 1}] * 2


async def test_its_token_and_its_programs_end_with_it(scene: Scene) -> None:
    async with scene.running(WAITS) as role:
        await scene.until(role, lambda: len(scene.alive) == 2)
        (token,) = scene.gateway.tokens
        assert scene.sources.names == [SOURCE]
        await scene.over()
        await role
        assert (scene.alive, scene.sources.names, scene.sources.admitted(token)) == ([], [], None)
    assert scene.gateway.sealed == {}, "a resumed run continues its sessions"


async def test_a_program_may_have_removed_its_folders(scene: Scene) -> None:
    scene.gateway.wanted_sessions = 1
    async with scene.running("import os, shutil; shutil.rmtree(os.path.dirname(os.getcwd())); " + WAITS) as role:
        await scene.until(role, lambda: len(scene.alive) == 1)
        await scene.over()
        await role


async def test_programs_of_a_role_that_was_killed_are_ended_first(scene: Scene) -> None:
    environment = os.environ | {MARK: str(scene.folder / FOLDER)}
    left = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", env=environment, stdin=subprocess.PIPE)
    async with scene.running(WAITS) as role:
        await scene.until(role, lambda: scene.events(WorkerJoined))
        assert await left.wait() < 0


async def test_it_fails_where_the_gateway_refuses(scene: Scene) -> None:
    scene.gateway.failures = [403] * 2
    async with scene.running(WAITS) as role:
        with pytest.raises(ConfigError, match="403"):
            await role
    assert scene.sources.names == []
