"""Upcasters: convert events of older schemas to today's.

`UPCASTERS[(type, n)]` converts the plain dict of version n to version n + 1. An entry is never removed: the tests fold
golden logs of every released schema.
"""

from collections.abc import Callable
from typing import Any

from schemas.ids import is_inbox_group

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]


def _name_maker(request: dict[str, Any]) -> dict[str, Any]:
    """Set `maker` of a request, which schema 1 had as `recalls`, `function` and `agents`."""
    if request.get("recalls"):
        maker = "outside" if is_inbox_group(request["group"]) else "recorded"
    elif request.get("function"):
        maker = "function"
    else:
        maker = "agent" if request.pop("agents", False) else "engine"
    return request | {"maker": maker}


UPCASTERS: dict[tuple[str, int], Upcaster] = {("rollout.requested", 1): _name_maker}


def upcast(event_type: str, schema: int, current: int, plain: dict[str, Any]) -> dict[str, Any]:
    """Convert `plain` from version `schema` to `current`, one version at a time. KeyError if an upcaster is missing."""
    for version in range(schema, current):
        plain = UPCASTERS[(event_type, version)](plain)
    return plain
