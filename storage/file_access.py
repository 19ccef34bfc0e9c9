"""`FileAccess`: which users of a machine may read what a run writes: prompts, answers, weights, logs, credentials."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

FileAccess = Literal["owner", "group", "umask"]
"""owner: whoever starts the run, and nobody else. group: members of the files' group may read. umask: as the umask of
the shell says, which on most machines lets everybody read.
"""
OWNER: FileAccess = "owner"
_MASKS: dict[str, int | None] = {"owner": 0o077, "group": 0o027, "umask": None}


@contextlib.contextmanager
def limited_files(access: FileAccess) -> Iterator[None]:
    """What this process and those that it starts create inside is for these users. It holds for all threads."""
    mask = _MASKS[access]
    if mask is None:
        yield
        return
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def take_access(access: FileAccess) -> None:
    """The same for the rest of a process."""
    if (mask := _MASKS[access]) is not None:
        os.umask(mask)


def close_to_others(folder: Path, access: FileAccess) -> bool:
    """Close a folder that every user of the machine can enter, as those of older versions are; whether it was one.

    A folder whose owner has set another mode, or that is another user's, stays as it is.
    """
    found, mask = folder.stat(), _MASKS[access]
    mode = stat.S_IMODE(found.st_mode)
    if mask is None or found.st_uid != os.geteuid() or not mode & stat.S_IRWXO:
        return False
    folder.chmod(mode & ~mask)
    return True
