"""`main`: the console that a launcher offers. See `slime_events.app.launch.offered_console`."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from pathlib import Path

import uvloop

from serve_apps.http.console.serving import ConsoleServer
from serve_apps.http.gateway.listening import undelayed
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import OneToken, Scope
from slime_events.app.cli.console_runs import ServedRuns
from slime_events.core.child.inside import connect, connection_of
from slime_events.core.run.process_environment import NICE_BACKGROUND, yield_to_others


def main(descriptor: str, parent: str, listening: str, runs_dir: str) -> None:
    """Serve all runs of a folder until the launcher closes its connection, whose first line is the token.

    descriptor, parent: of a `Child`. listening: descriptor of the socket, at which the first request waits.
    """
    connection = connect(descriptor, parent)
    yield_to_others(NICE_BACKGROUND)
    with connection.makefile("rb") as lines:
        token = lines.readline().decode().rstrip("\n")
    logging.basicConfig(level=logging.WARNING)
    tokens = OneToken(token, "reader", (Scope.VIEW,))
    with undelayed(connection_of(listening)) as requests, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        host, port = requests.getsockname()[:2]
        settings = GatewaySettings(host=host, port=port)
        server = ConsoleServer(ServedRuns(Path(runs_dir)), settings, tokens, stop_s=0)  # the end of a run does not wait
        runner.run(_serve(server, requests, connection))


async def _serve(server: ConsoleServer, requests: socket.socket, connection: socket.socket) -> None:
    asyncio.get_running_loop().add_reader(connection, _stop, server, connection)
    await server.serve(requests)


def _stop(server: ConsoleServer, connection: socket.socket) -> None:
    asyncio.get_running_loop().remove_reader(connection)
    server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
