"""`Settings`: the base of every component's settings."""

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen group of settings. What is learned at run time is an event, never a setting."""


def doc(text: str, *, above: int | None = None, least: int | None = None) -> msgspec.Meta:
    """The description of a setting: its help text, and what it is to be above, or at least."""
    return msgspec.Meta(description=text, extra={"above": above, "least": least})
