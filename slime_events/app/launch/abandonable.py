"""Run a blocking call in a thread that may be abandoned.

The threads are not asyncio's, because a loop waits for those when it ends. A failed call always raises an `Exception`:
Ray interrupts a call with `SystemExit(0)`, which asyncio passes through a task to the caller of the loop, so that a
failing launcher would end in the middle of its report with exit code 0.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable

from schemas.errors import EngineError
from storage.cancellation import fail


def in_thread(call: Callable[[], None]) -> asyncio.Future[None]:
    """Run `call` in a daemon thread, and return a future of its end."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if error is not None:
            fail(result, error)
        elif not result.done():
            result.set_result(None)

    def run() -> None:
        error: Exception | None = None
        try:
            call()
        except Exception as raised:  # any error of the call is the future's result
            error = raised
        except BaseException as raised:  # see above: SystemExit of Ray
            error = EngineError(f"Ray is ending and interrupted a call ({type(raised).__name__}: {raised})")
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, daemon=True).start()
    return result


async def ended_within(seconds: float, call: Callable[[], None]) -> bool:
    """Run `call`, and return whether it has ended in time. Raises its error. A call that hangs is abandoned.

    Waits even if the caller is cancelled, because a half-finished call is of no use.
    """
    loop, cancelled = asyncio.get_running_loop(), False
    result, end = in_thread(call), loop.time() + seconds
    while not result.done() and loop.time() < end:
        try:
            await asyncio.wait([result], timeout=max(0.0, end - loop.time()))
        except asyncio.CancelledError:
            cancelled = True
    if result.done():
        result.result()
    if cancelled:
        raise asyncio.CancelledError
    return result.done()
