"""A person finds the way from a run to its weights and back by clicks alone."""

from __future__ import annotations

import pytest

from tests.browser.devtools import Browser
from tests.browser.runs import AGENT_GROUP
from tests.browser.tab import Tab
from tests.browser.views import Sights
from tests.browser.way import there_and_back
from tests.cli.small_run import RUN

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.mark.parametrize("run", [RUN, "agents"])
async def test_from_a_run_to_its_weights_and_back(browser: Browser, origin: str, run: str) -> None:
    async with Tab.of(browser, origin) as tab:
        about, facts = await there_and_back(tab, Sights(run, AGENT_GROUP, f"{AGENT_GROUP}-s1"))
        assert about.startswith("token 0 · id 10 ·")
        assert "d1" in facts  # the digest of the weights
        assert tab.problems == []


async def test_a_request_elsewhere_is_noticed(browser: Browser, origin: str) -> None:
    async with Tab.of(browser, origin) as tab:
        await tab.open("/")
        await tab.script("console.error('wrong'); fetch('http://elsewhere.example/').catch(() => 0)")
        await tab.script("new Promise((done) => setTimeout(done, 200))")
    assert any(problem.startswith("console.error") for problem in tab.problems)
    assert any("elsewhere.example" in problem for problem in tab.problems)
