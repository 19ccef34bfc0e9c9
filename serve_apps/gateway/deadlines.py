"""`Deadlines`: how slow a client of a server may be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """head_s: seconds for a head, and for the rest of a request that is answered already. body_s: within which
    `body_bytes` of a body have to come, or its end. write_s: within which a client has to read as many bytes of what
    was written to it, or all.
    """

    head_s: float
    body_s: float
    body_bytes: int
    write_s: float
