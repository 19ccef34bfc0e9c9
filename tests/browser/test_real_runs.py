"""Real runs in every view: a demo, one of agents with a search, and a demo whose processes all got kill -9."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from schemas.batches import BatchSealed
from slime_events.app.cli.console_runs import served
from storage.open_log import open_run_log
from tests.browser.axe import violations
from tests.browser.consoles import console
from tests.browser.devtools import Browser
from tests.browser.real_runs import AGENTS, DEMO, KILLED, make_all
from tests.browser.tab import Tab
from tests.browser.views import ALL, Sights, paths
from tests.browser.way import there_and_back

pytestmark = [pytest.mark.soak, pytest.mark.real, pytest.mark.timeout(1500), pytest.mark.asyncio(loop_scope="package")]

RUNS = (DEMO, AGENTS, KILLED)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_all(tmp_path_factory.mktemp("real"))


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def sights(runs: Path) -> dict[str, Sights]:
    """What the first step of each run was trained on."""
    return {run: await _first_step(runs, run) for run in RUNS}


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def real_origin(runs: Path) -> AsyncIterator[str]:
    async with console(served(None, str(runs))) as url:
        yield url


async def _first_step(runs: Path, run: str) -> Sights:
    async with open_run_log(runs / run) as log:
        async for recorded in log.read():
            if isinstance(sealed := recorded.envelope.event, BatchSealed):
                sample = sealed.samples[0]
                others = tuple(other for other in (DEMO, AGENTS) if other != run)
                return Sights(run, sealed.groups[0], sample, step=sealed.step, version=sealed.step + 1, others=others)
    raise AssertionError(f"{run} has no step")


@pytest.mark.parametrize("run", RUNS)
async def test_by_clicks_to_the_weights_and_back(
    browser: Browser, real_origin: str, sights: dict[str, Sights], run: str
) -> None:
    async with Tab.of(browser, real_origin) as tab:
        about, facts = await there_and_back(tab, sights[run])
        assert about.startswith("token 0 · id ")
        assert "digest" in facts
        assert tab.problems == []


@pytest.mark.parametrize(("view", "run", "theme"), list(itertools.product(ALL, RUNS, ("light", "dark"))))
async def test_every_view(
    browser: Browser, real_origin: str, sights: dict[str, Sights], axe: str, view: str, run: str, theme: str
) -> None:
    async with Tab.of(browser, real_origin, theme=theme) as tab:
        await tab.open(paths(sights[run])[view])
        assert await tab.script("[...document.querySelectorAll('.error')].map((one) => one.innerText).join('')") == ""
        assert await violations(tab, axe) == ""
        assert tab.problems == []
