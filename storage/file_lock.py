"""`is_locked`: whether a living process holds a lock file. The kernel lets go of it however its holder ends."""

import fcntl
import os
from pathlib import Path


def is_locked(lock: Path) -> bool:
    """Not, where there is no such file. Does not wait; processes that ask at the same time do not see each other."""
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
