"""`python -m tests.seeds`: which launches and fragments of slime's users are accepted, and what they need.

Each is parsed by the command line of `slime-events train`, checked against the config.json of its model, and planned:
ranks, memory of a rank, engines. Nothing is started.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
from pathlib import Path

from tests.seeds.exceptions import reason_for
from tests.seeds.fragments import judge_fragment
from tests.seeds.launch import Verdict, judge
from tests.seeds.shell import read_fragments

HERE = Path(__file__).parent


def read_launches(path: Path) -> dict[str, list[str]]:
    """Return the flags of each launch by name. A file has a text or a list of words for each, with the program."""
    launches = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: (shlex.split(words) if isinstance(words, str) else list(words))[1:] for name, words in launches.items()
    }


def show(verdict: Verdict) -> bool:
    """Print the result of one launch or fragment; return whether it is as it should be."""
    reason = reason_for(verdict)
    as_known = verdict.accepted is (reason is None)
    state = "accepted" if verdict.accepted else "exception" if reason else "REFUSED"
    print(f"{state:9}  {verdict.name}")
    if verdict.plan is not None:
        print(f"           {verdict.plan}")
    if reason is not None:
        print(f"           {'no exception any more: ' * verdict.accepted}{reason}")
    for stage, message in verdict.refusals if reason is None else ():
        print(f"           {stage.value}: {' '.join(message.split())}")
    return as_known


def main() -> int:
    """Judge the launches and the pages that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.seeds", description=__doc__)
    parser.add_argument("--launches", type=Path, default=HERE / "launches.json", help="JSON: name to command line")
    parser.add_argument(
        "--pages", type=Path, default=Path(os.environ.get("SEEDS", HERE / "pages")), help="folder of texts [$SEEDS]"
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # of what has no effect on the machine that plans
    try:
        return report(options.launches, options.pages)
    finally:
        logging.disable(logging.NOTSET)


def report(launches: Path, pages: Path) -> int:
    """Print each verdict and the counts; return 1 if one is neither accepted nor a known exception."""
    wrong = 0
    verdicts = [judge(name, words) for name, words in read_launches(launches).items()]
    for verdict in verdicts:
        wrong += not show(verdict)
    launched = f"{sum(verdict.accepted for verdict in verdicts)} of {len(verdicts)} launches"
    fragments = [
        judge_fragment(page.name, fragment)
        for page in sorted(pages.glob("*"))
        for fragment in read_fragments(page.read_text(encoding="utf-8"))
    ]
    for verdict in fragments:
        wrong += not show(verdict)
    parts = f"{sum(verdict.accepted for verdict in fragments)} of {len(fragments)} fragments of pages"
    print(f"{launched} and {parts} are accepted, {wrong} neither accepted nor exceptions")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
