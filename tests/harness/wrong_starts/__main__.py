"""`python -m tests.harness.wrong_starts [--only TEXT] [--all]`: try each wrong start through both entry points."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.harness.wrong_starts.cases import CASES, OTHERS, OWN_CODE, Case, prepare
from tests.harness.wrong_starts.judge import complaints, listing
from tests.run.tiny import MARK, left_behind

LIMIT_S = 3.0
"""Seconds that a wrong start may take from its command to its end."""
HANGS_S = 60.0
ROOT = Path(__file__).parents[3]
ENTRIES = {
    "slime-events": [str(Path(sys.executable).with_name("slime-events"))],
    "python -m": [sys.executable, "-m", "slime_events.app.cli.main"],
}


@dataclass(frozen=True, slots=True)
class Ended:
    """seconds: from the command to its end. busy: of a processor, which other work on the machine does not change.
    wrong: what should have been otherwise.
    """

    seconds: float
    busy: float
    wrong: list[str]


def start(entry: str, case: Case, folder: Path) -> Ended:
    """One wrong start in a folder that `prepare` has made."""
    before, mark = listing(folder), uuid.uuid4().hex
    env = os.environ | {MARK: mark, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    begun, used = time.monotonic(), _busy()
    try:
        done = subprocess.run(
            [*ENTRIES[entry], *case.words], cwd=folder, env=env, capture_output=True, text=True, timeout=HANGS_S
        )
    except subprocess.TimeoutExpired:
        return Ended(HANGS_S, _busy() - used, [f"it hangs; left: {left_behind(mark, 0.0)}"])
    seconds, busy = time.monotonic() - begun, _busy() - used
    wrong = complaints(case, done.returncode, done.stderr)
    if seconds > LIMIT_S:
        wrong.append(f"{seconds:.1f} s")
    if left := left_behind(mark, 1.0):
        wrong.append(f"left alive: {left}")
    if new := sorted(set(listing(folder)) - set(before)):
        wrong.append(f"left behind: {', '.join(str(path.relative_to(folder)) for path in new)}")
    return Ended(seconds, busy, wrong)


def _busy() -> float:
    """Processor seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Print a table. Returns 1 if a case ended in another way than it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.wrong_starts", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument("--all", action="store_true", help="every mistake in own code at every plug point")
    options = parser.parse_args()
    every = [*OWN_CODE, *OTHERS] if options.all else CASES
    cases = [case for case in every if options.only in case.name]
    times: dict[str, float] = {}
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place))
        width = max(len(case.name) for case in cases)
        for case in cases:
            ended = {entry: start(entry, case, Path(place)) for entry in ENTRIES}
            wrong = [f"{entry}: {what}" for entry, outcome in ended.items() for what in outcome.wrong]
            failed += sum(bool(outcome.wrong) for outcome in ended.values())
            times |= {f"{case.name}, {entry}": outcome.seconds for entry, outcome in ended.items()}
            seconds = "  ".join(f"{outcome.seconds:5.2f} s ({outcome.busy:.2f})" for outcome in ended.values())
            print(f"{case.name:<{width}}  {seconds}  {'; '.join(wrong) or 'refused'}", flush=True)
    slowest = max(times, key=lambda name: times[name])
    print(f"{len(times) - failed} passed, {failed} failed; slowest {times[slowest]:.2f} s ({slowest})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
