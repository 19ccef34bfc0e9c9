"""Every view of a run of hostile texts shows them as text."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from urllib.parse import quote, urlencode

import pytest
import pytest_asyncio

from tests.browser.consoles import console
from tests.browser.devtools import Browser
from tests.browser.tab import Tab
from tests.browser.views import ALL, Sights, paths
from tests.console.hostile import HOSTILE, NAME, TEXTS, events, group
from tests.console.served import Memory
from tests.lineage.opened import opened

pytestmark = [pytest.mark.soak, pytest.mark.asyncio(loop_scope="package")]

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]|[\U000e0000-\U000e007f]"
)
TAGS = ("script", "img", "iframe", "style", "link", "base", "meta", "math", "[onload]", "[onerror]", "[onfocus]")
MARKUP = f"document.querySelectorAll('{', '.join(f'main {tag}' for tag in TAGS)}').length"
FIRST = 20_000
"""Characters of a text that are shown at first."""
REFUSED = re.compile(r"4\d\d for|network: Failed to load resource")
"""What Chromium itself says of an answer that there is no such run, sample or source."""
IN_URLS = [text for text in TEXTS if text.strip() and "\n" not in text and len(text) < 1000]
"""A path with a line end, or longer than a request may be, gets JSON with an error from the server, and no page."""
OF_A_TEXT = {"group", "rollout", "touched"}


def shown(text: str) -> str:
    """Return how the console shows a text: what one would not see as its code point."""
    return HIDDEN.sub(lambda match: f"⟦U+{ord(match[0]):04X}⟧", text)


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def hostile() -> AsyncIterator[str]:
    async with console(Memory({HOSTILE: await opened(events(), HOSTILE)})) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="package")
async def tab(browser: Browser, hostile: str) -> AsyncIterator[Tab]:
    async with Tab.of(browser, hostile) as opened_tab:
        yield opened_tab
        assert [problem for problem in opened_tab.problems if not REFUSED.match(problem)] == []


async def _harmless(tab: Tab) -> None:
    """Nothing of the run became markup, and nothing that one cannot see is on the page."""
    assert await tab.script(MARKUP) == 0
    assert await tab.script("window.polluted ?? ({}).polluted ?? null") is None
    text = str(await tab.script("document.body.textContent"))
    assert [text[max(0, one.start() - 40) : one.end()] for one in HIDDEN.finditer(text)] == []


@pytest.mark.parametrize("view", sorted(ALL.keys() - OF_A_TEXT))
async def test_a_view_of_all_texts(tab: Tab, view: str) -> None:
    await tab.open(paths(Sights(HOSTILE, group(0), f"{group(0)}-s0"))[view])
    await tab.script("for (const one of document.querySelectorAll('details')) one.open = true")
    await _harmless(tab)


@pytest.mark.parametrize("number", range(len(TEXTS)), ids=lambda number: ascii(TEXTS[number][:16]))
async def test_the_views_of_a_text(tab: Tab, number: int) -> None:
    text, name = TEXTS[number], TEXTS[number][:NAME]
    of = paths(Sights(HOSTILE, group(number), f"{group(number)}-s0", step=number))
    for view, label in (("group", "prompt"), ("rollout", "response")):
        await tab.open(of[view])
        await _harmless(tab)
        there = await tab.script(f"document.querySelector('pre[aria-label={json.dumps(label)}]').textContent")
        assert there == (shown(text[:FIRST]) or "empty")
    for asked in (
        {"sample": f"{group(number)}-s0"},
        {"source": f"{name}.jsonl"},
        {"grader": name or "x", "digest": name},
    ):
        await tab.open(f"/runs/{HOSTILE}/versions?{urlencode(asked)}")
        await _harmless(tab)


@pytest.mark.parametrize("text", IN_URLS, ids=lambda text: ascii(text[:16]))
async def test_a_hostile_url(tab: Tab, text: str) -> None:
    name = quote(text, safe="")
    for path in (f"/runs/{name}/now", f"/runs/{HOSTILE}/rollouts/{name}", f"/runs/{HOSTILE}/samples?where={name}"):
        await tab.open(path)
        await _harmless(tab)
    await tab.open(f"/runs/{HOSTILE}/now?a=%E0%A4%A")
    await tab.open("/runs/%E0%A4%A/now")
    await _harmless(tab)
