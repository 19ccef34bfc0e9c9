"""`ArgsView`: the `args` of a user's function, with slime's names.

slime passes one mutable namespace to all plug points. Here each call has a copy of its own: a function may set what it
likes on `args`, and no other call sees it. One list, `ArgsView.of_run`, is for all plug points.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from schemas.errors import InvalidValue
from schemas.references import expand
from slime_events.core.config.base import Settings
from slime_events.core.config.settings import TrainSettings

ROUTER = {"sglang_router_ip": "127.0.0.1", "sglang_router_port": 0}
"""The address on `args`. Nothing listens at port 0; a generate call has a port of its own (`CallArgs`)."""


def _usable(value: Any) -> Any:
    """With its secrets, for the function that makes a connection of it; where they are not set, as it is recorded."""
    try:
        return expand(value) if isinstance(value, str) and ("://" in value or "${" in value) else value
    except InvalidValue:
        return value


class ArgsView:
    """Settings as attributes. `getattr(args, name, default)`, `hasattr`, `vars`, `copy.deepcopy` and setting work as on
    any object.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        vars(self).update(values)

    @classmethod
    def of(cls, *settings: Settings) -> ArgsView:
        """The fields of several settings structs side by side; of two with one name the later counts."""
        fields = {name: value for group in settings for name, value in msgspec.to_builtins(group).items()}
        return cls({name: _usable(value) for name, value in fields.items()})

    @classmethod
    def of_run(cls, settings: TrainSettings) -> ArgsView:
        """What every plug point of a run sees: the settings of all components but those of the run's own places and
        servers, then what `--custom-config-path` adds.
        """
        groups = (settings.data, settings.evaluation, settings.trainer, settings.engine, settings.algorithm)
        shown = vars(cls.of(*groups, settings.reward, settings.rollout, settings.metrics))
        added = {name: _usable(value) for name, value in settings.rollout.custom_config.items()}
        return cls({**ROUTER, **shown, **added})

    def __getattr__(self, name: str) -> Any:
        near = difflib.get_close_matches(name, vars(self), n=3)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise AttributeError(f"args has no {name!r} here{hint}", name=name, obj=self)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __contains__(self, name: object) -> bool:
        return name in vars(self)

    def __repr__(self) -> str:
        return f"ArgsView({vars(self)!r})"

    def as_dict(self) -> dict[str, Any]:
        """A copy of everything in view."""
        return dict(vars(self))


def for_one_call(args: ArgsView) -> ArgsView:
    """A copy that a function may change: nobody else sees it."""
    return ArgsView(copy.deepcopy(vars(args)))


class CallArgs(ArgsView):
    """The `args` of one generate call: `for_one_call`, whose router's port is opened when it is first read.

    A copy, and what another process is given, is an `ArgsView` with that port.
    """

    __slots__ = ("_open",)

    def __init__(self, args: ArgsView, open_port: Callable[[], int]) -> None:
        super().__init__(vars(for_one_call(args)))
        self._open = open_port

    @property
    def sglang_router_port(self) -> int:
        """Of the call's own engine, unless somebody has set another."""
        if not vars(self).get("sglang_router_port"):
            self.sglang_router_port = self._open()
        port: int = vars(self)["sglang_router_port"]
        return port

    @sglang_router_port.setter
    def sglang_router_port(self, port: int) -> None:
        vars(self)["sglang_router_port"] = port

    def __reduce__(self) -> tuple[Any, ...]:
        return ArgsView, (vars(self) | {"sglang_router_port": self.sglang_router_port},)
