"""The range of a setting, and what it requires of others. Both are written at the field, in `doc`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc


@dataclass(frozen=True, slots=True)
class Limits:
    """The range of a number; a limit that is None does not apply."""

    above: Annotated[float | None, doc("the value must be greater")] = None
    least: Annotated[float | None, doc("the value must be at least this")] = None
    below: Annotated[float | None, doc("the value must be less")] = None
    most: Annotated[float | None, doc("the value must be at most this")] = None

    def problem(self, name: str, value: float | None) -> str | None:
        """Return a sentence if the value is out of range; None if it is not, or if there is no value."""
        if value is None:
            return None
        above, least = self.above is None or value > self.above, self.least is None or value >= self.least
        below, most = self.below is None or value < self.below, self.most is None or value <= self.most
        return None if above and least and below and most else f"{name} is {value}: it must be {self}."

    def __str__(self) -> str:
        limits = {"above": self.above, "at least": self.least, "below": self.below, "at most": self.most}
        return " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)


class Later(enum.Flag):
    """Commands that use a recorded run with other values of a setting."""

    RESUME = enum.auto()
    LEARN = enum.auto()
    RESCORE = enum.auto()
    BRANCH = enum.auto()
    BRANCH_WITH_OPTIMIZER = enum.auto()


class Act(enum.Enum):
    """A requirement on the other settings."""

    NEEDS = "needs"
    EXCLUDES = "excludes"
    UNUSED_WITHOUT = "has no effect without"
    UNUSED_WITH = "has no effect with"
    AT_MOST = "is at most"
    AT_LEAST = "is at least"
    BELOW = "is below"
    EQUALS = "equals"


@dataclass(frozen=True, slots=True)
class Rule:
    """A relation between a setting and others, with its reason. Make one with the functions below.

    A condition on another setting is its name (the setting is neither empty, zero nor off), `name=value`,
    `name!=value`, or `name:capability` (the setting names a registered object that declares the capability, such as an
    estimator with a critic; see `Registered`).
    """

    act: Act
    others: Annotated[tuple[str, ...], doc("conditions on other settings")]
    why: Annotated[
        str, doc("reason, for the message; {name}: a setting with its value; empty: that the others are not set")
    ] = ""
    value: Annotated[
        str, doc("value, or `:capability` of a value, for which the rule applies; empty: every value that is set")
    ] = ""
    unless: Annotated[tuple[str, ...], doc("conditions under which the rule does not apply")] = ()


def needs(*others: str, why: str, value: str = "", unless: tuple[str, ...] = ()) -> Rule:
    """Return the rule that a setting is invalid unless one of the conditions holds."""
    return Rule(Act.NEEDS, others, why, value, unless)


def excludes(*others: str, why: str, value: str = "", unless: tuple[str, ...] = ()) -> Rule:
    """Return the rule that a setting is invalid if any of the conditions holds."""
    return Rule(Act.EXCLUDES, others, why, value, unless)


def unused_without(*others: str, why: str = "", unless: tuple[str, ...] = ()) -> Rule:
    """Return the rule that a changed setting has no effect unless one of the conditions holds."""
    return Rule(Act.UNUSED_WITHOUT, others, why, unless=unless)


def unused_with(other: str, why: str, unless: tuple[str, ...] = ()) -> Rule:
    """Return the rule that a changed setting has no effect if the condition holds."""
    return Rule(Act.UNUSED_WITH, (other,), why, unless=unless)


def at_most(other: str, why: str) -> Rule:
    """Return the rule that a number is at most the value of another setting, if that is set."""
    return Rule(Act.AT_MOST, (other,), why)


def at_least(other: str, why: str) -> Rule:
    """Return the rule that a number is at least the value of another setting, if that is set."""
    return Rule(Act.AT_LEAST, (other,), why)


def is_below(other: str, why: str, unless: tuple[str, ...] = ()) -> Rule:
    """Return the rule that a number is below the value of another setting, if that is set."""
    return Rule(Act.BELOW, (other,), why, unless=unless)


def equals(other: str, why: str) -> Rule:
    """Return the rule that a number, if it is set, is the value of another setting."""
    return Rule(Act.EQUALS, (other,), why)
