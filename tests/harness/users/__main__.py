"""`python -m tests.harness.users [--only NAME ...]`: use each plug point of slime in a short real run."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.harness.users.cases import CASES
from tests.harness.users.script import users_folder
from tests.harness.users.trial import AFTERWARDS, Case, Outcome, run_name, try_it

PARTS = ("run", "calls", "effect", *AFTERWARDS)


def chosen(only: list[str]) -> list[Case]:
    """The cases with one of these texts in their name, and the first where one of them needs a run before it."""
    cases = [case for case in CASES if not only or any(text in case.name for text in only)]
    if any(case.archive for case in cases) and CASES[0] not in cases:
        cases.insert(0, CASES[0])
    return cases


def line(name: str, outcome: Outcome) -> str:
    """A row of the table."""
    marks = ["failed" if part in outcome.wrong else "-" if "run" in outcome.wrong else "ok" for part in PARTS]
    return f"{name:<28} {outcome.seconds:6.1f} s {outcome.calls:6} " + " ".join(f"{mark:>8}" for mark in marks)


def main() -> int:
    """Print a table and what is wrong; 1 where something is."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.users", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases with one of these in their name")
    cases = chosen(parser.parse_args().only)
    outcomes: dict[str, Outcome] = {}
    print(f"{'plug point':<28} {'run':>8} {'calls':>6} " + " ".join(f"{part:>8}" for part in PARTS))
    with tempfile.TemporaryDirectory(prefix="slime-users-") as folder:
        place = Path(folder)
        users_folder(place)
        archive = f"{place}/{run_name(CASES[0])}/archive/{run_name(CASES[0])}"
        for case in cases:
            outcomes[case.name] = try_it(case, place, archive)
            print(line(case.name, outcomes[case.name]), flush=True)
    for name, outcome in outcomes.items():
        for part, what in outcome.wrong.items():
            print(f"\n{name}, {part}:\n{what}")
    failed = sum(bool(outcome.wrong) for outcome in outcomes.values())
    print(f"\n{len(outcomes) - failed} of {len(outcomes)} plug points do what they do in slime")
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
