"""`hide_arguments`: remove secrets from the command line that `ps` shows and Ray records."""

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path

_BEGIN, _END = 45, 46
"""Fields of /proc/self/stat after the name: addresses of the arguments in memory (proc(5): arg_start, arg_end)."""


def hide_arguments(secrets: Iterable[str]) -> None:
    """Overwrite secrets in `sys`, and on Linux in the memory that the kernel shows as this process's arguments.

    If the kernel does not report the address of that memory, it stays unchanged.
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
