"""The chain over a log: each event's bytes are hashed after the digest of all before it, so none can change unseen."""

import hashlib
from collections.abc import Iterable


def link_all(chain: bytes, datas: Iterable[bytes]) -> tuple[bytes, bytes]:
    """sha256 over all up to the last but one of these events, and up to the last. chain: over all before them (32
    bytes; none where they are the log's first).
    """
    before, fresh = chain, hashlib.sha256().copy  # a copy costs half of a new one
    for data in datas:
        hashed = fresh()
        hashed.update(chain)
        hashed.update(data)
        before, chain = chain, hashed.digest()
    return before, chain
