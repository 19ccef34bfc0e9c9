"""`Call`: a taker's message about itself to the other takers of its queue."""

from typing import Annotated

import msgspec

from schemas.doc import doc


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A taker's message about itself."""

    taker: Annotated[str, doc("Random name of the taker.")]
    lease_s: Annotated[float, doc("Seconds of its lease; 0: it leaves.")]
    held: Annotated[tuple[int, ...], doc("Positions that it holds.")]
    loose: Annotated[tuple[int, ...], doc("Positions that it released since its last call without being done.")] = ()
    broke: Annotated[bool, doc("Its connection broke: deliveries on the way to it are lost.")] = False
    knows: Annotated[bool, doc("See `Leases.knows`.")] = False
    listens: Annotated[bool, doc("It listens to the calls of all takers.")] = False
    next: Annotated[tuple[str, ...], doc("From a listener: who begins to listen when listeners are missing.")] = ()
