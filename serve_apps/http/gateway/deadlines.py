"""`Deadlines`: limits for slow clients of a server."""

from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Limits for slow clients."""

    head_s: Annotated[float, doc("seconds for a request's head, or for its rest if it is already answered")]
    body_s: Annotated[float, doc("seconds in which `body_bytes` of a body, or its end, must arrive")]
    body_bytes: Annotated[int, doc("bytes that must move within `body_s` or `write_s`")]
    write_s: Annotated[float, doc("seconds in which a client must read `body_bytes` of an answer, or all of it")]
