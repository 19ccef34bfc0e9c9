"""Upcasters: how an event of an older schema becomes one of today's.

`UPCASTERS[(type, n)]` takes the plain dict of version n and gives that of version n + 1. An entry is never removed:
golden logs of every released schema are folded in the tests for ever.
"""

from collections.abc import Callable
from typing import Any

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTERS: dict[tuple[str, int], Upcaster] = {}


def upcast(event_type: str, schema: int, current: int, plain: dict[str, Any]) -> dict[str, Any]:
    """`plain` raised from `schema` to `current`, one version at a time. KeyError where a step is missing."""
    for version in range(schema, current):
        plain = UPCASTERS[(event_type, version)](plain)
    return plain
