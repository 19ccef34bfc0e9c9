"""An archive segment: consecutive events of the log in object storage."""

from schemas.event import Event


class ArchiveSealed(Event, frozen=True, kw_only=True, tag="archive.sealed"):
    """The archivist, when a segment is written and verified. first, last: positions, inclusive.

    segment: its number, from 1. sha256: of its file, hex. bytes: of its file, compressed. url: where the file is.
    """

    segment: int
    first: int
    last: int
    sha256: str
    bytes: int
    url: str
