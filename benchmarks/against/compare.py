"""`compare`: run the same short benchmarks in two checkouts by turns, and print a table of both.

Other work on a machine only increases times, so the least of several turns counts, and for a single process its CPU
time. Only a step of the demo, whose processes wait for each other, is compared by the clock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from benchmarks.against import child
from benchmarks.against.checkout import HERE, checkout_of
from benchmarks.against.child import least
from benchmarks.figure import load
from schemas.doc import doc

NAMES = tuple(child.TURNS)
BY_CLOCK = ("step",)
TURN_S = 900.0


class Compared(NamedTuple):
    """A figure of both checkouts: the least seconds of CPU and of the clock."""

    figure: str
    before: child.Seconds
    here: child.Seconds
    by_clock: Annotated[bool, doc("Whether the clock counts, not the CPU")]

    @property
    def ratio(self) -> float:
        """Speed of this checkout over that of the other."""
        return self.before[self.by_clock] / max(self.here[self.by_clock], 1e-12)


class Turn(NamedTuple):
    """Output of a child process."""

    figures: dict[str, child.Seconds]
    failure: Annotated[str, doc("Last line of its errors, if it failed")] = ""


def compare(revision: str, names: Sequence[str], turns: int, tolerance: float) -> int:
    """Measure and print; return 1 if a figure is slower than the tolerance, or if a turn failed."""
    before = load()
    signal.signal(signal.SIGTERM, _end)  # so that the checkout is removed
    with checkout_of(revision) as other, tempfile.TemporaryDirectory(prefix="slime-events-figures-") as data:
        rows, failures = list[Compared](), list[str]()
        for name in names:
            measured, failed = _measure(name, other, Path(data), turns)
            rows += measured
            failures += failed
    for line in table(rows, revision, tolerance):
        print(line)
    for failure in failures:
        print(failure)
    print(f"least of {turns} turns each; load {before:.1f} before, {load():.1f} after, {os.cpu_count()} cores")
    return int(bool(failures) or any(row.ratio < 1 - tolerance for row in rows))


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


def order(turns: int) -> Iterator[bool]:
    """Yield whose turn it is: the other's (True), ours, ours, the other's, ..., so that a drift affects both."""
    for turn in range(turns):
        yield from (True, False) if turn % 2 == 0 else (False, True)


def _measure(name: str, other: Path, data: Path, turns: int) -> tuple[list[Compared], list[str]]:
    taken: dict[bool, list[dict[str, child.Seconds]]] = {True: [], False: []}
    for is_other in order(turns):
        print(f"{name} ... {'there' if is_other else 'here'}", file=sys.stderr, flush=True)
        turn = run_turn(name, other if is_other else HERE, data / f"{name}-{'there' if is_other else 'here'}")
        if turn.failure:
            side = "the other checkout" if is_other else "this checkout"
            return [], [f"{name}: {side} failed: {turn.failure}"]
        taken[is_other].append(turn.figures)
    return [
        Compared(figure, *(least(turn[figure] for turn in taken[side]) for side in (True, False)), name in BY_CLOCK)
        for figure in taken[False][0]
    ], []  # fmt: skip


def run_turn(name: str, checkout: Path, data: Path) -> Turn:
    """Run a turn in a process whose modules come from the checkout."""
    data.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise every turn compiles all code
    command = [sys.executable, "-P", child.__file__, name, str(data)]
    try:
        ended = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=TURN_S
        )
    except subprocess.TimeoutExpired:
        return Turn({}, f"the turn took more than {TURN_S:.0f} s")
    if ended.returncode:
        return Turn({}, (ended.stderr.strip() or f"exit code {ended.returncode}").splitlines()[-1])
    figures = json.loads(ended.stdout.splitlines()[-1])
    return Turn({figure: (cpu, clock) for figure, (cpu, clock) in figures.items()})


def table(rows: Sequence[Compared], revision: str, tolerance: float) -> list[str]:
    """Return a table with CPU and clock of both checkouts, and the ratio."""
    head: tuple[str, ...] = ("figure", f"{revision}: CPU", "clock", "here: CPU", "clock", "ratio", "")
    lines = [head]
    for row in rows:
        slower = "SLOWER" if row.ratio < 1 - tolerance else ""
        cells = (*map(duration, row.before), *map(duration, row.here))
        lines.append((row.figure, *cells, f"{row.ratio:.2f} by {'clock' if row.by_clock else 'CPU'}", slower))
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def duration(seconds: float) -> str:
    """Return a duration with three significant digits: `1.23 s`, `45.6 ms`, `7.89 us`."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
