"""`python -m tests.harness.docs_run [--only PAGE ...] [--list]`: check that documented starts end as pages say."""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.harness.docs_run.beside import exported, rescored, source_of_the_run
from tests.harness.docs_run.blocks import Start, all_starts
from tests.harness.docs_run.case import Case, Parts
from tests.harness.docs_run.cases import CASES, DEMO, NOT_STARTED
from tests.harness.docs_run.play import command_of, play
from tests.harness.docs_run.stage import Stage

_LOOKS = re.compile(r"(?<!slime-events) demo\b|/demo\b")
OF_DEMO = (exported, rescored, source_of_the_run)
"""What is made of the run `demo` before a command."""


def chosen(only: list[str], parts: list[str]) -> list[Case]:
    """Return the cases that start these parts, of pages named with one of these texts, in the order of the texts.

    The case that makes the run `demo` comes before the first case that reads it.
    """
    cases = [case for case in CASES if case.parts.value in parts]
    if only:
        cases = list(dict.fromkeys(case for text in only for case in cases if text in case.page))
    starts = starts_by_key()
    needs = [n for n, case in enumerate(cases) if _needs_demo(case, command_of(case, starts[case.key]))]
    if needs and DEMO not in cases:
        cases.insert(needs[0], DEMO)
    return cases


def _needs_demo(case: Case, command: str) -> bool:
    return case.before in OF_DEMO or _LOOKS.search(command) is not None


def kept(home: Path) -> bool:
    """Whether the run `demo` of an earlier time is there. All else of that time is removed."""
    runs = home / "slime-runs"
    finished = (runs / "demo" / "summary.json").exists()
    for path in home.glob("*"):
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path != runs:
            shutil.rmtree(path)
    for path in runs.glob("*"):
        if path.name != "demo" or not finished:
            shutil.rmtree(path)
    return finished


def starts_by_key() -> dict[tuple[str, str], Start]:
    """Return the starts by key: the first of those that are alike."""
    first: dict[tuple[str, str], Start] = {}
    for start in all_starts():
        first.setdefault(start.key, start)
    return first


def show(cases: list[Case], starts: dict[tuple[str, str], Start], only: list[str]) -> None:
    """Print what is started and how, then what these pages show that is not started, and why."""
    for case in cases:
        start = starts[case.key]
        print(f"{case.parts.value:<9} {start.page}:{start.line}  {command_of(case, start)}")
    for key, start in starts.items():
        if only and not any(text in start.page for text in only):
            continue
        for skipped in NOT_STARTED:
            if skipped.holds_of(key):
                print(f"not run   {start.page}:{start.line}  {start.text}: {skipped.reason}")


def main() -> int:
    """Print a line for each start and its differences from the page; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.docs_run", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="PAGE", help="pages with one of these in their name")
    kinds = [part.value for part in Parts]
    parser.add_argument("--parts", nargs="+", default=kinds, choices=kinds, help="only what starts these parts")
    parser.add_argument("--home", metavar="FOLDER", help="is kept, and a run `demo` that is in it is not made again")
    parser.add_argument("--list", action="store_true", help="print what would be started, and what is not and why")
    options = parser.parse_args()
    cases, starts = chosen(options.only, options.parts), starts_by_key()
    if options.list:
        show(cases, starts, options.only)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what it has started ends with it
    begun, failed = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="docs-run-", ignore_cleanup_errors=True) as folder:
        home = Path(options.home or folder).resolve() / "me"
        if kept(home):
            cases = [case for case in cases if case is not DEMO]
        stage = Stage(home)
        try:
            for case in cases:
                start = starts[case.key]
                played = play(case, start, stage)
                failed += bool(played.wrong)
                ended = "as said" if not played.wrong else "NOT AS SAID"
                print(f"{start.page}:{start.line}  {played.command}  {played.seconds:.1f} s  {ended}", flush=True)
                for line in played.wrong:
                    print(f"    {line}".replace("\n", "\n    "), flush=True)
        finally:
            stage.close()
    documented = sum(1 + len(case.covers) for case in cases)
    print(
        f"\n{len(cases) - failed} of {len(cases)} documented starts end as the page says "
        f"({documented} commands, configs and files), {time.monotonic() - begun:.0f} s in all"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
