"""Upcasters: convert events of older schemas to today's.

`UPCASTERS[(type, n)]` converts the plain dict of version n to version n + 1. An entry is never removed: the tests fold
golden logs of every released schema.
"""

from collections.abc import Callable
from typing import Any

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTERS: dict[tuple[str, int], Upcaster] = {}


def upcast(event_type: str, schema: int, current: int, plain: dict[str, Any]) -> dict[str, Any]:
    """Convert `plain` from version `schema` to `current`, one version at a time. KeyError if an upcaster is missing."""
    for version in range(schema, current):
        plain = UPCASTERS[(event_type, version)](plain)
    return plain
