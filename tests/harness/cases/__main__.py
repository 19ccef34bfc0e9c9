"""`python -m tests.harness.cases [--only NAME ...]`: inputs that once ended a run, each in a real short run."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.harness.cases.cases import CASES, Case
from tests.harness.cases.live import Place


def reason(case: Case) -> str:
    """Return what is wrong with the end of a case; empty if it ended as it should."""
    with tempfile.TemporaryDirectory(prefix="slime-events-case-") as folder:
        place = Place(Path(folder))
        for inputs in case.inputs:
            place.copy(inputs)
        try:
            case.check(place)
        except Exception:  # an assertion, or an event that is not there
            return traceback.format_exc(limit=-1).strip()
    return ""


def main() -> int:
    """Print a line for each case; 1 if one did not end as it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.cases", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases with one of these in their name")
    only = parser.parse_args().only
    cases = [case for case in CASES if not only or any(text in case.name for text in only)]
    wrong = 0
    for case in cases:
        start = time.monotonic()
        text = reason(case)
        wrong += bool(text)
        print(f"{case.name:<28} {time.monotonic() - start:6.1f} s  {'wrong' if text else 'as it should'}", flush=True)
        if text:
            print(text, flush=True)
    print(f"{len(cases) - wrong} of {len(cases)} cases end as they should")
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
