"""`ArgsView`: the `args` of a user's function, with slime's names, read only.

slime passes its whole mutable namespace to plug points. Here a plug point sees the settings it may know, flattened
under the same names (`args.reward_key`, `args.rm_type`, ...), and cannot change them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from schemas.errors import InvalidValue
from schemas.references import expand
from slime_events.core.config.base import Settings


def _usable(value: Any) -> Any:
    """With its secrets, for the function that makes a connection of it; where they are not set, as it is recorded."""
    try:
        return expand(value) if isinstance(value, str) and "://" in value else value
    except InvalidValue:
        return value


class ArgsView:
    """Attribute access to a fixed mapping. `getattr(args, name, default)` and `hasattr` work as on any object."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_values", MappingProxyType(dict(values)))

    @classmethod
    def of(cls, *settings: Settings) -> ArgsView:
        """The fields of several settings structs side by side; of two with one name the later counts."""
        fields = {name: value for group in settings for name, value in msgspec.to_builtins(group).items()}
        return cls({name: _usable(value) for name, value in fields.items()})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._values, n=3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise AttributeError(f"args has no {name!r} here{hint}", name=name, obj=self) from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"args is read only: {name!r} cannot be set (keep state in your own module)")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __repr__(self) -> str:
        return f"ArgsView({dict(self._values)!r})"

    def as_dict(self) -> dict[str, Any]:
        """A copy of everything in view."""
        return dict(self._values)
