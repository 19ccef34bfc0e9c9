"""Every view of a run of which only the archive in an S3 server is left."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from slime_events.app.cli.console_runs import served
from tests.browser.consoles import console
from tests.browser.devtools import Browser
from tests.browser.tab import Tab
from tests.browser.views import ALL, Sights, paths
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import run_with, tiny
from tests.storage.seaweed import as_s3

pytestmark = [pytest.mark.soak, pytest.mark.real, pytest.mark.asyncio(loop_scope="package")]

RUN, GROUP, ARCHIVE = "archived", "train-0-000000", "s3://slime/archive"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with as_s3(tmp_path_factory.mktemp("seaweed")):
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def archive(s3: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Sights]]:
    """A console over the archive, and what its views show: the run has ended, and its folder is gone."""
    folder = tmp_path_factory.mktemp("archived")
    with cheap_parts(Parts()):
        await run_with(tiny(folder, RUN, run={"runs_dir": str(folder / "runs"), "archive_url": ARCHIVE}))
    shutil.rmtree(folder)
    async with console(served(f"{ARCHIVE}/{RUN}", "")) as origin:
        yield origin, Sights(RUN, GROUP, f"{GROUP}-s1")


@pytest.mark.parametrize("view", ALL)
async def test_every_view_opens_from_the_archive_alone(
    browser: Browser, archive: tuple[str, Sights], view: str
) -> None:
    origin, sights = archive
    async with Tab.of(browser, origin) as tab:
        await tab.open(paths(sights)[view])
        assert await tab.text("main h1") != ""
        assert await tab.script("[...document.querySelectorAll('.error')].map((one) => one.innerText).join('')") == ""
        assert tab.problems == []
