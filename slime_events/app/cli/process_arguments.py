"""`hide_arguments`: what `ps` shows of this process's command line, without secrets. Ray records it too."""

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path

_BEGIN, _END = 45, 46
"""Fields of /proc/self/stat behind the name: where the arguments lie in memory (proc(5): arg_start, arg_end)."""


def hide_arguments(secrets: Iterable[str]) -> None:
    """Overwrite secrets in the memory that the kernel shows as this process's arguments, and in `sys`. Only on Linux;
    elsewhere, and where the kernel does not say where they lie, they stay as they were given.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        covered = "x" * len(secret)
        sys.argv[:] = [word.replace(secret, covered) for word in sys.argv]
        sys.orig_argv[:] = [word.replace(secret, covered) for word in sys.orig_argv]
        _overwrite(os.fsencode(secret))


def _overwrite(secret: bytes) -> None:
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[_BEGIN]), int(fields[_END])
    except (OSError, ValueError, IndexError):
        return
    text = ctypes.string_at(begin, end - begin) if 0 < begin < end else b""
    at = text.find(secret)
    while at >= 0:
        ctypes.memset(begin + at, ord("x"), len(secret))
        at = text.find(secret, at + len(secret))
