"""`EngineFolder`: the folder of an engine's processes, and the removal of folders left by killed engines.

    slime-engine-<random>/           in the machine's temporary folder; TMPDIR of the engine's processes
        lock                         held by the process that created the engine; the kernel releases it at its end
        arguments.json               SGLang's ServerArgs by name
    /dev/shm/sglang_loads_slime-engine-<random>_*.shm

A killed process removes nothing. The next engine on the same machine removes the folders without a living owner.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from storage.file_lock import is_locked

PREFIX = "slime-engine-"
LOCK = "lock"
ARGUMENTS = "arguments.json"
SHARED_MEMORY = Path("/dev/shm")
UNLOCKED_S = 3600.0
"""How long a folder may exist without a lock file, which takes milliseconds to create [s]."""


class EngineFolder:
    """A new folder, locked until `remove` or the end of this process."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        unseen = self.path / "lock.new"  # other processes do not see it before it is locked
        self._lock = os.open(unseen, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unseen.rename(self.path / LOCK)

    def remove(self) -> None:
        """Remove the folder with its content. Call it once."""
        clean(self.path)
        os.close(self._lock)


def clean(folder: Path) -> None:
    """Remove an engine's folder, and the shared memory with its name, which SGLang never unlinks."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in SHARED_MEMORY.glob(f"sglang_loads_{folder.name}_*.shm"):
        path.unlink(missing_ok=True)


def is_abandoned(held: bool | None, age_s: float) -> bool:
    """Return whether a folder is no longer needed. `held`: whether a living process holds its lock; None
    without one.
    """
    return age_s > UNLOCKED_S if held is None else not held


def clear_abandoned() -> list[Path]:
    """Remove the folders that killed engines of this user have left on this machine, and return them."""
    removed = []
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            about = path.lstat()
        except FileNotFoundError:
            continue
        is_own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
        if is_own and is_abandoned(is_locked(path / LOCK), time.time() - about.st_mtime):
            clean(path)
            removed.append(path)
    return removed
