"""`printed_too`: what a process prints goes into its own log as well.

A user's function prints where it runs: in the conductor, an engine's replica, a trainer's rank. Ray keeps what these
print in files of its own, which are gone with it.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

from slime_events.core.telemetry.front_stream import FrontStream

MOST = 4096
"""Characters of a line that are kept together."""


class Printed(FrontStream):
    """A stream that writes to another one, and each line to the log named `name`. Any thread may write."""

    def __init__(self, raw: TextIO, name: str) -> None:
        super().__init__(raw)
        self._log = logging.getLogger(name)
        self._thread = threading.local()

    def write(self, text: str) -> int:
        """As a stream does. Where the other stream is closed, the log has it alone."""
        with contextlib.suppress(OSError, ValueError):
            self.raw.write(text)
        if not getattr(self._thread, "is_logging", False):  # a handler that fails says so on stderr
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
def printed_too() -> Iterator[None]:
    """Meanwhile what is printed is logged too, at INFO as `stdout` and `stderr`."""
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
