"""Every view in both themes: names for a screen reader, the keyboard alone, and no shift while a run is on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.browser.axe import violations
from tests.browser.consoles import console
from tests.browser.devtools import Browser
from tests.browser.runs import AGENT_GROUP
from tests.browser.tab import Tab
from tests.browser.views import ALL, Sights, paths
from tests.cli.small_run import RUN, appends, events
from tests.console.served import Memory
from tests.lineage import opened

pytestmark = [pytest.mark.soak, pytest.mark.asyncio(loop_scope="package")]

RUNS = {run: Sights(run, AGENT_GROUP, f"{AGENT_GROUP}-s1", others=("agents", RUN)) for run in (RUN, "agents")}
FOCUSABLE = (
    "[...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex=\"0\"]')]"
    ".filter((one) => one.checkVisibility() && !one.disabled)"
)
RING = (
    "(() => { const style = getComputedStyle(document.activeElement);"
    "return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0; })()"
)
SHIFTS = (
    "window.shifts = []; new PerformanceObserver((list) => shifts.push(...list.getEntries().map((one) => ({"
    "value: one.value, what: one.sources.map((source) => source.node?.outerHTML?.slice(0, 120) ?? '')"
    "})))).observe({type: 'layout-shift'})"
)
MOST_SHIFT = 0.025
"""Layout shift of a page while its run grows, where 0.1 is called good: https://web.dev/articles/cls. A new row still
moves what is below it.
"""
ACTIVE = f"{FOCUSABLE}.indexOf(document.activeElement)"


@pytest_asyncio.fixture(loop_scope="package")
async def tab(browser: Browser, origin: str) -> AsyncIterator[Tab]:
    async with Tab.of(browser, origin) as opened_tab:
        yield opened_tab
        assert opened_tab.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("view", ALL)
async def test_axe_finds_nothing_serious(
    browser: Browser, origin: str, axe: str, view: str, run: str, theme: str
) -> None:
    async with Tab.of(browser, origin, theme=theme) as tab:
        await tab.open(paths(RUNS[run])[view])
        assert await tab.script("document.documentElement.dataset.theme") == theme
        assert await violations(tab, axe) == ""
        assert tab.problems == []


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("view", ALL)
async def test_the_tab_key_reaches_everything_in_order(tab: Tab, view: str, run: str) -> None:
    await tab.open(paths(RUNS[run])[view])
    count = int(await tab.script(f"{FOCUSABLE}.length"))
    assert count > 4
    await tab.script("document.activeElement.blur()")
    reached, without_ring = [], []
    for _ in range(count):
        await tab.press("Tab")
        reached.append(await tab.script(ACTIVE))
        if not await tab.script(RING):
            without_ring.append(await tab.script("document.activeElement.outerHTML.slice(0, 120)"))
    assert reached == list(range(count))
    assert without_ring == []


async def _to(tab: Tab, text: str, path: str) -> None:
    """Move by the Tab key to what has this text or name, and press Enter."""
    name = "(document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent).trim()"
    for _ in range(200):
        await tab.press("Tab")
        if str(await tab.script(name)).startswith(text):
            break
    else:
        raise AssertionError(f"no Tab reaches {text!r} at {await tab.path()}")
    if text.startswith("reward:"):
        await tab.press("ArrowRight")
    await tab.press("Enter")
    await tab.until(f"decodeURIComponent(location.pathname + location.search) === {json.dumps(path)}")
    await tab.ready()


@pytest.mark.parametrize("run", RUNS)
async def test_the_keyboard_alone_is_enough(tab: Tab, run: str) -> None:
    there, sample = f"/runs/{run}", f"{AGENT_GROUP}-s1"
    await tab.open("/")
    await _to(tab, run, f"{there}/metrics")
    await _to(tab, "reward:", f"{there}/samples?filter=step:eq:{1 if run == RUN else 0}")
    await _to(tab, "Steps", f"{there}/steps")
    await _to(tab, "0", f"{there}/steps/0")
    await _to(tab, AGENT_GROUP, f"{there}/rollouts/{AGENT_GROUP}-s0")
    await _to(tab, "group", f"{there}/groups/{AGENT_GROUP}")
    await _to(tab, sample, f"{there}/rollouts/{sample}")
    for _ in range(60):
        await tab.press("Tab")
        if await tab.script("document.activeElement.getAttribute('aria-label') === 'tokens'"):
            break
    await tab.press("ArrowRight", times=2)
    assert (await tab.text(".about")).startswith("token 1 · id 11 ·")
    await tab.open(f"{there}/rollouts/{sample}")
    await _to(tab, "what it touched", f"{there}/versions?sample={sample}")
    await _to(tab, "v1", f"{there}/versions/1")


async def test_a_new_view_has_the_focus_and_a_title(tab: Tab) -> None:
    await tab.open(f"/runs/{RUN}/steps")
    await tab.click("table a", "0")
    assert await tab.script("document.activeElement.id") == "view"
    assert await tab.script("document.title") == f"Steps 0 · {RUN} · slime-events"


@pytest.mark.parametrize("view", ALL)
async def test_nothing_moves_while_a_run_is_on(browser: Browser, view: str) -> None:
    log = events()
    run = await opened.opened(log[:-8])
    source = Memory({RUN: run}, on=True)
    async with console(source) as url, Tab.of(browser, url) as tab:
        await tab.open(paths(RUNS[RUN]._replace(others=()))[view])
        await tab.script(SHIFTS)
        await run.log.append(appends(log)[-8:])
        # the state of the run in the bar says when its tables have the new events
        if view not in ("runs", "compare"):
            await tab.until(f"document.querySelector('.state').textContent.includes('position {len(log)} of')")
        await tab.ready()
        shifts = await tab.script("new Promise((done) => setTimeout(() => done(shifts), 300))")
        assert sum(shift["value"] for shift in shifts) < MOST_SHIFT, shifts
        assert tab.problems == []
