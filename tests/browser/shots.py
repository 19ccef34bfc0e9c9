"""Write the pictures of docs/console.md.

`python -m tests.browser.shots URL FOLDER [NAME ...]`; without a name, all. URL: of a console over the runs `demo`
(`slime-events demo`), `ag` (a run of agents), `a` and `b` (`demo` with --max-staleness 0 and 2). `now` is taken of a
demo that is on: the URL is then its console's address without the path, `http://127.0.0.1:8601#token=...`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from tests.browser.devtools import Browser, chromium
from tests.browser.tab import Tab

WIDTH = 1200
PAUSE_S = 0.5
"""After the last click, for what is drawn a moment later."""
Act = Callable[[Tab], Awaitable[None]]


class Shot(NamedTuple):
    """A picture. height: of the window [px]. act: what is done before it is taken."""

    path: str
    height: int
    act: Act | None = None


async def _point(tab: Tab) -> None:
    """Hold the mouse over the timeline's lane of an engine."""
    place = await tab.script(
        "(() => { const {x, y} = document.querySelector('canvas').getBoundingClientRect(); return {x, y}; })()"
    )
    for step in (0, 1):
        await tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=place["x"] + 320 + step, y=place["y"] + 450)


async def _differences(tab: Tab) -> None:
    await tab.click("button", "show the differences to the best")
    await tab.until("document.querySelector('p.differences') !== null")
    await _choose(tab, "section[aria-label='another filter'] select", "check_reward_nonzero_std")


async def _replay(tab: Tab) -> None:
    """Stop a replay in the middle, and open the last request."""
    await tab.click("button", "replay")
    await _choose(tab, ".replay input", "0.42", event="input")
    await tab.click("summary", "Requests as")
    await tab.until("document.querySelector('.wire table button') !== null")
    await tab.script("[...document.querySelectorAll('.wire button')].pop().click()")
    await tab.script("scrollTo(0, 0)")


async def _choose(tab: Tab, selector: str, value: str, event: str = "change") -> None:
    one = f'document.querySelector("{selector}")'
    await tab.until(f"{one} !== null")
    await tab.script(f"{one}.value = '{value}'; {one}.dispatchEvent(new Event('{event}', {{bubbles: true}})); 0")
    await tab.ready()


DEMO = "/runs/demo"
QUERY = "SELECT step, count(*) AS samples, avg(reward) AS reward FROM samples GROUP BY step ORDER BY step"
SHOTS = {
    "runs": Shot("/", 330),
    "now": Shot(f"{DEMO}/now", 640),
    "timeline": Shot(f"{DEMO}/timeline?from=38&to=42", 1000, _point),
    "metrics": Shot(f"{DEMO}/metrics", 600),
    "overlaid": Shot("/runs/a/metrics?with=b", 600),
    "samples": Shot(f"{DEMO}/samples?filter=reward:eq:0&order=-tokens", 560),
    "group": Shot(f"{DEMO}/groups/train-0-000048", 640),
    "differences": Shot(f"{DEMO}/groups/train-0-000048", 1000, _differences),
    "rollout": Shot(f"{DEMO}/rollouts/train-0-000000-s0?overlay=advantage", 500),
    "turns": Shot("/runs/ag/rollouts/train-0-000001-s0?overlay=mask", 700),
    "replay": Shot("/runs/ag/rollouts/train-0-000001-s0?overlay=mask", 970, _replay),
    "step": Shot(f"{DEMO}/steps/3", 600),
    "versions": Shot(f"{DEMO}/versions", 560),
    "lineage": Shot(f"{DEMO}/versions?sample=train-0-000177-s3", 560),
    "time": Shot(f"{DEMO}/time?at=11990&other=11960", 900),
    "compare": Shot("/compare?a=a&b=b", 650),
    "rescore": Shot(f"{DEMO}/rescore?filter=check_reward_nonzero_std&estimator=reinforce_plus_plus_baseline", 900),
    "query": Shot(f"{DEMO}/query?{urlencode({'sql': QUERY})}", 560),
}
"""Pictures by file name."""


async def shoot(url: str, folder: Path, names: list[str]) -> None:
    """Write a file per picture, and print its size and what went wrong at it."""
    program = chromium()
    if program is None:
        sys.exit("no Chromium: install it, or name one in $CHROMIUM")
    origin, mark, token = url.partition("#")
    with tempfile.TemporaryDirectory() as profile:
        async with Browser(program, Path(profile)) as browser:
            for name in names or SHOTS:
                path, height, act = SHOTS[name]
                async with Tab.of(browser, origin, size=(WIDTH, height)) as tab:
                    await tab.open(path + mark + token)
                    if act:
                        await act(tab)
                    await asyncio.sleep(PAUSE_S)
                    size = (folder / f"{name}.png").write_bytes(await tab.picture())
                    print(f"{name}: {size / 1000:.0f} kB, problems: {tab.problems}", flush=True)


if __name__ == "__main__":
    url, target, *chosen = sys.argv[1:]
    asyncio.run(shoot(url, Path(target), chosen))
