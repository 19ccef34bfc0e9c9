"""`DurableFile`: a new file that the disk writes while its writer appends, so that its fsync has little left to do."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]  # a typing-only name before Python 3.12

AHEAD_BYTES = 8 * 1024**2
"""Bytes after which the disk begins to write: large enough for a sequential write, small beside a file."""


class DurableFile(io.FileIO):
    """A file that does not exist yet, without a buffer. `sync` makes it durable."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises OSError, such as FileExistsError."""
        super().__init__(path, "x")
        self._low, self._high, self._waiting = 0, 0, 0

    def write(self, data: Buffer) -> int:
        """Write some bytes, and return how many. Raises OSError."""
        count = super().write(data)
        end = self.tell()
        self._low, self._high = min(self._low, end - count), max(self._high, end)
        self._waiting += count
        if self._waiting >= AHEAD_BYTES:
            _begin_to_write(self.fileno(), self._low, self._high - self._low)
            self._low, self._high, self._waiting = end, end, 0
        return count

    def sync(self) -> None:
        """Wait until all bytes are on the disk. Raises OSError."""
        os.fsync(self.fileno())


def _begin_to_write(file: int, start: int, length: int) -> None:
    """Let Linux begin to write a range of bytes, without waiting.

    macOS has no such call, and some file systems cannot do it: there `sync` waits for all bytes.
    """
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(file, start, length, os.POSIX_FADV_DONTNEED)
