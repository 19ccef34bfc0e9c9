"""An archive segment: consecutive events of the log in object storage."""

from typing import Annotated

from schemas.doc import doc
from schemas.event import Event


class ArchiveSealed(Event, frozen=True, kw_only=True, tag="archive.sealed"):
    """Appended by the archivist when a segment is written and verified."""

    segment: Annotated[int, doc("Number of the segment, from 1.")]
    first: Annotated[int, doc("Log position of the first event in the segment.")]
    last: Annotated[int, doc("Log position of the last event in the segment, inclusive.")]
    sha256: Annotated[str, doc("sha256 (hex) of the segment's file.")]
    bytes: Annotated[int, doc("Compressed size of the segment's file, in bytes.")]
    url: Annotated[str, doc("URL of the segment's file.")]
