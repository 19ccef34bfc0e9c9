"""`memory_place`: the folder in this host's memory for a run's weight versions that are not stored yet.

It lies in a tmpfs, which outlives processes that are killed. A run that ends has stored its versions, and removes it.
"""

import hashlib
import os
from pathlib import Path

MEMORY = Path("/dev/shm")


def memory_place(run: str, url: str, memory: Path = MEMORY) -> Path | None:
    """Return the folder of a run that stores its versions at `url`; None if this host has no such memory."""
    if not memory.is_dir():
        return None
    name = hashlib.sha256(f"{run} {url}".encode()).hexdigest()[:16]
    return memory / f"slime-events-weights-{os.getuid()}-{name}"
