"""`AgentCommandActor`: the role that starts the programs of `--agent-command`."""

import asyncio
import shlex
import shutil
import time
from pathlib import Path

from schemas.errors import InvalidValue
from serve_apps.http.agent_command.runner import MARK, AgentProgram, Runner, words_of
from serve_apps.http.agent_command.sessions import SessionClient
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Scope, Sources
from slime_events.core.config.agents import AgentSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.join import join_run
from slime_events.core.run.orphans import end_orphans
from slime_events.core.run.run_address import RunAddress
from slime_events.core.run.run_end import until_over
from storage.cancellation import end_all

SOURCE = "agent-command"
"""Source name of its sessions."""
FOLDER = "agents"


class AgentCommandActor:
    """Runs programs with sessions of the run's own gateway. Its token is revoked when it ends."""

    async def run(self, address: RunAddress, settings: TrainSettings) -> None:
        """Run programs until the end of the run. Raises ConfigError if the gateway refuses to open sessions."""
        began, folder, agents = time.perf_counter(), Path(address.folder), settings.agents
        gateway, sources = GatewaySettings.of_run(settings.gateway), Sources(folder)
        program = AgentProgram(
            words_of(agents.agent_command or "", Path.cwd()),
            agents.agent_timeout,
            folder / FOLDER,
            folder / "logs" / FOLDER,
            frozenset(address.secrets),
            frozenset(agents.agent_env),
        )
        async with join_run(address, FOLDER) as worker:
            await asyncio.to_thread(end_orphans, str(program.folder), variable=MARK)
            await worker.join({"ready": time.perf_counter() - began}, {"programs": str(agents.agent_concurrency)})
            async with SessionClient(
                gateway.own_url, address.run, sources.issue(SOURCE, [Scope.SESSIONS]), gateway.tls_cert
            ) as client:
                running = asyncio.create_task(Runner(client, program, agents.agent_concurrency).run())
                ending = asyncio.create_task(until_over(worker))
                try:
                    await asyncio.wait((running, ending), return_when=asyncio.FIRST_COMPLETED)
                    if running.done():
                        raise _first(running)
                finally:
                    await end_all(running, ending)
                    sources.revoke(SOURCE)
            shutil.rmtree(program.folder, ignore_errors=True)


def check_agent_command(agents: AgentSettings) -> None:
    """Raise InvalidValue for a command that cannot be started."""
    command = agents.agent_command or ""
    try:
        first = words_of(command, Path.cwd())[:1]
    except ValueError as error:
        raise InvalidValue(f"--agent-command {shlex.quote(command)} cannot be parsed: {error}") from error
    if not first or shutil.which(first[0]) is None:
        raise InvalidValue(f"--agent-command {shlex.quote(command)}: there is no program {''.join(first)!r} here")


def _first(task: asyncio.Task[None]) -> BaseException:
    error = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error or RuntimeError("the programs ended before the run")
