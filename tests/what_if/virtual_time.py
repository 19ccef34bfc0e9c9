"""`run_in_virtual_time`: an event loop whose clock jumps to the next timer, so that sleeping takes no time."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from serve_apps.rollouts.rollout import Rollout

BEGIN_S = 1_000_000.0
THREAD_S = 0.001
"""Real time after which the loop looks again if a thread has ended."""


class _Clock(selectors.DefaultSelector):
    """A selector that moves the clock instead of waiting, unless a thread works for the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.threads = BEGIN_S, 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None or self.threads:
            return super().select(THREAD_S)
        self.now += timeout
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _Clock()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now

    def run_in_executor(  # type: ignore[override]  # functions of any arguments
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        self.clock.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: object) -> None:
        self.clock.threads -= 1


def run_in_virtual_time(main: Coroutine[Any, Any, Any], patch: pytest.MonkeyPatch) -> Any:
    """Run `main` to its end. All clocks of this process show the loop's time meanwhile."""
    loop = _Loop()
    original = Rollout.__init__

    def begun_now(self: Rollout, *args: Any, **fields: Any) -> None:
        original(self, *args, **({"begun": loop.time(), "appended_at": loop.time()} | fields))

    with patch.context() as context:
        context.setattr(Rollout, "__init__", begun_now)  # its defaults hold the real clock
        for name in ("time", "monotonic", "perf_counter"):
            context.setattr(time, name, loop.time)
        for name in ("time_ns", "monotonic_ns", "perf_counter_ns"):
            context.setattr(time, name, lambda: round(loop.time() * 1e9))
        try:
            return loop.run_until_complete(main)
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
