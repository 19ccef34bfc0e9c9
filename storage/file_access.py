"""`FileAccess`: which users of a machine may read a run's files: prompts, answers, weights, logs, credentials."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

FileAccess = Literal["owner", "group", "umask"]
"""owner: only the user who starts the run. group: members of the files' group may read. umask: the shell's umask, which
on most machines lets every user read.
"""
OWNER: FileAccess = "owner"
_MASKS: dict[str, int | None] = {"owner": 0o077, "group": 0o027, "umask": None}


@contextlib.contextmanager
def limited_files(access: FileAccess) -> Iterator[None]:
    """Within the context, files of this process (all threads) and its children are created with this access."""
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
    """Create files with this access for the rest of the process."""
    if (mask := _MASKS[access]) is not None:
        os.umask(mask)


def close_to_others(folder: Path, access: FileAccess) -> bool:
    """Close a folder that every user can enter, as folders of older versions are. Return whether it was open.

    A folder that is closed to others, or belongs to another user, stays unchanged.
    """
    status, mask = folder.stat(), _MASKS[access]
    mode = stat.S_IMODE(status.st_mode)
    if mask is None or status.st_uid != os.geteuid() or not mode & stat.S_IRWXO:
        return False
    folder.chmod(mode & ~mask)
    return True
