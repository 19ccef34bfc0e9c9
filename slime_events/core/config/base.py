"""The base class of settings structs, and `doc`: the help text of a setting."""

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings, frozen. Values that are learned at run time are events, not settings."""


def doc(text: str, *, above: int | None = None, least: int | None = None) -> msgspec.Meta:
    """Return the description of a setting. It must be greater than `above`, or at least `least`."""
    return msgspec.Meta(description=text, extra={"above": above, "least": least})
