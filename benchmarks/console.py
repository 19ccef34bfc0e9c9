"""Measure the console's pages in Chromium, over a run of 10^6 samples (`benchmarks/wide_run.py`).

The server is `slime-events console` over the archive. First paint is Chromium's first contentful paint of a page that
is opened anew, the slowest of four views. A table page is a request of the page's own script, from `fetch` to parsed
JSON: the first page, one deep in the list, filtered and sorted ones, and a search; the slowest of them. The timeline is
moved by 40 pixels in each frame for four seconds; frames that the page draws are counted by `requestAnimationFrame`.
Without a Chromium every figure is missing, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

from benchmarks.figure import Better, Figure
from benchmarks.kept_log import RUN
from benchmarks.wide_run import PER_STEP, STEP_S, fill_wide
from tests.browser.devtools import Browser, chromium
from tests.browser.tab import Tab

SAMPLES = 1_000_000
NONE = "no Chromium: install Debian's package `chromium`, or name another one in $CHROMIUM"
API = f"/api/runs/{RUN}"
VIEWS = ("samples", "metrics", "timeline", "steps")
PAGES: tuple[dict[str, str], ...] = (
    {},
    {"order": "-reward"},
    {"order": "-tokens", "filter": "reward:eq:1"},
    {"filter": "step:eq:9000"},
    {"text": "question 7777{} "},
    {"text": "question 7777{}?"},
    {"text": "nowhere {}"},
)
"""Queries of pages of samples. `{}`: the number of the repetition, because a text is looked for once. The texts are in
responses alone, in prompts alone, and nowhere.
"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
FETCH = """(async (path) => {{
  const begun = performance.now();
  const answer = await (await fetch(path)).json();
  return [performance.now() - begun, answer.next ?? null];
}})({})"""
PAN = """(async (seconds) => {
  const canvas = document.querySelector('canvas'), times = [];
  const begun = performance.now();
  for (let now = begun; now - begun < seconds * 1000;) {
    canvas.dispatchEvent(new WheelEvent('wheel', {deltaX: 40, bubbles: true, cancelable: true}));
    now = await new Promise(requestAnimationFrame);
    times.push(now);
  }
  const gaps = times.slice(1).map((at, index) => at - times[index]).sort((a, b) => a - b);
  return [gaps.length / ((times[times.length - 1] - times[0]) / 1000), gaps[Math.floor(gaps.length * 0.95)]];
})(4)"""
WINDOWS = {"half the run": 0.5, "1 % of the run": 0.01, "a minute": None}
"""Windows of the timeline that are moved, by their share of the run."""


def measure(samples: int = SAMPLES) -> list[Figure]:
    """Return the figures of the pages, without making the run."""
    program = chromium()
    if program is None:
        missing = {"first paint": ("s", 0.5), "table page": ("ms", 150.0)}
        return [
            Figure(name=f"console, {name}", value=None, unit=unit, target=target, better=Better.LOWER, note=NONE)
            for name, (unit, target) in missing.items()
        ]
    with tempfile.TemporaryDirectory() as temporary:
        archive = fill_wide(Path(temporary), samples)
        command = [sys.executable, "-m", "slime_events.app.cli.main", "console", str(archive)]
        environment = os.environ | {"XDG_CACHE_HOME": f"{temporary}/cache"}
        server = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], env=environment, stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            origin = server.stdout.readline().decode().split()[-1]
            waited = {name: _seconds(f"{origin}{API}/{name}") for name in ("samples", "timeline")}
            figures = asyncio.run(_in_browser(program, Path(temporary, "profile"), origin, samples / PER_STEP * STEP_S))
        finally:
            server.terminate()
            server.wait()
    note = f"{samples:,} samples; stored once per position of the log"
    first = (Figure(name=f"console, first {n}", value=s, unit="s", better=Better.LOWER, note=note)
             for n, s in waited.items())  # fmt: skip
    return [*first, *figures]


def _seconds(url: str) -> float:
    begun = time.perf_counter()
    with urlopen(url) as answer:
        answer.read()
    return time.perf_counter() - begun


async def _in_browser(program: str, profile: Path, origin: str, run_s: float) -> list[Figure]:
    async with Browser(program, profile) as browser:
        async with Tab.of(browser, origin) as tab:
            await tab.open("/")  # compiles the script
        paints = {view: await _paint(browser, origin, view) for view in VIEWS}
        async with Tab.of(browser, origin) as tab:
            await tab.open("/")
            pages = await _pages(tab)
            pans = {name: await _pan(tab, share, run_s) for name, share in WINDOWS.items()}
    view, paint = max(paints.items(), key=lambda item: item[1])
    path, slowest = max(pages.items(), key=lambda item: item[1])
    every = ", ".join(f"{name} {value:.2f}" for name, value in paints.items())
    return [
        Figure(name="console, first paint", value=paint, unit="s", target=0.5, better=Better.LOWER,
               note=f"{view}; s of each: {every}"),
        Figure(name="console, table page", value=slowest, unit="ms", target=150.0, better=Better.LOWER,
               note=f"the slowest of {len(pages)}, {path}; median {sorted(pages.values())[len(pages) // 2]:.0f} ms"),
        *(
            Figure(name=f"console, timeline moved, {name}", value=frames, unit="frames/s", target=30.0,
                   note=f"95 % of the frames within {late:.0f} ms; {loaded:.0f} ms to load such a window")
            for name, (frames, late, loaded) in pans.items()
        ),
    ]  # fmt: skip


async def _paint(browser: Browser, origin: str, view: str) -> float:
    """Return the first contentful paint of a view, the median of three [s]."""
    times = []
    for _ in range(3):
        async with Tab.of(browser, origin) as tab:
            await tab.open(f"/runs/{RUN}/{view}")
            times.append(float(await tab.script(PAINT)) / 1000)
    return sorted(times)[1]


async def _pages(tab: Tab) -> dict[str, float]:
    """Return the milliseconds of each page, the median of three: the first page of each query, and the one after it."""
    took = {}
    for query in PAGES:
        words: dict[str, str] = {"limit": "200", **query}
        for number in (1, 2):
            paths = [
                f"{API}/samples?{urlencode({name: word.format(n) for name, word in words.items()})}" for n in range(3)
            ]
            times = [await tab.script(FETCH.format(json.dumps(path))) for path in paths]
            took[f"{urlencode(query) or 'no filter'}, page {number}"] = sorted(time for time, _ in times)[1]
            cursor = times[-1][1]
            if cursor is None:
                break
            words["cursor"] = cursor
    return took


async def _pan(tab: Tab, share: float | None, run_s: float) -> tuple[float, float, float]:
    """Return the frames per second of a timeline that moves, and the milliseconds of a late frame and of loading."""
    begin, length = run_s / 10, 60.0 if share is None else share * run_s
    words = {"from": str(begin), "to": str(begin + length)}
    query = urlencode({**words, "parts": "3000"})
    loads = [await tab.script(_LOAD.format(json.dumps(f"{API}/timeline?{query}"))) for _ in range(3)]
    await tab.open(f"/runs/{RUN}/timeline?{urlencode(words)}")
    frames, late = await tab.script(PAN)
    return frames, late, sorted(loads)[1]


_LOAD = """(async (path) => {{
  const begun = performance.now();
  await (await fetch(path)).arrayBuffer();
  return performance.now() - begun;
}})({})"""
