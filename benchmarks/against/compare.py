"""`compare`: the same short benchmarks in two checkouts, taking turns, and the table of both.

Other work on a machine makes seconds longer and never shorter, so the least of several turns counts, and of what one
process computes its CPU. Only a step of the demo, whose processes wait for each other, is judged by the clock.
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
from typing import NamedTuple

from benchmarks.against import child
from benchmarks.against.checkout import HERE, checkout_of
from benchmarks.against.child import least
from benchmarks.figure import load

NAMES = tuple(child.TURNS)
BY_CLOCK = ("step",)
TURN_S = 900.0


class Compared(NamedTuple):
    """One figure of both checkouts: the least seconds of CPU and of the clock. by_clock: which of them counts."""

    figure: str
    before: child.Seconds
    here: child.Seconds
    by_clock: bool

    @property
    def ratio(self) -> float:
        """How many times as fast it is here."""
        return self.before[self.by_clock] / max(self.here[self.by_clock], 1e-12)


class Turn(NamedTuple):
    """What a child process printed. failure: its last words, where it ended otherwise."""

    figures: dict[str, child.Seconds]
    failure: str = ""


def compare(revision: str, names: Sequence[str], turns: int, tolerance: float) -> int:
    """Measure, print, and return 1 where anything is slower than the tolerance, or could not be measured here."""
    before = load()
    signal.signal(signal.SIGTERM, _end)  # else the checkout would stay
    with checkout_of(revision) as other, tempfile.TemporaryDirectory(prefix="slime-events-figures-") as data:
        rows, failures = list[Compared](), list[str]()
        for name in names:
            found, failed = _measure(name, other, Path(data), turns)
            rows += found
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
    """Whose turn it is: the other's (True), ours, ours, the other's, and so on, so that a drift hits both alike."""
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
        Compared(figure, *(least(one[figure] for one in taken[side]) for side in (True, False)), name in BY_CLOCK)
        for figure in taken[False][0]
    ], []  # fmt: skip


def run_turn(name: str, checkout: Path, data: Path) -> Turn:
    """One turn in a process of its own, whose modules come from the checkout."""
    data.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else every turn compiles all of the code
    command = [sys.executable, "-P", child.__file__, name, str(data)]
    try:
        ended = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=TURN_S
        )
    except subprocess.TimeoutExpired:
        return Turn({}, f"it took more than {TURN_S:.0f} s")
    if ended.returncode:
        return Turn({}, (ended.stderr.strip() or f"exit code {ended.returncode}").splitlines()[-1])
    figures = json.loads(ended.stdout.splitlines()[-1])
    return Turn({figure: (cpu, clock) for figure, (cpu, clock) in figures.items()})


def table(rows: Sequence[Compared], revision: str, tolerance: float) -> list[str]:
    """Columns of spaces: CPU and clock of both, and how many times as fast it is here."""
    head: tuple[str, ...] = ("figure", f"{revision}: CPU", "clock", "here: CPU", "clock", "ratio", "")
    lines = [head]
    for row in rows:
        slower = "SLOWER" if row.ratio < 1 - tolerance else ""
        cells = (*map(duration, row.before), *map(duration, row.here))
        lines.append((row.figure, *cells, f"{row.ratio:.2f} by {'clock' if row.by_clock else 'CPU'}", slower))
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def duration(seconds: float) -> str:
    """Three figures that count: `1.23 s`, `45.6 ms`, `7.89 us`."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
