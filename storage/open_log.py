"""Open the log of a run by its folder, even if its server is not running.

<run folder>/nats/       the embedded server (storage/nats/server.py), with its credentials
<run folder>/nats-url    an external server, if the run uses one: its URL, and on a second line paths of files
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from schemas.errors import DeadlineExceeded, FolderInUse, RunNotFound, SlimeEventsError
from storage.cancellation import end_all
from storage.jetstream.address import NatsAddress, NatsPlace
from storage.jetstream.log import JetStreamLog
from storage.nats.accounts import Access, guard
from storage.nats.ports import HOST, freed
from storage.nats.server import NatsServer

NATS_FOLDER = "nats"
URL_FILE = "nats-url"
READERS = "readers.lock"
ARCHIVE_FOLDER = "archive"
"""Folder of the archive, if a run's folder was moved with its archive in it."""
_NO_FILES = '{"url":""}'
LAUNCH_S = 30.0
"""Seconds to wait for readers that are starting or stopping a server."""
LOOK_S = 0.5
"""Seconds between checks that the server runs. A run's launcher checks more often, and mostly restarts it first."""
_log = logging.getLogger(__name__)


def record_place(run_folder: Path, place: NatsPlace) -> None:
    """Record that the run's log is on an external server, with absolute paths of its credential files."""
    paths = {name: path and str(Path(path).absolute()) for name, path in structs.asdict(place).items() if name != "url"}
    files = msgspec.json.encode(NatsPlace(url="", **paths)).decode()
    (run_folder / URL_FILE).write_text(f"{place.url}\n" + (f"{files}\n" if files != _NO_FILES else ""))


def recorded_place(run_folder: Path, creds: str | None = None) -> NatsPlace | None:
    """Return the external server of the run's log, or None if the run has its own server.

    creds: a credentials file that replaces the recorded one of the roles.
    """
    try:
        url, _, files = (run_folder / URL_FILE).read_text().strip().partition("\n")
    except FileNotFoundError:
        return None
    place = msgspec.json.decode(files or _NO_FILES, type=NatsPlace)
    return structs.replace(place, url=url, creds=creds or place.creds)


def live_address(run_folder: Path, access: Access, creds: str | None = None) -> NatsAddress | None:
    """Return the address of the run's server, or None if none is running, or only one that readers started.

    creds: see `recorded_place`.
    """
    if (place := recorded_place(run_folder, creds)) is not None:
        return place.address()
    server = NatsServer.attach(run_folder / NATS_FOLDER)
    return None if server is None or server.record.temporary else server.address(access)


@contextlib.asynccontextmanager
async def open_run_log(
    run_folder: Path,
    run: str | None = None,
    *,
    deadline_s: float = 30.0,
    access: Access | None = None,
    creds: str | None = None,
) -> AsyncIterator[JetStreamLog]:
    """Open the log of a run for reading.

    run: its name, by default the folder's. access: credentials for the run's own server; None: a viewer's, or, for a
    server that readers started, the roles', which can read in bulk. creds: see `recorded_place`.

    It uses the run's server, or starts one on its folder, and restarts it if it dies. The last reader stops a server
    that readers have started. Raises RunNotFound, LogUnavailable, AccessDenied, MissingPart.
    """
    name, folder = run or run_folder.resolve().name, run_folder / NATS_FOLDER
    opening: dict[str, Any] = {"archive_url": str(run_folder / ARCHIVE_FOLDER), "create": False}
    async with contextlib.AsyncExitStack() as stack:
        if (place := recorded_place(run_folder, creds)) is not None:
            log = await JetStreamLog.open(place.address(), name, deadline_s=deadline_s, **opening)
        elif folder.is_dir():
            lock = await stack.enter_async_context(_reader(folder, deadline_s))
            server = await _reading_server(folder, name, deadline_s)
            await stack.enter_async_context(_kept(server, lock))
            chosen = access or (Access.ROLES if server.record.temporary else Access.VIEWER)
            log = await JetStreamLog.open(server.address(chosen), name, deadline_s=deadline_s, **opening)
        else:
            raise RunNotFound(f"{run_folder} is not the folder of a run: it has neither {NATS_FOLDER}/ nor {URL_FILE}")
        stack.push_async_callback(log.close)
        yield log


@contextlib.contextmanager
def keeping_server(run_folder: Path) -> Iterator[None]:
    """Within the context, keep a server that readers start: for a long log a start takes a second and more.

    Enter it outside of any event loop. Raises DeadlineExceeded, RunNotFound.
    """
    folder = run_folder / NATS_FOLDER
    if not folder.is_dir():
        yield
        return
    with asyncio.Runner() as runner:
        reader = _reader(folder, LAUNCH_S)
        runner.run(reader.__aenter__())
        try:
            yield
        finally:
            runner.run(reader.__aexit__(None, None, None))


@contextlib.contextmanager
def unread(run_folder: Path) -> Iterator[None]:
    """Within the context, readers wait and start no server. Raises FolderInUse if the run is being read."""
    lock = run_folder / NATS_FOLDER / READERS
    if not lock.exists():  # it never had its own server
        yield
        return
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"the run in {run_folder} is being read") from None
        yield


async def own_server(
    run_folder: Path, run: str, *, agents: bool = False, port: int | None = None, host: str = HOST
) -> NatsServer:
    """Return the run's server for its launcher: the running one in its folder, or a new one.

    A server of older code that accepts clients without credentials is restarted with credentials. agents: see `guard`.
    port: the port that the run's processes use; None: any, before there are such processes. host: address that they
    use. A running server with another address is restarted.

    A server that readers have started becomes the run's own: they do not stop it. Raises as `NatsServer.start`,
    DeadlineExceeded and RunNotFound.
    """
    folder = run_folder / NATS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    end, is_new = time.monotonic() + LAUNCH_S, False
    async with _reader(folder, LAUNCH_S):
        while True:
            server = NatsServer.attach(folder)
            is_new |= guard(folder, run, agents=agents)
            if server is not None and not is_new and port in (None, server.port) and server.host == host:
                server.adopt()
                return server
            if server is not None:
                if port not in (None, server.port):
                    await freed(port, host)  # its readers keep it until then
                await server.stop()
            try:
                return await NatsServer.start(folder, port=port, host=host)
            except FolderInUse:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.05)  # a reader is starting a server, which is then adopted


async def _reading_server(folder: Path, run: str, deadline_s: float) -> NatsServer:
    end = time.monotonic() + deadline_s
    while True:
        if (server := NatsServer.attach(folder)) is not None:
            return server
        guard(folder, run)
        try:
            return await NatsServer.start(folder, deadline_s=deadline_s, temporary=True)
        except FolderInUse as error:
            if time.monotonic() > end:
                raise DeadlineExceeded(
                    f"the NATS server that another process started in {folder} was not ready in {deadline_s:.0f} s: "
                    "nats.log in that folder says why"
                ) from error
            await asyncio.sleep(0.05)  # another reader is starting one


@contextlib.asynccontextmanager
async def _kept(server: NatsServer, lock: int) -> AsyncIterator[None]:
    """Within the context, restart a server that dies, at its port: the run's launcher may have died too.

    lock: the reader's open lock file.
    """
    keeping = asyncio.create_task(_keep(server, lock), name="keep-nats-for-a-reader")
    try:
        yield
    finally:
        await end_all(keeping)


async def _keep(server: NatsServer, lock: int) -> None:
    logged = ""
    while True:
        await asyncio.sleep(LOOK_S)
        if NatsServer.attach(server.folder) is not None:
            continue
        try:
            if not _is_of(lock, server.folder):
                return  # the run was removed; another run may have its name
            server = await NatsServer.start(server.folder, port=server.port, temporary=True, host=server.host)
        except FolderInUse:
            continue  # its launcher or another reader is starting it
        except (SlimeEventsError, OSError) as error:
            if str(error) != logged:
                logged = str(error)
                _log.warning("the NATS server of %s cannot be started, retrying: %s", server.folder, error)


@contextlib.asynccontextmanager
async def _reader(folder: Path, deadline_s: float) -> AsyncIterator[int]:
    """Register a reader of the folder; the value is its lock. The last reader stops a server that readers started."""
    file = os.open(folder / READERS, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        await _lock(file, fcntl.LOCK_SH, deadline_s, folder)
        if not _is_of(file, folder):
            raise RunNotFound(f"{folder} was removed just now")
        try:
            yield file
        finally:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                server = NatsServer.attach(folder)
                if server is not None and server.record.temporary:
                    await server.stop()
    finally:
        os.close(file)


def _is_of(lock: int, folder: Path) -> bool:
    """Return whether the open lock belongs to the folder, and not to a removed folder of the same name."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(folder / READERS))
    except FileNotFoundError:
        return False


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
