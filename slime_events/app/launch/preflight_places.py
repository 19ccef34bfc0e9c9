"""Folders that a run will write, and servers that it will call: tried before it starts."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import fsspec

from schemas.errors import InvalidValue
from slime_events.core.config.settings import TrainSettings

KNOCK_S = 2.0
"""Seconds in which a server has to take a connection, all its addresses together."""
PORTS = {"nats": 4222, "tls": 4222, "ray": 10001, "http": 80, "https": 443}
Check = Callable[[], None]


def check_folders(settings: TrainSettings) -> Iterator[tuple[str, Check]]:
    """For each folder or store that a new run will write, and each checkpoint that it begins with."""
    run, trainer = settings.run, settings.trainer
    yield "--runs-dir", lambda: _check_writable(run.runs_dir)
    for flag, url in (("--archive-url", run.archive_url), ("--blob-url", run.blob_url), ("--save", trainer.save)):
        if url:
            yield flag, lambda url=url: _check_writable(url)  # type: ignore[misc]
    if run.archive_url:
        yield "--archive-url", lambda: _check_unused(run.archive_url or "", run.run)
    if trainer.load:
        yield "--load", lambda: _check_checkpoint(trainer.load or "")


def check_servers(settings: TrainSettings) -> Iterator[tuple[str, Check]]:
    """For each server of somebody else."""
    run, reward = settings.run, settings.reward
    if run.nats_url:
        yield "--nats-url", lambda: _knock(run.nats_url or "")
    if run.ray_address and run.ray_address not in ("auto", "local"):
        yield "--ray-address", lambda: _knock(run.ray_address or "")
    if reward.rm_url and not settings.debug.debug_train_only:
        yield "--rm-url", lambda: _knock(reward.rm_url or "")


def _check_writable(url: str) -> None:
    """A folder of this machine may be there or be made; of a store it is known how to reach it."""
    scheme, _, rest = url.rpartition("://")
    if scheme not in ("", "file"):
        try:
            fsspec.get_filesystem_class(scheme.partition("::")[0])
        except (ImportError, ValueError) as error:
            raise InvalidValue(f"{url} cannot be opened: {error}") from error
        return
    place = Path(rest).absolute()
    above = next(one for one in (place, *place.parents) if one.exists() or one.is_symlink())
    if not above.is_dir():
        raise InvalidValue(f"{url} cannot be a folder: {above} is a file")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InvalidValue(f"{url} cannot be written: {above} belongs to somebody else")


def _check_unused(url: str, run: str) -> None:
    """The archive of another run of that name would be gone on with."""
    from storage.archive.reader import ArchiveReader

    if last := ArchiveReader(url, run).last:
        raise InvalidValue(
            f"{url}/{run} holds the archive of a run of that name, to position {last}: choose another name with --run"
        )


def _check_checkpoint(folder: str) -> None:
    path = Path(folder)
    if not (path / "trainer.json").is_file() and not (path / "config.json").is_file():
        there = "is not there" if not path.exists() else "is neither a trainer checkpoint nor a Hugging Face folder"
        raise InvalidValue(f"--load {folder} {there}: give one of <run>/checkpoints, or the folder of a model")


def _knock(urls: str) -> None:
    """One address of those with commas has to take a connection."""
    addresses = [_address(url.strip()) for url in urls.split(",")]
    reasons = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), timeout=KNOCK_S / len(addresses)).close()
        except OSError as error:
            reasons.append(f"{host}:{port} {error.strerror or error}")
        else:
            return
    raise InvalidValue(f"nobody answers at {urls} ({', '.join(reasons)}): start that server, or mend the address")


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        host, port = parts.hostname, parts.port or PORTS.get(parts.scheme)
    except ValueError as error:
        raise InvalidValue(f"{url} is no address: {error}") from error
    if not host or not port:
        raise InvalidValue(f"{url} is no address: give host:port")
    return host, port
