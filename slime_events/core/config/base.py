"""The base class of settings structs, and `doc`: the help text, range and rules of a setting."""

import msgspec

from slime_events.core.config.rules import Later, Limits, Rule

_NONE = Later(0)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings, frozen. Values that are learned at run time are events, not settings.

    LATER: commands that may change the group's settings, if a field does not say otherwise.
    """

    LATER = Later.BRANCH | Later.BRANCH_WITH_OPTIMIZER


def doc(
    text: str,
    *rules: Rule,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    also: Later = _NONE,
    never: Later = _NONE,
) -> msgspec.Meta:
    """Return the description of a setting, and what its value must be: above, at least, below or at most a number.

    rules: what the setting requires of others (`slime_events.core.config.rules`). also, never: commands that may
    change it in addition to those of its group, and those of its group that may not.
    """
    limits = Limits(above, least, below, most)
    return msgspec.Meta(description=text, extra={"limits": limits, "rules": rules, "also": also, "never": never})
