"""One Chromium for the tests of this folder."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.browser.axe import axe_script
from tests.browser.consoles import console
from tests.browser.devtools import Browser, chromium
from tests.browser.runs import agent_events
from tests.cli.small_run import RUN
from tests.console.served import Memory
from tests.lineage import opened

NONE = "no Chromium: install Debian's package `chromium`, or name another one in $CHROMIUM"


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """Without a Chromium these tests are left out by name, or fail if $REQUIRE_CHROMIUM is set."""
    program = chromium()
    if program is None:
        (pytest.fail if os.environ.get("REQUIRE_CHROMIUM") else pytest.skip)(NONE)
    folder: Path = tmp_path_factory.mktemp("chromium")
    async with Browser(program, folder) as started:
        yield started


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def origin() -> AsyncIterator[str]:
    """A console over the small run and `agents`."""
    runs = {RUN: await opened.small(), "agents": await opened.opened(agent_events(), "agents")}
    async with console(Memory(runs)) as url:
        yield url


@pytest.fixture(scope="package")
def axe() -> str:
    """axe-core's script."""
    return axe_script()
