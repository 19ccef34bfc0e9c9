"""Several runs in the pictures of *Metrics*: chosen from a list, and each point opens the rows of its own run."""

from __future__ import annotations

import json

import pytest

from tests.browser.devtools import Browser
from tests.browser.tab import Tab
from tests.cli.small_run import RUN

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHARTS = "[...document.querySelectorAll('.chart')]"


async def _choose(tab: Tab, label: str, value: str) -> None:
    """Choose an option of the select with this accessible name or text."""
    found = (
        "[...document.querySelectorAll('main select')].find((one) => "
        f"(one.ariaLabel ?? one.labels[0].textContent).startsWith({json.dumps(label)}))"
    )
    await tab.until(f"{found} !== undefined")
    await tab.script(
        f"(() => {{ const one = {found}; one.value = {json.dumps(value)};"
        "one.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )
    await tab.ready()


async def _on(tab: Tab, chart: int, *keys: str) -> str:
    """Press keys on a chart, and return its line of figures."""
    await tab.script(f"{CHARTS}[{chart}].focus()")
    for key in keys:
        await tab.press(key)
    await tab.script("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    return str(await tab.script(f"{CHARTS}[{chart}]?.querySelector('.readout').textContent ?? ''"))


async def test_a_point_of_each_run_opens_its_own_rows(browser: Browser, origin: str) -> None:
    async with Tab.of(browser, origin) as tab:
        await tab.open(f"/runs/{RUN}/metrics")
        await _choose(tab, "draw a further run", "agents")
        assert await tab.path() == f"/runs/{RUN}/metrics?with=agents"
        figures = await _on(tab, 0, "ArrowDown")
        assert "agents 0.5" in figures
        assert "trained: p10" in figures  # both runs have step 0
        await tab.press("Enter")
        await tab.until("location.pathname === '/runs/agents/samples'")
        await tab.back()
        await _on(tab, 0, "ArrowRight", "Enter")
        await tab.until(f"location.pathname + location.search === '/runs/{RUN}/samples?filter=step%3Aeq%3A1'")
        assert tab.problems == []


async def test_by_tokens_the_points_are_apart(browser: Browser, origin: str) -> None:
    async with Tab.of(browser, origin) as tab:
        await tab.open(f"/runs/{RUN}/metrics?with=agents")
        await _choose(tab, "by", "trained_tokens")
        assert await tab.path() == f"/runs/{RUN}/metrics?by=trained_tokens&with=agents"
        tokens = [
            (await tab.script(f"fetch('/api/runs/{run}/metrics').then((one) => one.json())"))["trained_tokens"]
            for run in (RUN, "agents")
        ]
        assert tokens[1][0] not in tokens[0]
        figures = await _on(tab, 0, "ArrowDown", "ArrowLeft")
        assert figures.startswith(f"at {tokens[1][0]:.0f} · agents ")
        assert "trained" not in figures
        assert tab.problems == []


async def test_runs_differ_by_their_dashes(browser: Browser, origin: str) -> None:
    async with Tab.of(browser, origin) as tab:
        await tab.open(f"/runs/{RUN}/metrics?with=agents")
        assert "agents, long dashes: " in await tab.script(f"{CHARTS}[0].ariaLabel")
        keys = "[...document.querySelectorAll('.chosen .line-key')].map((one) => [one.ariaLabel, one.innerHTML])"
        (own, solid), (further, dashed) = await tab.script(keys)
        assert (own, further) == ("solid line", "long dashes")
        assert ("dasharray" in solid, "dasharray" in dashed) == (False, True)
        assert tab.problems == []


async def test_a_part_of_the_axis_is_chosen_by_numbers_and_by_mouse(browser: Browser, origin: str) -> None:
    async with Tab.of(browser, origin) as tab:
        await tab.open(f"/runs/{RUN}/metrics?with=agents&by=trained_tokens")
        box = await tab.script(f"{CHARTS}[0].querySelector('.u-over').getBoundingClientRect().toJSON()")
        for kind, share in (("mouseMoved", 0.5), ("mousePressed", 0.5), ("mouseMoved", 0.9), ("mouseReleased", 0.9)):
            place = {"x": box["left"] + share * box["width"], "y": (box["top"] + box["bottom"]) / 2}
            await tab.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
        await tab.until("new URLSearchParams(location.search).has('from')")
        await tab.ready()
        await tab.script("document.querySelector('main input[name=from]').value = 48; 0")
        await tab.script("document.querySelector('main input[name=to]').value = ''; 0")
        await tab.click("main form button", "show")
        assert await tab.path() == f"/runs/{RUN}/metrics?by=trained_tokens&with=agents&from=48"
        figures = await _on(tab, 0, "ArrowLeft", "ArrowLeft")
        assert figures.startswith("at 48 ")
        await tab.click("main form button", "all steps")
        assert await tab.path() == f"/runs/{RUN}/metrics?by=trained_tokens&with=agents"
        assert tab.problems == []


async def test_a_click_opens_the_nearest_point(browser: Browser, origin: str) -> None:
    async with Tab.of(browser, origin) as tab:
        await tab.open(f"/runs/agents/metrics?with={RUN}")  # this run alone has step 1, at the right end
        box = await tab.script(f"{CHARTS}[0].querySelector('.u-over').getBoundingClientRect().toJSON()")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            place = {"x": box["right"] - 9, "y": (box["top"] + box["bottom"]) / 2}
            await tab.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
        await tab.until(f"location.pathname + location.search === '/runs/{RUN}/samples?filter=step%3Aeq%3A1'")
        assert tab.problems == []


async def test_runs_beyond_the_limit_and_unknown_runs_are_named(browser: Browser, origin: str) -> None:
    async with Tab.of(browser, origin) as tab:
        await tab.open(f"/runs/{RUN}/metrics?with=agents&with=a&with=b&with=c&with=d&with=e&with={RUN}")
        alerts = await tab.script("[...document.querySelectorAll('[role=alert]')].map((one) => one.textContent)")
        assert "names 7 runs" in alerts[0]
        assert "d, e" in alerts[0]
        assert [text.split()[0] for text in alerts[1:]] == ["a", "b", "c"]
        assert await tab.script(f"{CHARTS}.length") > 4  # the others are drawn
