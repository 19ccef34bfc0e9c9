"""`MachineWatch`: the machines of a joined Ray that are lost while a run is on."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping

from slime_events.app.launch.abandonable import in_thread
from slime_events.app.launch.ray_machines import lost_nodes

ASK_S = 2.0
"""Seconds between two questions to Ray, which itself takes many seconds to declare a machine lost."""
ANSWER_S = 2.0
log = logging.getLogger(__name__)


class MachineWatch:
    """Asks Ray for lost machines, at most every `ASK_S` seconds. joined: whether the run has joined a running Ray."""

    def __init__(self, *, joined: bool) -> None:
        self._joined = joined
        self._newest_look = -math.inf
        self._lost: Mapping[str, str] = {}

    async def lost(self, *, now: bool = False) -> Mapping[str, str]:
        """Return the addresses of lost machines by Ray's node id. now: ask Ray, even if it has just been asked.

        Without an answer of Ray, the result is that of the last one.
        """
        if self._joined and (now or time.monotonic() - self._newest_look >= ASK_S):
            self._newest_look = time.monotonic()
            try:
                async with asyncio.timeout(ANSWER_S):
                    await in_thread(self._ask)
            except Exception as error:  # Ray raises many types; a run does not end because Ray does not answer
                log.warning("Ray does not tell which machines are lost: %s: %s", type(error).__name__, error)
        return self._lost

    def _ask(self) -> None:
        self._lost = lost_nodes()
