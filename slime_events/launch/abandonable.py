"""`ended_within`: a blocking call in a thread that nobody has to wait for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

_LOOK_S = 0.02


async def ended_within(seconds: float, call: Callable[[], None]) -> bool:
    """Whether `call` has ended by then. Raises what it raised.

    One that hangs is left behind: a thread of asyncio's would keep the loop, and the process, from ending. Whoever is
    cancelled meanwhile waits all the same, as what is half done is nobody's to go on with.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    end = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < end:
        try:
            await asyncio.sleep(_LOOK_S)
        except asyncio.CancelledError as error:
            raised.append(error)
    if raised:
        raise raised[0]
    return not thread.is_alive()
