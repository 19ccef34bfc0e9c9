"""A small disk: a tmpfs of its own, where this user may mount one."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mounted on `folder`; skips the test where that is not allowed."""
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no disk may be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, leave_bytes: int) -> Path:
    """Take the disk but for so much of it; the file that does."""
    filler, free = folder / "filler", shutil.disk_usage(folder).free
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for _ in range(max(0, free - leave_bytes) >> 16):
            file.write(bytes(1 << 16))
        if not leave_bytes:
            while True:
                file.write(bytes(512))
    return filler
