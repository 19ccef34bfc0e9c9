"""`SafeStream`: standard output and error that escape control characters.

A command may print text from a prompt, a model, a label or another package. All output passes through this stream, so
no command needs its own escaping. Exact data is written to `buffer`, if that is not a terminal.
"""

import codecs
import contextlib
import io
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from schemas.text import terminal_text
from slime_events.core.telemetry.front_stream import FrontStream

_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")
_OWN_STYLES = frozenset(("\x1b[0m", "\x1b[1m"))
"""Bold and its end, for heads of tables: harmless from any source. Colours could hide text, so they are removed."""


class SafeStream(FrontStream):
    """A text stream that escapes control characters, except tabs and line ends.

    raw: the stream to write to. The program itself moves the cursor through `raw` (see `raw_stream`), and writes no
    text from outside there.
    """

    def __init__(self, raw: TextIO) -> None:
        super().__init__(raw)
        self._sink = _TerminalSink(self) if raw.isatty() else None

    def write(self, text: str) -> int:
        """Write the text escaped, and return its number of characters before escaping."""
        if self._sink is None:
            self.raw.write(terminal_text(text))
        else:
            self.raw.write("".join(map(_styled, _STYLE.split(text))))
        return len(text)

    @property
    def buffer(self) -> Any:
        """Binary stream; if it is a terminal, bytes are decoded and escaped as text."""
        return super().buffer if self._sink is None else self._sink

    def close(self) -> None:
        """Do nothing: the stream belongs to the process."""


def _styled(part: str) -> str:
    if _STYLE.fullmatch(part):
        return part if part in _OWN_STYLES else ""
    return terminal_text(part)


class _TerminalSink(io.RawIOBase):
    """Binary stream of UTF-8 to a terminal."""

    def __init__(self, stream: SafeStream) -> None:
        self._stream, self._decoder = stream, codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: Any) -> int:
        octets = bytes(data)
        self._stream.write(self._decoder.decode(octets))
        return len(octets)

    def flush(self) -> None:
        self._stream.flush()

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: a CSV writer closes its stream, and others still print to it."""


def safe_stream(stream: TextIO) -> TextIO:
    """Return a safe stream that writes to `stream`."""
    return stream if isinstance(stream, SafeStream) else SafeStream(stream)  # type: ignore[return-value]


def raw_stream(stream: TextIO) -> TextIO:
    """Return the stream behind a safe one, for a live view that redraws itself from safe texts."""
    return stream.raw if isinstance(stream, SafeStream) else stream


@contextlib.contextmanager
def safe_output() -> Iterator[None]:
    """Make standard output and error safe inside the context."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(safe_stream, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
