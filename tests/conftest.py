"""Define fixtures and settings for all tests."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import HealthCheck, settings

from tests.clock import Clock

# A busy machine is slow; how long a property takes is no property. The suite tries the same examples each time, so that
# it fails for what was changed; `make soak` looks for others.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("explore"), derandomize=True)
settings.load_profile("steady")

REAL_S = 900.0
"""What a real test may take: minutes of starts on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("real") and not item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.timeout(REAL_S))


@pytest.fixture(autouse=True)
def no_power_loss(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Light tests kill processes and not machines, so their own process need not wait for the disk."""
    if request.node.get_closest_marker("real") is None:
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conductor that looks often: a short deadline is then several looks, and no pause of the machine fills it."""
    monkeypatch.setattr("actors.conductor.TICK_S", 0.05)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The running loop's, from now on."""
    loop = asyncio.get_running_loop()
    clock = Clock(loop)
    monkeypatch.setattr(loop, "time", clock.time)
    return clock
