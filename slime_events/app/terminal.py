"""`SafeStream`: the standard output and error of a command, which print text that no terminal obeys.

Whatever a command prints may hold what a prompt, a model, a label or another package says. So control characters are
escaped here, in the one place that all of it passes, and a new command need not think of it. Exact data leaves by
`buffer`, as long as that is no terminal.
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
"""Bold and its end: heads of tables on a terminal. They do no harm, whoever says them. Colours, which other packages
print on a terminal, are left out: they could hide a text.
"""


class SafeStream(FrontStream):
    """A text stream whose control characters become escapes; tabs and line ends stay. raw: where it goes to.

    The program's own way to move the cursor is `raw` (see `raw_stream`): it says nothing that comes from outside.
    """

    def __init__(self, raw: TextIO) -> None:
        super().__init__(raw)
        self._sink = _TerminalSink(self) if raw.isatty() else None

    def write(self, text: str) -> int:
        """Write it escaped. Returns the characters of the text itself."""
        if self._sink is None:
            self.raw.write(terminal_text(text))
        else:
            self.raw.write("".join(map(_styled, _STYLE.split(text))))
        return len(text)

    @property
    def buffer(self) -> Any:
        """Bytes as they are; those for a terminal are escaped as text."""
        return super().buffer if self._sink is None else self._sink

    def close(self) -> None:
        """Nothing: the stream is the process's."""


def _styled(part: str) -> str:
    if _STYLE.fullmatch(part):
        return part if part in _OWN_STYLES else ""
    return terminal_text(part)


class _TerminalSink(io.RawIOBase):
    """Bytes of UTF-8 for a terminal."""

    def __init__(self, stream: SafeStream) -> None:
        self._stream, self._decoder = stream, codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: Any) -> int:
        self._stream.write(self._decoder.decode(bytes(data)))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing: a writer of CSV closes what it was given, and others still print."""


def safe_stream(stream: TextIO) -> TextIO:
    """The stream itself, if it is safe."""
    return stream if isinstance(stream, SafeStream) else SafeStream(stream)  # type: ignore[return-value]


def raw_stream(stream: TextIO) -> TextIO:
    """The stream behind a safe one: for a picture that renews itself, made of texts that are safe already."""
    return stream.raw if isinstance(stream, SafeStream) else stream


@contextlib.contextmanager
def safe_output() -> Iterator[None]:
    """Standard output and error are safe inside."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(safe_stream, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
