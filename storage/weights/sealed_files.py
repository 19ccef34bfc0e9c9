"""Sealed files in memory: a copy of a file's bytes that processes of a host map, and that nobody can change any more.

Such a file has no name in any folder. The kernel frees it when the last process that holds it has ended, however it
ends, so nothing is left in /dev/shm.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path

from schemas.errors import WeightsDamaged

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def copy_sealed(path: Path) -> int:
    """Copy a file into memory and seal the copy; return its descriptor. Raises OSError, WeightsDamaged."""
    with path.open("rb", buffering=0) as file, ExitStack() as on_error:
        copy = os.memfd_create(path.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        on_error.callback(os.close, copy)
        size, done = os.fstat(file.fileno()).st_size, 0
        while done < size:
            count = os.sendfile(copy, file.fileno(), done, size - done)
            if not count:
                raise WeightsDamaged(f"{path} became shorter while it was read")
            done += count
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, SEALS)
        on_error.pop_all()
        return copy


def is_sealed(descriptor: int) -> bool:
    """Return whether a descriptor is a file in memory that nobody can change or cut short any more."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:  # not a file in memory
        return False
