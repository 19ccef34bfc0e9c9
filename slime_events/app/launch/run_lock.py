"""`holding`: allow one launcher per run folder, by a file lock that the kernel releases when its holder ends."""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

from schemas.doc import doc
from schemas.errors import RunIsOn
from slime_events.core.run.run_folder import RunFolder
from storage.file_lock import is_locked

MARK = "SLIME_EVENTS_LAUNCH"
"""Environment variable that all processes of a launch inherit: it identifies processes that a killed launcher left."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The launcher that holds a run."""

    pid: int
    mark: Annotated[str, doc("Value of MARK in the environment of its processes, new at each launch")]


@contextlib.contextmanager
def holding(folder: RunFolder) -> Iterator[Holder | None]:
    """Hold the run while inside. Yields the previous holder, which has ended. Raises RunIsOn if another holds it."""
    folder.path.mkdir(parents=True, exist_ok=True)
    file = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            now = _read(file)
            raise RunIsOn(
                f"run {folder.run} is running" + (f", launched by process {now.pid}" if now else "") + ": wait until "
                "it ends, or stop it"
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
    """Whether a launcher on this machine holds the run now."""
    return is_locked(folder.lock)


def holder_of(folder: RunFolder) -> Holder | None:
    """Return the launcher that holds the run now, if any."""
    if not is_held(folder):
        return None
    with folder.lock.open() as file:
        return _read(file.fileno())


def _read(file: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(file, 4096, 0)))
    except (ValueError, TypeError):
        return None
