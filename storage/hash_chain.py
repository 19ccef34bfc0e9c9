"""Hash chain over a log: each event is hashed together with the digest of all before it, so no change stays hidden."""

import hashlib
from collections.abc import Iterable


def link_all(chain: bytes, datas: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Return the chain up to the second last of these events, and up to the last (sha256 each).

    chain: the chain up to the event before them (32 bytes), or empty if they are the log's first.
    """
    before, fresh = chain, hashlib.sha256().copy  # a copy costs half of a new hash
    for data in datas:
        hashed = fresh()
        hashed.update(chain)
        hashed.update(data)
        before, chain = chain, hashed.digest()
    return before, chain
