"""`EngineFolder`: where an engine's processes put what they need, and who clears up after those that were killed.

    slime-engine-<random>/           in the machine's temporary folder; TMPDIR of the engine's processes
        lock                         held by the process that made the engine: the kernel lets go with its end
    /dev/shm/sglang_loads_slime-engine-<random>_*.shm

A process that is killed removes nothing. Whoever starts an engine on the same machine next removes what nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from storage.file_lock import is_locked

PREFIX = "slime-engine-"
LOCK = "lock"
SHARED_MEMORY = Path("/dev/shm")
UNLOCKED_S = 3600.0
"""How long a folder may be without a lock: its maker needs milliseconds for it."""


class EngineFolder:
    """A new folder, held until `remove` or the end of this process."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        unseen = self.path / "lock.new"  # nobody may find it before it is held
        self._lock = os.open(unseen, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unseen.rename(self.path / LOCK)

    def remove(self) -> None:
        """With everything in it. Once."""
        clean(self.path)
        os.close(self._lock)


def clean(folder: Path) -> None:
    """Remove an engine's folder and the shared memory that SGLang never unlinks; its name is the folder's."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in SHARED_MEMORY.glob(f"sglang_loads_{folder.name}_*.shm"):
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Found:
    """A folder of an engine as it was seen. held: by a process that lives; None where it has no lock."""

    path: Path
    held: bool | None
    age_s: float


def abandoned(found: Iterable[Found]) -> list[Path]:
    """Those that nobody needs any more."""
    return [one.path for one in found if one.held is False or (one.held is None and one.age_s > UNLOCKED_S)]


def clear_abandoned() -> list[Path]:
    """Remove what killed engines of this user have left on this machine; what that was."""
    left = abandoned(_found())
    for folder in left:
        clean(folder)
    return left


def _found() -> Iterator[Found]:
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            about = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid():
            yield Found(path, is_locked(path / LOCK), time.time() - about.st_mtime)
