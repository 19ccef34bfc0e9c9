"""`Row`: an event as the rows of event tables are made from it."""

import msgspec

from schemas.codec import WholeEnvelope
from schemas.envelope import Envelope
from storage.log import Recorded


class StoredRow(msgspec.Struct, frozen=True, gc=False):
    """`Recorded` without an `Envelope` object."""

    position: int
    subject: str
    envelope: Envelope | WholeEnvelope
    data: bytes


Row = Recorded | StoredRow
