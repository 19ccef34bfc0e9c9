"""`Settings`: what every component's settings have in common."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen group of settings. Facts learned at run time are events, never settings."""
