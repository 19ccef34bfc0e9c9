"""`is_locked`: whether a process holds a lock file. The kernel releases the lock however its holder ends."""

import fcntl
import os
from pathlib import Path


def is_locked(lock: Path) -> bool:
    """Return whether a process holds the lock; False without the file. Concurrent calls do not affect each other."""
    try:
        file = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
