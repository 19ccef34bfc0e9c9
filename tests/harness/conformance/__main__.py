"""`python -m tests.harness.conformance [FILE]`: run every case whose family exists; print `N passed, M failed` last."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from tests.harness.conformance.case import load
from tests.harness.conformance.differences import RULES
from tests.harness.conformance.judge import Outcome, Verdict, judge

CASES = Path(__file__).with_name("slime_cases.json")


def main(arguments: list[str]) -> int:
    """Print the verdicts that need a word and the counts; 1 if any case failed."""
    verdicts = [judge(case) for case in load(Path(arguments[0]) if arguments else CASES)]
    for verdict in verdicts:
        if verdict.outcome is Outcome.FAILED:
            print(f"{verdict.outcome}: {verdict.case.id}: {verdict.detail}")
    better = [verdict for verdict in verdicts if verdict.outcome is Outcome.BETTER]
    if better:
        print(f"{len(better)} differ from slime on purpose (counted apart):")
        for number, rule in enumerate(RULES, 1):
            if names := [verdict.case.id for verdict in better if verdict.rule == number]:
                print(f"  {number}. {rule.reason}: {', '.join(names)}")
    missing = Counter(_what(verdict) for verdict in verdicts if verdict.outcome is Outcome.MISSING)
    if missing:
        print(f"{missing.total()} cases of families that do not exist yet:")
        for what, count in sorted(missing.items()):
            print(f"  {what}: {count}")
    counts = Counter(verdict.outcome for verdict in verdicts)
    print(f"{counts[Outcome.PASSED]} passed, {counts[Outcome.FAILED]} failed")
    return 1 if counts[Outcome.FAILED] else 0


def _what(verdict: Verdict) -> str:
    return f"{verdict.case.family} ({verdict.detail})" if verdict.detail else verdict.case.family


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
