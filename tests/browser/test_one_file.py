"""A view that is saved as one file opens without a console, and shows the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.consoles import console
from tests.browser.devtools import Browser
from tests.browser.runs import AGENT_GROUP
from tests.browser.tab import Tab
from tests.browser.views import ALL, Sights, paths
from tests.cli.small_run import RUN
from tests.console.hostile import HOSTILE, TEXTS, events, group
from tests.console.served import Memory
from tests.lineage.opened import opened

pytestmark = pytest.mark.asyncio(loop_scope="package")

CAPTURE = "{ const make = URL.createObjectURL; URL.createObjectURL = (one) => make((window.savedFile = one)); }"
OF = Sights("agents", AGENT_GROUP, f"{AGENT_GROUP}-s1", others=(RUN,))


async def saved(tab: Tab, path: str, folder: Path) -> str:
    """Save the view of a path, and return the file's URL."""
    await tab.open(path)
    await tab.script(CAPTURE)
    await tab.click("header button", "save")
    await tab.until("window.savedFile !== undefined")
    file = folder / "view.html"
    file.write_text(str(await tab.script("savedFile.text()")), encoding="utf-8", newline="")
    return file.as_uri()


async def _same(browser: Browser, origin: str, path: str, folder: Path, theme: str) -> None:
    async with Tab.of(browser, origin) as live, Tab.of(browser, "file://", theme=theme) as alone:
        url = await saved(live, path, folder)
        await alone.open(url)
        assert await alone.text() == await live.text()
        assert await alone.script("document.title") == await live.script("document.title")
        assert await alone.script("document.documentElement.dataset.theme") == theme
        assert (live.problems, alone.problems) == ([], [])


async def test_a_rollout_opens_from_its_file(browser: Browser, origin: str, tmp_path: Path) -> None:
    await _same(browser, origin, paths(OF)["rollout by version"], tmp_path, "dark")


@pytest.mark.parametrize(
    "path", ["/runs/agents/metrics?with={run}&save", "/runs/agents/steps/0?save", "/compare?save=&a={run}&b=agents"]
)
async def test_an_address_saves_its_view(browser: Browser, origin: str, tmp_path: Path, path: str) -> None:
    path = path.format(run=RUN)
    async with Tab.of(browser, origin) as live, Tab.of(browser, "file://") as alone:
        await live.call("Page.addScriptToEvaluateOnNewDocument", source=CAPTURE)
        await live.open(path)
        file = tmp_path / "view.html"
        await live.until("window.savedFile !== undefined")
        file.write_text(str(await live.script("savedFile.text()")), encoding="utf-8", newline="")
        assert await live.path() == path.replace("&save", "").replace("?save=&", "?").replace("?save", "")
        await alone.open(file.as_uri())
        assert await alone.text() == await live.text()
        assert (live.problems, alone.problems) == ([], [])


async def test_other_views_are_not_in_the_file(browser: Browser, origin: str, tmp_path: Path) -> None:
    async with Tab.of(browser, origin) as live, Tab.of(browser, "file://") as alone:
        await alone.open(await saved(live, paths(OF)["step"], tmp_path))
        await alone.click("header nav a", "Samples")
        assert paths(OF)["step"] in await alone.text(".error")
        assert alone.problems == []


async def test_a_file_that_would_be_too_large_is_refused(browser: Browser, origin: str) -> None:
    async with Tab.of(browser, origin) as tab:
        await tab.open(paths(OF)["step"])
        await tab.script(
            "{ const body = new ArrayBuffer(33_000_000); Response.prototype.arrayBuffer = async () => body; }"
        )
        await tab.click("header button", "save")
        await tab.until("document.querySelector('header .error')?.textContent.includes('32 MB')")


@pytest.mark.soak
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", ALL)
async def test_every_view_opens_from_its_file(
    browser: Browser, origin: str, tmp_path: Path, view: str, theme: str
) -> None:
    await _same(browser, origin, paths(OF)[view], tmp_path, theme)


@pytest.mark.soak
async def test_hostile_texts_stay_text_in_a_file(browser: Browser, tmp_path: Path) -> None:
    async with console(Memory({HOSTILE: await opened(events(), HOSTILE)})) as url:
        for number in range(len(TEXTS)):
            path = paths(Sights(HOSTILE, group(number), f"{group(number)}-s0"))["rollout"]
            await _same(browser, url, path, tmp_path, "light")
