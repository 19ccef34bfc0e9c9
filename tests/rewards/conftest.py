"""A clock that the test moves."""

from __future__ import annotations

import asyncio

import pytest


class Clock:
    """The running loop's. Limits that no pause of the machine could fill strike when a test puts it forward."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._time, self._ahead = loop.time, 0.0

    def time(self) -> float:
        """As `loop.time`."""
        return self._time() + self._ahead

    def forward(self, seconds: float) -> None:
        """What is due within so many seconds is due now."""
        self._ahead += seconds


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    loop = asyncio.get_running_loop()
    clock = Clock(loop)
    monkeypatch.setattr(loop, "time", clock.time)
    return clock
