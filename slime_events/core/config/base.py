"""The base class of settings structs, and `doc`: the help text, range and rules of a setting."""

import msgspec

from slime_events.core.config.rules import Limits, Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings, frozen. Values that are learned at run time are events, not settings."""


def doc(
    text: str,
    *rules: Rule,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> msgspec.Meta:
    """Return the description of a setting, and what its value must be: above, at least, below or at most a number.

    rules: what the setting requires of others (`slime_events.core.config.rules`).
    """
    return msgspec.Meta(description=text, extra={"limits": Limits(above, least, below, most), "rules": rules})
