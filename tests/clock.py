"""`Clock`: a running loop's clock that a test moves."""

from __future__ import annotations

import asyncio


class Clock:
    """A limit that no pause of the machine fills strikes once a test puts it forward. `clock` in tests/conftest.py."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._time, self._ahead = loop.time, 0.0

    def time(self) -> float:
        """Return the time, as `loop.time` does."""
        return self._time() + self._ahead

    def forward(self, seconds: float) -> None:
        """Make due now what is due within `seconds`."""
        self._ahead += seconds
