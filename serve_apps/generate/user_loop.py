"""`UserLoop`: where a user's generate functions and tools run."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from storage.cancellation import end_all


class UserLoop:
    """An event loop in a thread of its own: a function that blocks holds no lease, no chunk and no weights.

    threads: tools that are no coroutines and may run at the same time; one for each rollout in flight, so that none
    waits for another's within its time limit.
    """

    def __init__(self, threads: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(threads, "tool"))
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="generate", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # asyncio lets them out of a task and of its loop
                self._loop.run_forever()
        self._loop.close()

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Its result; a cancellation here cancels it there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        """Let go of the thread. What is still running in it is cancelled, and not waited for."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    async def _end(self) -> None:
        """Cancel every other task of this loop, let each hear of it, and close."""
        await end_all(*asyncio.all_tasks() - {asyncio.current_task()})
        self._ended = True
        self._loop.stop()
