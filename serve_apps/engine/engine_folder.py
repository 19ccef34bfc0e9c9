"""`EngineFolder`: the folder of an engine's processes, and the removal of folders that killed engines left.

    slime-engine-<random>/           in the machine's temporary folder; TMPDIR of the engine's processes
        lock                         held by the process that made the engine; the kernel releases it when that ends
        arguments.json               SGLang's ServerArgs by name
    /dev/shm/sglang_loads_slime-engine-<random>_*.shm

A process that is killed removes nothing. The next engine on the same machine removes the folders that nobody holds.
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
"""How long a folder may exist without a lock: making one takes milliseconds."""


class EngineFolder:
    """A new folder, held until `remove` or the end of this process."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        unseen = self.path / "lock.new"  # not found by others before it is held
        self._lock = os.open(unseen, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unseen.rename(self.path / LOCK)

    def remove(self) -> None:
        """Remove the folder with everything in it. Once."""
        clean(self.path)
        os.close(self._lock)


def clean(folder: Path) -> None:
    """Remove an engine's folder and the shared memory that SGLang never unlinks; its name is the folder's."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in SHARED_MEMORY.glob(f"sglang_loads_{folder.name}_*.shm"):
        path.unlink(missing_ok=True)


def is_abandoned(held: bool | None, age_s: float) -> bool:
    """Whether nobody needs a folder any more. held: by a process that is alive; None where the folder has no lock."""
    return age_s > UNLOCKED_S if held is None else not held


def clear_abandoned() -> list[Path]:
    """Remove the folders that killed engines of this user have left on this machine; returns them."""
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
