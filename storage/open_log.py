"""Opening the log of a run by its folder, whether its server runs or not.

<run folder>/nats/       the embedded server (storage/nats/server.py)
<run folder>/nats-url    the address of an external server, where the run uses one
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from schemas.errors import DeadlineExceeded, FolderInUse, RunNotFound
from storage.jetstream.log import JetStreamLog
from storage.nats.server import NatsServer

NATS_FOLDER = "nats"
URL_FILE = "nats-url"
LAUNCH_S = 30.0
"""Seconds for readers that are just starting or stopping a server of theirs."""


def record_url(run_folder: Path, url: str) -> None:
    """Note that the run's log is on an external server."""
    (run_folder / URL_FILE).write_text(url + "\n")


@contextlib.asynccontextmanager
async def open_run_log(
    run_folder: Path, run: str | None = None, *, deadline_s: float = 30.0
) -> AsyncIterator[JetStreamLog]:
    """The log of a run, to read. run: its name, by default that of the folder.

    Uses the server that the run has, or starts one on its folder; the last reader stops what readers have started.
    Raises RunNotFound, LogUnavailable, MissingPart.
    """
    name, recorded, folder = run or run_folder.resolve().name, run_folder / URL_FILE, run_folder / NATS_FOLDER
    async with contextlib.AsyncExitStack() as stack:
        if recorded.is_file():
            log = await JetStreamLog.open(recorded.read_text().strip(), name, deadline_s=deadline_s, create=False)
        elif folder.is_dir():
            await stack.enter_async_context(_reader(folder, deadline_s))
            log = await _open_embedded(folder, name, deadline_s)
        else:
            raise RunNotFound(f"{run_folder} is not the folder of a run: it has neither {NATS_FOLDER}/ nor {URL_FILE}")
        stack.push_async_callback(log.close)
        yield log


async def own_server(run_folder: Path) -> NatsServer:
    """The run's server, for its launcher: the live one in its folder, or a new one.

    A server that readers have started is the run's own from here on: they do not stop it. Raises as `NatsServer.start`.
    """
    folder = run_folder / NATS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + LAUNCH_S
    async with _reader(folder, LAUNCH_S):
        while True:
            if (server := NatsServer.adopt(folder)) is not None:
                return server
            try:
                return await NatsServer.start(folder)
            except FolderInUse:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.05)  # a reader is starting one, which will be there to adopt


async def _open_embedded(folder: Path, run: str, deadline_s: float) -> JetStreamLog:
    end = time.monotonic() + deadline_s
    while True:
        try:
            server = NatsServer.attach(folder) or await NatsServer.start(folder, deadline_s=deadline_s, temporary=True)
        except FolderInUse as error:
            if time.monotonic() > end:
                raise DeadlineExceeded(
                    f"the NATS server that another process started in {folder} was not ready in {deadline_s:.0f} s: "
                    "nats.log in that folder says why"
                ) from error
            await asyncio.sleep(0.05)  # another reader is starting one
            continue
        return await JetStreamLog.open(server.url, run, deadline_s=deadline_s, create=False)


@contextlib.asynccontextmanager
async def _reader(folder: Path, deadline_s: float) -> AsyncIterator[None]:
    """A reader of the folder while inside. The last reader stops a server that readers started."""
    file = os.open(folder / "readers.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        await _lock(file, fcntl.LOCK_SH, deadline_s, folder)
        try:
            yield
        finally:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                server = NatsServer.attach(folder)
                if server is not None and server.record.temporary:
                    await server.stop()
    finally:
        os.close(file)


async def _lock(file: int, kind: int, deadline_s: float, folder: Path) -> None:
    end = time.monotonic() + deadline_s
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > end:
                raise DeadlineExceeded(
                    f"{folder} was being stopped by another reader for {deadline_s:.0f} s"
                ) from error
            await asyncio.sleep(0.02)
