"""`FrontStream`: a text stream in front of another one, with that one's properties."""

import io
from typing import Any, TextIO


class FrontStream(io.TextIOBase):
    """raw: the stream behind it. A subclass says what is written."""

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
    def buffer(self) -> Any:
        """Bytes, as they are. None where the stream behind has no such thing."""
        return getattr(self.raw, "buffer", None)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As that of `raw`."""
        return self.raw.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """As that of `raw`."""
        return self.raw.errors
