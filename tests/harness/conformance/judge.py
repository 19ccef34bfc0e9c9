"""Runs a case and judges its outcome."""

from __future__ import annotations

import enum
import traceback
from dataclasses import dataclass
from typing import Any

from schemas.errors import SlimeEventsError
from tests.harness.conformance.case import Case, NotThere, UnknownShape, same
from tests.harness.conformance.differences import RULES
from tests.harness.conformance.registry import RUNNERS


class Outcome(enum.StrEnum):
    """The outcome of a case."""

    PASSED = "passed"
    BETTER = "better on purpose"
    FAILED = "FAILED"
    MISSING = "no runner yet"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`detail` says what was expected and what was got, or why we differ; `rule` the number of the rule, from 1."""

    case: Case
    outcome: Outcome
    detail: str = ""
    rule: int = 0


@dataclass(frozen=True, slots=True)
class Raised:
    """A runner raised. Equal to slime's {"raises": ...} when it is a named error of ours or bears the same name, and
    where slime asserts something of its input, when our function refuses it by a TypeError or ValueError.
    """

    error: Exception

    def answers(self, case: Case) -> bool:
        """Whether slime raised too, and we said so by name."""
        if case.raises is None:
            return False
        if isinstance(self.error, SlimeEventsError) or type(self.error).__name__ == case.raises:
            return True
        by_us = "/tests/" not in traceback.extract_tb(self.error.__traceback__)[-1].filename
        return case.raises == "AssertionError" and isinstance(self.error, TypeError | ValueError) and by_us


def judge(case: Case) -> Verdict:
    """Run the case. Where the outcome is not slime's, a rule of the table has to want it, and to find in it what the
    rule promises.
    """
    runner = RUNNERS.get(case.family)
    if runner is None:
        return Verdict(case, Outcome.MISSING)
    try:
        got = runner(case)
    except NotThere as missing:
        return Verdict(case, Outcome.MISSING, str(missing))
    except Exception as error:
        raised = Raised(error)
        if raised.answers(case):
            return Verdict(case, Outcome.PASSED)
        return _failed(case, raised)
    if case.raises is None and same(case.expected, got, case.tolerance):
        return Verdict(case, Outcome.PASSED)
    for number, rule in enumerate(RULES, 1):
        if case.family in rule.families and _holds(rule, case, got):
            return Verdict(case, Outcome.BETTER, rule.reason, number)
    return _failed(case, got)


def _holds(rule: Any, case: Case, got: Any) -> bool:
    try:
        return bool(rule.applies(case) and rule.holds(case, got))
    except (
        UnknownShape,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        ValueError,
    ):  # of another shape than the rule is about
        return False


def _failed(case: Case, got: Any) -> Verdict:
    return Verdict(case, Outcome.FAILED, f"expected {case.expected!r}, got {got!r}")
