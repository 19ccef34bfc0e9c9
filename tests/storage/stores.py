"""A place to store things in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class StoreUrl:
    """A fresh, empty place: fsspec URL and options."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)
