"""`python -m tests.harness.attacks`: attack live runs; exit 0 only if each attack is refused or bounded."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from schemas.workers import WorkerLost
from tests.harness.attacks.attack import Answer, Attack
from tests.harness.attacks.kinds import KINDS, PLACES
from tests.harness.attacks.places import LiveRun, live_run
from tests.harness.attacks.report import COLUMNS, Row, cells, line, summary
from tests.harness.attacks.scene import Scene
from tests.harness.attacks.terminal import slime_events
from tests.harness.attacks.watch import Watch, memory_of
from tests.run.tiny import events_of

STEPS_AFTER = 2
"""Steps that the run makes after the last attack."""
STOPPED = 143
Timed = tuple[str, Attack, Answer, dict[str, int], float, float]


def main(argv: Sequence[str] | None = None) -> int:
    """Attack, print, judge."""
    options = _options(argv)
    chosen = {name: KINDS[name] for name in options.only}
    if options.list:
        for name, kind in chosen.items():
            print(f"{name}: {kind.about}, {len(kind.attacks)} attacks")
            print("\n".join(f"  {line_of(attack)}" for attack in kind.attacks))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # so that a run is ended with this
    rows, others, began = list[Row](), list[str](), time.monotonic()
    print(line(COLUMNS), flush=True)
    for place in PLACES:
        names = [name for name, kind in chosen.items() if kind.place == place]
        if options.scripted:
            names = [name for name in names if place == "agents" and name != "environment"]
        if names:
            folder = Path(tempfile.mkdtemp(prefix="at-", dir=options.folder))
            of_runs, faults = attacked(place, names, folder, options)
            rows += of_runs
            others += faults
            if options.keep:
                print(f"the run's folder: {folder}")
            else:
                shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(summary(rows, others)) + f", {time.monotonic() - began:.0f} s")
    return int(bool(others or any(row.broken for row in rows)))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.attacks", description="attacks on a live run of our own"
    )
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS), help="which kinds [all]")
    parser.add_argument("--name", default="", help="attacks whose name or door has this text alone")
    parser.add_argument("--list", action="store_true", help="print the attacks, and start nothing")
    parser.add_argument("--seed", type=int, default=0, help="of the order within a kind; 0: that of the table [0]")
    parser.add_argument("--folder", type=Path, default=Path("/tmp"), help="where the runs' folders are made [/tmp]")
    parser.add_argument(
        "--scripted", action="store_true", help="engine and trainer are scripted: for the gateway alone"
    )
    parser.add_argument("--keep", action="store_true", help="leave the runs' folders")
    return parser.parse_args(argv)


def line_of(attack: Attack) -> str:
    """Return the line of an attack for --list."""
    return f"{attack.name} | {attack.door} | {attack.expects}"


def attacked(
    place: str, names: Sequence[str], folder: Path, options: argparse.Namespace
) -> tuple[list[Row], list[str]]:
    """Attack one run in these kinds: return a row for each attack, and the faults of the run as a whole."""
    timed, others = list[Timed](), list[str]()
    watch: Watch | None = None
    try:
        with live_run(place, folder, scripted=options.scripted) as run:
            scene, watch = run.scene(), Watch(run.port, run.process.pid, folder / "watched", run.health)
            for name in names:
                if not KINDS[name].after:
                    timed += asyncio.run(_all(name, scene, watch, run, options))
            others += _makes_steps(run)
            watch.close()
    except (RuntimeError, OSError) as error:
        others.append(f"{place}: {error}")
    for name in names:
        if KINDS[name].after and watch is not None:
            timed += asyncio.run(_all(name, scene, watch, None, options))
    others += [] if place == "tinker" and not timed else _audited(place, folder / "attacked")
    return _rows(timed, watch, folder / "attacked"), others


async def _all(name: str, scene: Scene, watch: Watch, run: LiveRun | None, options: argparse.Namespace) -> list[Timed]:
    kind = KINDS[name]
    attacks = [attack for attack in kind.attacks if options.name in f"{attack.name} {attack.door}"]
    if options.seed:
        random.Random(options.seed).shuffle(attacks)
    scene = Scene(scene.run, scene.folder, scene.port, scene.token, scene.work)  # its client belongs to this loop
    if kind.side_by_side:
        return await asyncio.gather(*(_attempt(name, attack, scene, watch, run) for attack in attacks))
    timed = []
    for attack in attacks:
        timed.append(await _attempt(name, attack, scene, watch, run))
        if run is not None and run.process.poll() is not None:
            raise RuntimeError(f"the run ended in {name}: {attack.name}\n{run.output[-1500:]}")
    if run is not None:
        await scene.seal()
    return timed


async def _attempt(name: str, attack: Attack, scene: Scene, watch: Watch, run: LiveRun | None) -> Timed:
    try:
        before = memory_of(run.process.pid) if run is not None else {}
    except psutil.Error:
        before = {}
    begin = time.monotonic()
    try:
        answer = await asyncio.wait_for(attack.act(scene), attack.seconds)
    except TimeoutError:
        answer = Answer(f"no answer in {attack.seconds:.0f} s", False)
    except Exception as error:  # an attack that cannot be made, or a connection that is lost, is a row like any other
        answer = Answer(f"{type(error).__name__} {error}"[:100], False)
    end = time.monotonic()
    row = Row(name, attack, answer, before, watch.seen(begin, end))
    print(line(cells(row)), flush=True)
    return name, attack, answer, before, begin, end


def _makes_steps(run: LiveRun) -> list[str]:
    """Return whether it makes steps after the last attack."""
    if run.kind == "tinker":
        return []
    try:
        run.until_steps(run.steps + STEPS_AFTER)
    except RuntimeError as error:
        return [f"{run.kind}: {error}"]
    return []


def _audited(place: str, folder: Path) -> list[str]:
    if not folder.exists():
        return [f"{place}: there is no run"]
    done = slime_events("audit", str(folder))
    lines = (done.stdout + done.stderr).decode("utf-8", "replace").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("ok "))
    return [f"{place}: audit exits {done.returncode}: {text[:4000]}"] if done.returncode else []


def _rows(timed: Sequence[Timed], watch: Watch | None, folder: Path) -> list[Row]:
    """Return a row for each attack, with the workers lost, by the log, from its begin to the next attack."""
    if watch is None:
        return []
    now, wall = time.monotonic(), time.time()
    lost = []
    for record in events_of(folder):
        if isinstance(event := record.envelope.event, WorkerLost):
            lost.append((record.envelope.at / 1e9 - wall + now, event.reason))
    ends = [max(end, begin) for (*_, end), begin in zip(timed, [entry[4] for entry in timed[1:]] + [now], strict=True)]
    return [
        Row(name, attack, answer, before, watch.seen(begin, end), tuple(why for at, why in lost if begin <= at < end))
        for (name, attack, answer, before, begin, _), end in zip(timed, ends, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())
