"""`FrontStream`: a text stream in front of another stream, with the properties of that stream."""

import io
from typing import BinaryIO, TextIO


class FrontStream(io.TextIOBase):
    """A stream whose subclass defines what is written. raw: the stream behind it."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def flush(self) -> None:
        self.raw.flush()

    def fileno(self) -> int:
        return self.raw.fileno()

    def isatty(self) -> bool:
        return self.raw.isatty()

    def writable(self) -> bool:
        return True

    @property
    def buffer(self) -> BinaryIO | None:
        """The byte buffer of `raw`; None if it has none."""
        return getattr(self.raw, "buffer", None)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.raw.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.raw.errors
