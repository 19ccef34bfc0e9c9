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
    """The cases that start these parts, of pages with one of these texts in their name, in the order of the texts.

    Before the first that looks at the run `demo` stands that one.
    """
    found = [case for case in CASES if case.parts.value in parts]
    if only:
        found = list(dict.fromkeys(case for text in only for case in found if text in case.page))
    starts = starts_by_key()
    needs = [n for n, case in enumerate(found) if _needs_demo(case, command_of(case, starts[case.key]))]
    if needs and DEMO not in found:
        found.insert(needs[0], DEMO)
    return found


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
    """The first of those that are alike."""
    found: dict[tuple[str, str], Start] = {}
    for start in all_starts():
        found.setdefault(start.key, start)
    return found


def show(cases: list[Case], starts: dict[tuple[str, str], Start], only: list[str]) -> None:
    """What is started and how, then what of these pages is not and why."""
    for case in cases:
        start = starts[case.key]
        print(f"{case.parts.value:<9} {start.page}:{start.line}  {command_of(case, start)}")
    for key, start in starts.items():
        if only and not any(text in start.page for text in only):
            continue
        for one in NOT_STARTED:
            if one.holds_of(key):
                print(f"not run   {start.page}:{start.line}  {start.text}: {one.reason}")


def main() -> int:
    """Print a line for each start and what was otherwise; 1 where something was."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.docs_run", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="PAGE", help="pages with one of these in their name")
    kinds = [one.value for one in Parts]
    parser.add_argument("--parts", nargs="+", default=kinds, choices=kinds, help="only what starts these parts")
    parser.add_argument("--home", metavar="FOLDER", help="is kept, and a run `demo` that is in it is not made again")
    parser.add_argument("--list", action="store_true", help="print what would be started, and what is not and why")
    asked = parser.parse_args()
    cases, starts = chosen(asked.only, asked.parts), starts_by_key()
    if asked.list:
        show(cases, starts, asked.only)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what it has started ends with it
    begun, failed = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="docs-run-", ignore_cleanup_errors=True) as folder:
        home = Path(asked.home or folder).resolve() / "me"
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
