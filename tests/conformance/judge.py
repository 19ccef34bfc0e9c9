"""Runs a case and says what came of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from schemas.errors import SlimeEventsError
from tests.conformance.case import Case, NotThere, same
from tests.conformance.differences import DIFFERENCES
from tests.conformance.registry import RUNNERS


class Outcome(enum.StrEnum):
    """What came of a case."""

    PASSED = "passed"
    BETTER = "better on purpose"
    FAILED = "FAILED"
    MISSING = "no runner yet"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`detail` says what was expected and what was got, or why we differ."""

    case: Case
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Raised:
    """A runner raised. Equal to slime's {"raises": ...} when it is a named error of ours or bears the same name."""

    error: Exception

    def answers(self, case: Case) -> bool:
        """Whether slime raised too, and we said so by name."""
        if not case.raises:
            return False
        return isinstance(self.error, SlimeEventsError) or type(self.error).__name__ == case.expected["raises"]


def judge(case: Case) -> Verdict:
    """Run the case; a difference on purpose must really differ from slime, and in the way that is written down."""
    runner = RUNNERS.get(case.family)
    if runner is None:
        return Verdict(case, Outcome.MISSING)
    try:
        got = _run(runner, case)
    except NotThere as missing:
        return Verdict(case, Outcome.MISSING, str(missing))
    like_slime = got.answers(case) if isinstance(got, Raised) else same(case.expected, got, case.tolerance)
    difference = DIFFERENCES.get(case.id)
    if difference is None:
        if like_slime:
            return Verdict(case, Outcome.PASSED)
        return Verdict(case, Outcome.FAILED, f"expected {case.expected!r}, got {got!r}")
    if not like_slime and same(difference.ours, got, case.tolerance or 1e-5):
        return Verdict(case, Outcome.BETTER, difference.reason)
    return Verdict(case, Outcome.FAILED, f"on purpose {difference.ours!r}, got {got!r}")


def _run(runner: Any, case: Case) -> Any:
    try:
        return runner(case.input)
    except NotThere:
        raise
    except Exception as error:  # the judge reports whatever a case raises, with its class and message
        return Raised(error)
