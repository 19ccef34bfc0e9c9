"""`holding`: one launcher per run folder, kept by the kernel: a lock that ends with its holder, however it ends."""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from schemas.errors import RunIsOn
from slime_events.core.run.run_folder import RunFolder
from storage.file_lock import is_locked

MARK = "SLIME_EVENTS_LAUNCH"
"""All processes of a launch inherit this variable: it identifies what a killed launcher has left."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a run. mark: the value of MARK in the environment of everything that it starts, new at each launch."""

    pid: int
    mark: str


@contextlib.contextmanager
def holding(folder: RunFolder) -> Iterator[Holder | None]:
    """Hold the run while inside; gives the holder before, which is gone. Raises RunIsOn where another holds it."""
    folder.path.mkdir(parents=True, exist_ok=True)
    file = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            now = _read(file)
            raise RunIsOn(
                f"run {folder.run} is on" + (f", launched by process {now.pid}" if now else "") + ": wait for its end, "
                "or stop it"
            ) from None
        before, mine = _read(file), Holder(os.getpid(), secrets.token_hex(16))
        os.truncate(file, 0)
        os.pwrite(file, json.dumps(asdict(mine)).encode(), 0)
        outer = os.environ.get(MARK)
        os.environ[MARK] = mine.mark
        try:
            yield before
        finally:
            os.environ.pop(MARK)
            if outer is not None:
                os.environ[MARK] = outer
    finally:
        os.close(file)


def is_held(folder: RunFolder) -> bool:
    """Whether a launcher holds the run now."""
    return is_locked(folder.lock)


def holder_of(folder: RunFolder) -> Holder | None:
    """The launcher that holds the run now."""
    if not is_held(folder):
        return None
    with folder.lock.open() as file:
        return _read(file.fileno())


def _read(file: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(file, 4096, 0)))
    except (ValueError, TypeError):
        return None
