"""`console_offered`: the console of a run that is on.

The launcher only listens. The first request starts the console in a process of its own, so a run that nobody looks at
does not pay for it. The run neither waits for the console nor fails with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote

from slime_events.core.child.process import Child
from slime_events.core.run.own_python import own_command, own_path
from slime_events.core.run.run_folder import RunFolder
from storage.cancellation import end_all

HOST = "127.0.0.1"
PORTS = range(8601, 8700)
"""Ports to try; 8600 is the one of `slime-events console`."""
END_S = 3.0
FIRST_PAUSE_S, MOST_PAUSE_S = 5.0, 600.0
"""Seconds before a failed console may start again; the pause doubles."""


@contextlib.asynccontextmanager
async def console_offered(port: int | None, folder: RunFolder, note: Callable[[str], None]) -> AsyncIterator[None]:
    """Offer a console while inside. port: 0 for none; None for a free one. note: takes messages for the user."""
    listening = _listening(port, folder, note)
    if listening is None:
        yield
        return
    with listening:
        token = secrets.token_urlsafe(16)
        # A browser sends no request with what follows `#`, so the token appears in no log of a proxy.
        note(f"console: http://{HOST}:{listening.getsockname()[1]}/runs/{quote(folder.run)}/now#token={token}")
        offering = asyncio.create_task(_offer(listening, folder, token, note), name="offer-console")
        try:
            yield
        finally:
            await end_all(offering)


def _listening(port: int | None, folder: RunFolder, note: Callable[[str], None]) -> socket.socket | None:
    """Return a socket at `port`, or at a free one; None without a console."""
    if port == 0:
        return None
    reason = ""
    for candidate in (*PORTS, 0) if port is None else (port,):
        try:
            return socket.create_server((HOST, candidate))
        except OSError as error:
            reason = f"{HOST}:{candidate}: cannot listen there: {error.strerror}"
            if error.errno != errno.EADDRINUSE:
                break
    note(f"note: no console: {reason}; the run continues, and `slime-events console {folder.named}` shows it")
    return None


async def _offer(listening: socket.socket, folder: RunFolder, token: str, note: Callable[[str], None]) -> None:
    pause, log = FIRST_PAUSE_S, folder.logs / "console.log"
    while True:
        await _readable(listening)
        try:
            ended = await _serve(listening, folder, token)
        except OSError as error:
            ended = f"cannot be started: {error.strerror}"
        note(f"console: it {ended} (output in {log}); the run continues, and a request starts it in {pause:.0f} s")
        await asyncio.sleep(pause)
        pause = min(2 * pause, MOST_PAUSE_S)


async def _serve(listening: socket.socket, folder: RunFolder, token: str) -> str:
    """Serve until the console's process ends, and return how it ended. It dies with the launcher."""
    with (folder.logs / "console.log").open("ab") as output:
        child = await asyncio.to_thread(
            Child,
            own_command("slime_events.app.cli.console_of_run"),
            (str(listening.fileno()), str(folder.path.parent)),
            environment=os.environ | own_path(),
            output=output,
            descriptors=(listening.fileno(),),
        )
    try:
        child.connection.sendall(token.encode() + b"\n")
        await _readable(child.connection)
        await asyncio.to_thread(child.wait, END_S)  # its connection closes a little before it has ended
        return child.ending()
    finally:
        child.close()
        await asyncio.shield(asyncio.to_thread(child.end, END_S))


async def _readable(channel: socket.socket) -> None:
    """Wait until a connection or data arrives at a socket, or its other end is closed."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(channel, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(channel)
