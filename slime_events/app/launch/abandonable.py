"""A blocking call in a thread that nobody has to wait for.

Not a thread of asyncio: the loop waits for those when it ends, and the process with it. What such a call raises is
always an `Exception`: Ray ends a call that it interrupts with `SystemExit(0)`, which asyncio passes through a task to
the caller of the loop. A failing launcher would end in the middle of its report, with exit code 0.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable

from schemas.errors import EngineError
from storage.cancellation import fail


def in_thread(call: Callable[[], None]) -> asyncio.Future[None]:
    """The end of `call`, in a thread that is left behind where it hangs."""
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
        except Exception as raised:
            error = raised
        except BaseException as raised:
            error = EngineError(f"Ray interrupted a call ({type(raised).__name__}: {raised}): it ends, or has ended")
        with contextlib.suppress(RuntimeError):  # nobody runs the loop any more
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, daemon=True).start()
    return result


async def ended_within(seconds: float, call: Callable[[], None]) -> bool:
    """Whether `call` has ended in time. Raises what it raised. One that hangs is left behind.

    A cancelled caller waits all the same: nobody could go on with what is half done.
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
