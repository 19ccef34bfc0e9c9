"""`retried`: repeat a call while an object store does not answer, and say where and for how long."""

import logging
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from schemas.errors import StoreUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_S = 300.0
"""Seconds for which a run waits for a store, as for NATS."""
FIRST_S, MOST_S = 0.5, 15.0
"""Pauses between tries, doubled each time."""


def retried(call: Callable[[], T], where: str, deadline_s: float = RETRY_S) -> T:
    """Return the result of `call`, repeated while it raises StoreUnavailable.

    Raises the last StoreUnavailable, with the URL, this node and the tries, if the next one would begin after
    `deadline_s` seconds. A store that denies access is retried too: its keys may be replaced meanwhile.
    """
    begun, pause, tries = time.monotonic(), FIRST_S, 1
    while True:
        try:
            result = call()
        except StoreUnavailable as error:
            waited = time.monotonic() - begun
            if waited + pause > deadline_s:
                raise StoreUnavailable(
                    f"{error} (node {socket.gethostname()}, {tries} tries in {waited:.0f} s): check the URL, the keys "
                    "and the network of this node"
                ) from error
            if tries == 1:
                log.warning("waiting for %s, %.0f s at most: %s", where, deadline_s, error)
            time.sleep(pause)
            tries, pause = tries + 1, min(2 * pause, MOST_S)
        else:
            if tries > 1:
                log.warning("%s is back after %.1f s", where, time.monotonic() - begun)
            return result
