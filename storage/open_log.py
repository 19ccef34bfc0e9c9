"""Opening the log of a run by its folder, whether its server runs or not.

<run folder>/nats/       the embedded server (storage/nats/server.py), with its credentials
<run folder>/nats-url    an external server, where the run uses one: its URL, and on a second line paths of files
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
from storage.nats.ports import freed
from storage.nats.server import NatsServer

NATS_FOLDER = "nats"
URL_FILE = "nats-url"
READERS = "readers.lock"
ARCHIVE_FOLDER = "archive"
"""Where the archive is, if a run's folder was moved with its archive in it."""
_NO_FILES = '{"url":""}'
LAUNCH_S = 30.0
"""Seconds for readers that are just starting or stopping a server of theirs."""
LOOK_S = 0.5
"""Seconds between looks at whether the server lives. A run's launcher looks more often, and mostly is first."""
_log = logging.getLogger(__name__)


def record_place(run_folder: Path, place: NatsPlace) -> None:
    """Note that the run's log is on an external server, and with which files, from any working directory."""
    paths = {name: path and str(Path(path).absolute()) for name, path in structs.asdict(place).items() if name != "url"}
    files = msgspec.json.encode(NatsPlace(url="", **paths)).decode()
    (run_folder / URL_FILE).write_text(f"{place.url}\n" + (f"{files}\n" if files != _NO_FILES else ""))


def recorded_place(run_folder: Path, creds: str | None = None) -> NatsPlace | None:
    """The external server that the run's log is on; None where it has one of its own. creds: a file of credentials in
    the place of the roles', which are recorded.
    """
    try:
        url, _, files = (run_folder / URL_FILE).read_text().strip().partition("\n")
    except FileNotFoundError:
        return None
    place = msgspec.json.decode(files or _NO_FILES, type=NatsPlace)
    return structs.replace(place, url=url, creds=creds or place.creds)


def live_address(run_folder: Path, access: Access, creds: str | None = None) -> NatsAddress | None:
    """Where and as whom to connect to the run's server now; None where none of its own lives, but for readers. creds:
    see `recorded_place`.
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
    """The log of a run, to read. run: its name, by default that of the folder. access: to a server of the run's own;
    None: a viewer's, or, where only readers are there, the roles', which read in bulk. creds: see `recorded_place`.

    Uses the server that the run has, or starts one on its folder, again where it dies; the last reader stops what
    readers have started.
    Raises RunNotFound, LogUnavailable, AccessDenied, MissingPart.
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
    """While inside, a server that readers start in a run's folder stays for the next: over a long log a start takes a
    second and more. Enter it where no event loop runs. Raises DeadlineExceeded, RunNotFound.
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
    """While inside, nobody reads the run or starts its server: who comes waits. Raises FolderInUse where it is read."""
    lock = run_folder / NATS_FOLDER / READERS
    if not lock.exists():  # it never had a server of its own
        yield
        return
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"the run in {run_folder} is being read") from None
        yield


async def own_server(run_folder: Path, run: str, *, agents: bool = False, port: int | None = None) -> NatsServer:
    """The run's server, for its launcher: the live one in its folder, or a new one. It admits nobody without
    credentials; one that does, since older code started it, is started again. agents: see `guard`. port: where the
    run's processes look for it, and nowhere else; None: before there are any.

    A server that readers have started is the run's own from here on: they do not stop it. Raises as `NatsServer.start`,
    DeadlineExceeded and RunNotFound.
    """
    folder = run_folder / NATS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    end, is_new = time.monotonic() + LAUNCH_S, False
    async with _reader(folder, LAUNCH_S):
        while True:
            server = NatsServer.attach(folder)
            is_new |= guard(folder, run, agents=agents)
            if server is not None and not is_new and port in (None, server.port):
                server.adopt()
                return server
            if server is not None:
                if port not in (None, server.port):
                    await freed(port)  # until then its readers may as well keep it
                await server.stop()
            try:
                return await NatsServer.start(folder, port=port)
            except FolderInUse:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.05)  # a reader is starting one, which will be there to adopt


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
    """While inside, a server that dies is there again, at its port: a run's launcher may have died as well. lock: the
    reader's, open.
    """
    keeping = asyncio.create_task(_keep(server, lock), name="keep-nats-for-a-reader")
    try:
        yield
    finally:
        await end_all(keeping)


async def _keep(server: NatsServer, lock: int) -> None:
    told = ""
    while True:
        await asyncio.sleep(LOOK_S)
        if NatsServer.attach(server.folder) is not None:
            continue
        try:
            if not _is_of(lock, server.folder):
                return  # the run was removed; another may have its name
            server = await NatsServer.start(server.folder, port=server.port, temporary=True)
        except FolderInUse:
            continue  # its launcher or another reader is starting it
        except (SlimeEventsError, OSError) as error:
            if str(error) != told:
                told = str(error)
                _log.warning("the NATS server of %s cannot be started, and is tried again: %s", server.folder, error)


@contextlib.asynccontextmanager
async def _reader(folder: Path, deadline_s: float) -> AsyncIterator[int]:
    """A reader of the folder while inside; gives its lock. The last reader stops a server that readers started."""
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
    """Whether the open lock is that of the folder, and not of a removed one that had its name."""
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
