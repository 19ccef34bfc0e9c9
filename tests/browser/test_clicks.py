"""A person finds the way from a run to its weights and back by clicks alone."""

from __future__ import annotations

import pytest

from tests.browser.devtools import Browser
from tests.browser.runs import AGENT_GROUP
from tests.browser.tab import Tab
from tests.cli.small_run import RUN

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.mark.parametrize("run", [RUN, "agents"])
async def test_from_a_run_to_its_weights_and_back(browser: Browser, origin: str, run: str) -> None:
    sample = f"{AGENT_GROUP}-s1"
    there = f"/runs/{run}"
    async with Tab.of(browser, origin) as tab:
        await tab.open("/")
        seen = ["/"]

        async def to(path: str, selector: str, text: str) -> None:
            await tab.click(selector, text)
            assert await tab.path() == path
            seen.append(path)

        await to(f"{there}/metrics", "table a", run)
        await to(f"{there}/steps", "header nav a", "Steps")
        await to(f"{there}/steps/0", "table a", "0")
        await to(f"{there}/groups/{AGENT_GROUP}", "table a", AGENT_GROUP)
        await to(f"{there}/rollouts/{sample}", ".siblings a", sample)
        await tab.click("p.tokens span")
        assert (await tab.text(".about")).startswith("token 0 · id 10 ·")
        await to(f"{there}/versions?sample={sample}", "main a", "what it touched")
        await to(f"{there}/versions/1", "table a", "v1")
        assert "d1" in await tab.text(".facts")  # the digest of the weights
        for path in reversed(seen[:-1]):
            await tab.back()
            assert await tab.path() == path
        assert tab.problems == []


async def test_a_request_elsewhere_is_noticed(browser: Browser, origin: str) -> None:
    async with Tab.of(browser, origin) as tab:
        await tab.open("/")
        await tab.script("console.error('wrong'); fetch('http://elsewhere.example/').catch(() => 0)")
        await tab.script("new Promise((done) => setTimeout(done, 200))")
    assert any(problem.startswith("console.error") for problem in tab.problems)
    assert any("elsewhere.example" in problem for problem in tab.problems)
