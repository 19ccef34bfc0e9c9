"""What lies in the folder of a NATS server, and who may have it.

nats.conf      what it runs with           server.json   pid, url, whether temporary
nats.log       what it says                server.lock   locked by the server process as it lives
jetstream/     the log itself
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import NoSpace
from storage import file_lock
from storage.nats.ports import HOST

LOCK = "server.lock"
MAX_PAYLOAD = 8 * 1024 * 1024
"""Bytes of one message; above what the log stores as one event."""
LEAST_FREE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What `server.json` says. temporary: started by a reading command, to be stopped by the last one that reads."""

    pid: int
    url: str
    temporary: bool = False


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
            "}",
            more,
        )
    )


def facts_of(folder: Path) -> ServerFacts | None:
    """What `server.json` in the folder says, if it can be read."""
    try:
        return ServerFacts(**json.loads((folder / "server.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def is_locked(folder: Path) -> bool:
    """Whether a live server holds the folder."""
    return bool(file_lock.is_locked(folder / LOCK))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """The folder's lock as an open file; BlockingIOError where another process has it."""
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file
    finally:
        os.close(file)


def room(folder: Path) -> int:
    """Bytes that the log may have in all: what it has, and nearly what is free."""
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        least = f"{LEAST_FREE_BYTES >> 20} MB are the least to start with"
        raise NoSpace(f"{folder} has {free >> 20} MB free, {least}: make room there, or choose another --runs-dir")
    used = sum(file.stat().st_size for file in (folder / "jetstream").rglob("*") if file.is_file())
    return used + free * 19 // 20


def last_words(folder: Path) -> str:
    """The end of the server's log, on one line."""
    try:
        lines = (folder / "nats.log").read_text(errors="replace").splitlines()
    except OSError:
        return "it left no log"
    return " | ".join(line for line in lines[-5:])
