"""`copy_output_to_log`: copy what a process prints to its own log.

A user's function prints in its process: the conductor, an engine's replica, a trainer's rank. Ray stores the output of
these processes in its own files, which are deleted with Ray.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

from slime_events.core.telemetry.front_stream import FrontStream

MOST = 4096
"""Longest line that is logged as a whole, in characters."""


class Printed(FrontStream):
    """A stream that writes to `raw`, and each line to the log named `name`. Thread-safe."""

    def __init__(self, raw: TextIO, name: str) -> None:
        super().__init__(raw)
        self._log = logging.getLogger(name)
        self._thread = threading.local()

    def write(self, text: str) -> int:
        """Write a text. If `raw` is closed, only the log gets it."""
        with contextlib.suppress(OSError, ValueError):
            self.raw.write(text)
        if not getattr(self._thread, "is_logging", False):  # a failing handler prints to stderr
            self._keep(text)
        return len(text)

    def _keep(self, text: str) -> None:
        *lines, left = (getattr(self._thread, "left", "") + text).split("\n")
        if len(left) > MOST:
            lines, left = [*lines, left], ""
        self._thread.left, self._thread.is_logging = left, True
        try:
            for line in filter(str.strip, lines):
                self._log.info("%s", line)
        finally:
            self._thread.is_logging = False

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().flush()


@contextlib.contextmanager
def copy_output_to_log() -> Iterator[None]:
    """Copy what is printed in this context to the log, at INFO as `stdout` and `stderr`."""
    if isinstance(sys.stdout, Printed):  # another role of the same process
        yield
        return
    before = sys.stdout, sys.stderr
    ours = Printed(sys.stdout, "stdout"), Printed(sys.stderr, "stderr")
    sys.stdout, sys.stderr = ours
    try:
        yield
    finally:
        if sys.stdout is ours[0]:
            sys.stdout = before[0]
        if sys.stderr is ours[1]:
            sys.stderr = before[1]
