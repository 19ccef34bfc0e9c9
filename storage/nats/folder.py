"""Folder of a NATS server, and its lock.

nats.conf      its configuration           server.json   pid, url, whether temporary
nats.log       its own log                 server.lock   locked by the server process while it runs
jetstream/     the streams                 roles.json, producer.json, viewer.json   credentials (accounts.py)
certificate.pem, certificate.key    of a server that other machines reach (certificate.py)
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from schemas.doc import doc
from schemas.errors import NoSpace
from storage.nats.ports import HOST, host_of, port_of, with_port

LOCK = "server.lock"
MAX_PAYLOAD = 8 * 1024 * 1024
"""Most bytes of one message; more than the log's largest event."""
OPEN_BATCHES, OPEN_BATCHES_IN_ALL = 2_000, 8_000
"""Most atomic appends in flight, of one stream and of the server. Defaults: 50 and 1,000, which 64 engines exceed,
and refused appends are repeated after a pause.
"""
LEAST_FREE_BYTES = 64 * 1024 * 1024
KEPT_FREE_BYTES = 8 * 1024 * 1024
"""Free bytes of the disk at which the server refuses messages. The launcher ends the run earlier (16 MB)."""


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """Content of `server.json`."""

    pid: int
    url: str
    temporary: Annotated[bool, doc("A reading command started it, and the last reader stops it.")] = False

    @property
    def port(self) -> int:
        """Port on which it listens."""
        return port_of(self.url)

    @property
    def host(self) -> str:
        """Address on which it listens."""
        return host_of(self.url)


def config_text(folder: Path, port: int, max_store_bytes: int, more: str = "", host: str = HOST) -> str:
    """Return the server's configuration. more: further lines, such as for a node of a cluster."""
    return "\n".join(
        (
            f'listen: "{with_port(host, port)}"',
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
    """Return the content of `server.json`, or None if it cannot be read."""
    try:
        return ServerRecord(**json.loads((folder / "server.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the folder's lock; the value is its open file. Raises BlockingIOError if another process holds it."""
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file
    finally:
        os.close(file)


def max_store(folder: Path) -> int:
    """Return the most bytes of the log: its size and almost all free space. Raises NoSpace."""
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        least = f"a start needs {LEAST_FREE_BYTES >> 20} MB"
        raise NoSpace(f"{folder} has {free >> 20} MB free, {least}: free space there, or choose another --runs-dir")
    used = sum(file.stat().st_size for file in (folder / "jetstream").rglob("*") if file.is_file())
    return used + free - KEPT_FREE_BYTES


def log_tail(folder: Path) -> str:
    """Return the end of the server's log in one line."""
    try:
        lines = (folder / "nats.log").read_text(errors="replace").splitlines()
    except OSError:
        return "it left no log"
    return " | ".join(lines[-5:])
