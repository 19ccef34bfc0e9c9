"""The folder of a NATS server, and its lock.

nats.conf      its configuration           server.json   pid, url, whether temporary
nats.log       its own log                 server.lock   locked by the server process while it lives
jetstream/     the streams                 roles.json, producer.json, viewer.json   credentials (accounts.py)
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import NoSpace
from storage.nats.ports import HOST, port_of

LOCK = "server.lock"
MAX_PAYLOAD = 8 * 1024 * 1024
"""Bytes of one message; more than the log's largest event."""
OPEN_BATCHES, OPEN_BATCHES_IN_ALL = 2_000, 8_000
"""Atomic appends that may be under way at a time, of one stream and of the server. By default 50 and 1,000: 64 engines
pass that, and what is refused comes again after a pause.
"""
LEAST_FREE_BYTES = 64 * 1024 * 1024
KEPT_FREE_BYTES = 8 * 1024 * 1024
"""Of the disk, at which the server refuses what it could not store. The launcher ends the run before (16 MB)."""


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """`server.json`. temporary: started by a reading command, to be stopped by the last reader."""

    pid: int
    url: str
    temporary: bool = False

    @property
    def port(self) -> int:
        """Where it listens."""
        return port_of(self.url)


def config_text(folder: Path, port: int, max_store_bytes: int, more: str = "") -> str:
    """The server's configuration. more: lines for a node of a cluster."""
    return "\n".join(
        (
            f'listen: "{HOST}:{port}"',
            f"max_payload: {MAX_PAYLOAD}",
            "max_pending: 256MB",
            'write_deadline: "30s"',
            f"log_file: {json.dumps(str(folder / 'nats.log'))}",
            f"ports_file_dir: {json.dumps(str(folder))}",
            "jetstream {",
            f"  store_dir: {json.dumps(str(folder))}",
            "  sync_interval: always",
            f"  max_file_store: {max_store_bytes}",
            "  limits { batch {"
            f" max_inflight_per_stream: {OPEN_BATCHES}, max_inflight_total: {OPEN_BATCHES_IN_ALL} "
            "} }",
            "}",
            more,
        )
    )


def read_record(folder: Path) -> ServerRecord | None:
    """`server.json` in the folder, if it can be read."""
    try:
        return ServerRecord(**json.loads((folder / "server.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """The folder's lock as an open file; BlockingIOError where another process has it."""
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file
    finally:
        os.close(file)


def max_store(folder: Path) -> int:
    """Bytes that the log may have in all: its present size, and all that is free but a little. Raises NoSpace."""
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        least = f"{LEAST_FREE_BYTES >> 20} MB are the least to start with"
        raise NoSpace(f"{folder} has {free >> 20} MB free, {least}: make room there, or choose another --runs-dir")
    used = sum(file.stat().st_size for file in (folder / "jetstream").rglob("*") if file.is_file())
    return used + free - KEPT_FREE_BYTES


def log_tail(folder: Path) -> str:
    """The end of the server's log, on one line."""
    try:
        lines = (folder / "nats.log").read_text(errors="replace").splitlines()
    except OSError:
        return "it left no log"
    return " | ".join(lines[-5:])
