"""`Runner`: runs programs, each with a session of its own.

A session's folder is created before the session is opened, and its name is the key that opens the session. If a runner
is killed, the next one finds its folders and opens the same sessions again. Their programs start from the beginning.
"""

import asyncio
import logging
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.redaction import shown
from serve_apps.http.agent_command.outcome import NO_REWARD, Outcome, outcome_of
from serve_apps.http.agent_command.program import run_program
from serve_apps.http.agent_command.sessions import SessionClient
from slime_events.plugins.user_environment import user_environment

log = logging.getLogger(__name__)

MARK = "SLIME_EVENTS_AGENTS"
"""Environment variable of all programs of a run, with the folder of their sessions."""
KEPT_LOGS = 1000
MOST_PAUSE_S = 30.0
"""Longest pause after failed programs; the pause doubles with each consecutive failure."""
CANNOT_START = 127
MOST_ERROR = 300
"""Most characters of a program's last error line in a seal."""
SECRET = ("base_url", "agent_key", "control_key")
"""Fields of an opened session that a program's input does not have."""


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """The command and its environment. Programs run text that a model wrote, so they get no secrets."""

    words: Annotated[tuple[str, ...], doc("command and arguments")]
    timeout_s: float
    folder: Annotated[Path, doc("parent of the sessions' folders")]
    logs: Annotated[Path, doc("folder with an output file for each session")]
    secret: Annotated[frozenset[str], doc("environment variables that the run's settings refer to")] = frozenset()
    passed: Annotated[frozenset[str], doc("secrets that programs get all the same (`--agent-env`)")] = frozenset()


class Runner:
    """Runs up to `concurrency` programs at once. Use each object once."""

    def __init__(self, client: SessionClient, program: AgentProgram, concurrency: int) -> None:
        self._client, self._program, self._concurrency = client, program, concurrency
        self._left: list[str] = []

    async def run(self) -> None:
        """Run programs until this is cancelled, which kills them. Raises ConfigError if sessions cannot be opened."""
        for folder in (self._program.folder, self._program.logs):
            folder.mkdir(parents=True, exist_ok=True)
        self._left = sorted(path.name for path in self._program.folder.iterdir())
        async with asyncio.TaskGroup() as slots:
            for _ in range(self._concurrency):
                slots.create_task(self._serve())

    async def _serve(self) -> None:
        pause = 0.0
        while True:
            key = self._left.pop() if self._left else secrets.token_hex(8)
            folder = self._program.folder / key
            folder.mkdir(exist_ok=True)
            session = await self._client.open(key)
            name, control = session["session"], session["control_key"]
            failed = False
            if await self._client.takes_turns(name, control):
                outcome = await self._make(session, folder)
                if why := await self._client.seal(name, control, outcome.body):
                    log.warning("session %s: the gateway refused its reward: %s", name, why)
                    outcome = Outcome(NO_REWARD, metadata={"error": f"the gateway refused the reward: {why}"})
                    await self._client.seal(name, control, outcome.body)
                failed = outcome.exit_code != 0
            shutil.rmtree(folder, ignore_errors=True)
            self._forget_logs()
            pause = min(max(2 * pause, 1.0), MOST_PAUSE_S) if failed else 0.0
            await asyncio.sleep(pause)

    async def _make(self, session: dict[str, Any], folder: Path) -> Outcome:
        name, began = session["session"], time.monotonic()
        output = self._program.logs / f"{name}.log"
        for path in folder.iterdir():  # files of a program that was killed with its runner
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        try:
            ended = await run_program(
                self._program.words,
                folder=folder,
                log=output,
                variables=os_variables(self._program.secret, self._program.passed)
                | variables_of(session)
                | {MARK: str(self._program.folder)},
                task=msgspec.json.encode({field: value for field, value in session.items() if field not in SECRET}),
                timeout_s=self._program.timeout_s,
            )
            outcome = outcome_of(ended.exit_code, ended.last_line)
            if outcome.exit_code and "error" not in outcome.metadata and ended.last_error:
                why = f"{shown(ended.last_error, MOST_ERROR)} (outputs are in {self._program.logs})"
                outcome = replace(outcome, metadata=outcome.metadata | {"error": why})
        except OSError as error:
            outcome = Outcome(CANNOT_START, metadata={"error": f"{self._program.words[0]} cannot be started: {error}"})
        if outcome.exit_code:
            why = outcome.metadata.get("error", f"exit code {outcome.exit_code}")
            log.warning("session %s: %s after %.1f s, see %s", name, why, time.monotonic() - began, output)
        return outcome

    def _forget_logs(self) -> None:
        logs = sorted(self._program.logs.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in logs[:-KEPT_LOGS]:
            path.unlink(missing_ok=True)


def variables_of(session: dict[str, Any]) -> dict[str, str]:
    """Return the environment variables by which model clients find a session."""
    url, key = str(session["base_url"]), str(session["agent_key"])
    return {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": key,
        "SLIME_EVENTS_SESSION": str(session["session"]),
    }


def os_variables(secret: Collection[str], passed: Collection[str] = ()) -> dict[str, str]:
    """Return the run's environment without secrets and Ray's variables, because a program may use Ray itself.

    passed: variables that are kept all the same.
    """
    left_out = {name for name in os.environ if name.startswith("RAY_") or name in secret} - {*passed}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return user_environment(kept, passed)


def words_of(command: str, folder: Path) -> tuple[str, ...]:
    """Split a command, with files of `folder` as absolute paths, because a program runs in another folder."""
    words: Sequence[str] = shlex.split(command)
    return tuple(str(folder / word) if "/" not in word[:1] and (folder / word).exists() else word for word in words)
