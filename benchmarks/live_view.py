"""Measure what the live view costs a step: the demo with the console's pages open, against the same run without.

One run of the demo at staleness 1, in windows: with pages open and without, in turns, so that both have the same load
of the machine. A page is a client that follows the run as the browser's script does: it reads the server-sent events,
and asks for its tables again at each change. Two pages are open, `now` with its alarms and `metrics`: a reader has one.
The figure is the median step with pages by the median step without; its note has the ratio of each pair of windows, to
compare with the ratio of windows that had the same. A step between two windows is left out, and so are the first
seconds of a window, in which the console's process may start. The second figure is the CPU time of that process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import httpx
import psutil

from benchmarks.demo_run import RUN, demo_process, read_events
from benchmarks.figure import Better, Figure
from schemas.doc import doc
from schemas.errors import DeadlineExceeded

STEPS, STALENESS = 100_000, 1
START_S = 300.0
SETTLE_S = 4.0
"""Start of a window that is left out."""
LOOK_S = 30.0
"""Seconds after which `now` asks for the alarms again, without a change too."""
ADDRESS = re.compile(r"console: (http://\S+?)/runs/\S*#token=(\S+)")
PROCESS = "console_of_run"
"""Part of the command line of the console's process."""


class Request(NamedTuple):
    """A request of a page."""

    table: str
    seconds: Annotated[float, doc("until its answer was there")]


class Window(NamedTuple):
    """A stretch of the run."""

    begin: Annotated[int, doc("UTC nanoseconds, after `SETTLE_S`")]
    end: int
    is_open: Annotated[bool, doc("pages were open")]
    cpu_s: Annotated[float, doc("CPU time of the console's process")]
    requests: tuple[Request, ...]


def measure(pairs: int = 3, window_s: float = 25.0) -> list[Figure]:
    """Return the ratio of steps with and without pages, and the CPU time of the console for a step."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with demo_process("demo", folder, STEPS, STALENESS) as process:
            address, token = _console(folder / "output", time.monotonic() + START_S)
            windows = [_window(process.pid, address, token, window_s, not index % 2) for index in range(2 * pairs)]
        events, _ = asyncio.run(read_events(folder / "runs" / RUN))
    commits = [recorded.envelope.at for recorded in events if recorded.envelope.type == "step.committed"]
    return _figures(windows, [_steps(commits, window) for window in windows])


def _figures(windows: Sequence[Window], steps: Sequence[Sequence[float]]) -> list[Figure]:
    """Return the figures of these windows with the seconds of the steps in each."""
    medians = [statistics.median(of) for of in steps]
    opened, closed = (
        [seconds for window, of in zip(windows, steps, strict=True) if window.is_open == is_open for seconds in of]
        for is_open in (True, False)
    )
    pairs = [medians[at] / medians[at + 1] for at in range(0, len(medians), 2)]
    same = [max(pair) / min(pair) for first in (0, 1) for pair in pairwise(medians[first::2])]
    note = (
        f"{statistics.median(opened):.3f} against {statistics.median(closed):.3f} s, {len(opened)} and {len(closed)} "
        f"steps; pairs {', '.join(f'{ratio:.3f}' for ratio in pairs)}; windows that had the same differ by up to "
        f"{max(same, default=1.0) - 1:.1%}"
    )
    cpu_s, requests = sum(window.cpu_s for window in windows), [one for window in windows for one in window.requests]
    waits = [
        f"{table} {statistics.median(one.seconds for one in requests if one.table == table) * 1e3:.0f} ms"
        for table in sorted({one.table for one in requests})
    ]
    cpu_note = f"{len(requests)} requests of two pages in {len(opened)} steps; in the median {', '.join(waits)}"
    return [
        Figure(name="step with the live view / without", value=statistics.median(opened) / statistics.median(closed),
               unit="x", target=1.02, better=Better.LOWER, note=note),
        Figure(name="live view, CPU of the console for a step", value=cpu_s / len(opened) * 1e3, unit="ms",
               better=Better.LOWER, note=cpu_note),
    ]  # fmt: skip


def _steps(commits: Sequence[int], window: Window) -> list[float]:
    """Return the seconds of the steps that lie in a window. Raises DeadlineExceeded if there is none."""
    inside = [(a, b) for a, b in pairwise(commits) if window.begin <= a and b <= window.end]
    if not inside:
        raise DeadlineExceeded("no step lies in a window of the benchmark: the machine is too slow for its length")
    return [(b - a) / 1e9 for a, b in inside]


def _console(output: Path, until: float) -> tuple[str, str]:
    """Return address and token of the console, once the run has committed its first steps."""
    while time.monotonic() < until:
        text = output.read_text(errors="replace")
        if (found := ADDRESS.search(text)) and re.search(r"^step +[3-9]\b", text, re.MULTILINE):
            return found[1], found[2]
        time.sleep(0.5)
    end = output.read_text(errors="replace")[-800:]
    raise DeadlineExceeded(f"the demo had no three steps in {START_S:.0f} s: {end}")


def _window(launcher: int, address: str, token: str, seconds: float, is_open: bool) -> Window:
    with _pages(address, token, is_open) as requests:
        time.sleep(SETTLE_S)
        begin, cpu_s, asked = time.time_ns(), _cpu_s(launcher), len(requests)
        time.sleep(seconds)
        taken_s = _cpu_s(launcher) - cpu_s if is_open else 0.0
        return Window(begin, time.time_ns(), is_open, taken_s, tuple(requests[asked:]))


def _cpu_s(launcher: int) -> float:
    """Return the CPU seconds of the console's process until now."""
    total = 0.0
    for process in psutil.Process(launcher).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(PROCESS in word for word in process.cmdline()):
                times = process.cpu_times()
                total += times.user + times.system
    return total


@contextlib.contextmanager
def _pages(address: str, token: str, is_open: bool) -> Iterator[list[Request]]:
    """Keep two pages open, or none. Yields their requests, as they grow."""
    stop, asked = threading.Event(), list[Request]()
    of_page = (("now", "alarms"), ("metrics?by=steps",)) if is_open else ()
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"{address}/api/runs/{RUN}/", headers=headers, timeout=60) as client:
        threads = [threading.Thread(target=_page, args=(client, paths, stop, asked)) for paths in of_page]
        for thread in threads:
            thread.start()
        try:
            yield asked
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def _page(client: httpx.Client, paths: Sequence[str], stop: threading.Event, asked: list[Request]) -> None:
    """Follow a run until `stop`, and ask for the paths at each change. Changes during the requests count as one."""
    changed, looked = threading.Event(), 0.0
    with client.stream("GET", "changes") as stream:
        threading.Thread(target=_read, args=(stream, changed, stop), daemon=True).start()
        while not stop.is_set():
            if not changed.wait(0.2) and time.monotonic() < looked + LOOK_S:
                continue
            changed.clear()
            looked = time.monotonic()
            for path in paths:
                begun = time.monotonic()
                json.loads(client.get(path).raise_for_status().content)
                asked.append(Request(path.partition("?")[0], time.monotonic() - begun))


def _read(stream: httpx.Response, changed: threading.Event, stop: threading.Event) -> None:
    """Set `changed` at each change that the server sends."""
    with contextlib.suppress(httpx.HTTPError, httpx.StreamError):  # the page was closed
        for line in stream.iter_lines():
            if stop.is_set():
                return
            if line == "event: change":
                changed.set()
