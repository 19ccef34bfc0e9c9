"""`ArgsView`: the `args` of a user's function, with slime's names.

slime passes one mutable namespace to all plug points. Here each call gets its own copy: a function may set any
attribute of `args`, and no other call sees it. `ArgsView.of_run` lists the settings for all plug points.
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
"""Router address on `args`. Nothing listens at port 0; a generate call has its own port (`CallArgs`)."""


def _usable(value: object) -> object:
    """Return the value with its secrets filled in, or unchanged if a secret is not set."""
    try:
        return expand(value) if isinstance(value, str) and ("://" in value or "${" in value) else value
    except InvalidValue:
        return value


def _routers(models: Mapping[str, str]) -> dict[str, dict[str, tuple[str, int]]]:
    parts = {name: address.rpartition(":") for name, address in models.items()}
    routers = {name: (host, int(port)) for name, (host, _, port) in parts.items()}
    return {"sglang_model_routers": routers} if routers else {}


class ArgsView:
    """Settings as attributes.

    `getattr(args, name, default)`, `hasattr`, `vars`, `copy.deepcopy` and assignment work as on any object.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        vars(self).update(values)

    @classmethod
    def of(cls, *settings: Settings) -> ArgsView:
        """Return the fields of several settings structs side by side. If two share a name, the later struct wins."""
        fields = {name: value for group in settings for name, value in msgspec.to_builtins(group).items()}
        return cls({name: _usable(value) for name, value in fields.items()})

    @classmethod
    def of_run(cls, settings: TrainSettings, models: Mapping[str, str] | None = None) -> ArgsView:
        """Return the settings that every plug point of a run sees.

        models: name to host:port of each model that is served beside the trained one. Functions see them as slime's
        `sglang_model_routers`: name to (host, port).

        These are the settings of all components except the run's own folders and servers, then the entries of
        `--custom-config-path`.
        """
        groups = (settings.data, settings.evaluation, settings.trainer, settings.engine, settings.algorithm)
        shown = vars(cls.of(*groups, settings.reward, settings.rollout, settings.metrics))
        added = {name: _usable(value) for name, value in settings.rollout.custom_config.items()}
        return cls({**ROUTER, **_routers(models or {}), **shown, **added})

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
        """Return a copy of all attributes."""
        return dict(vars(self))


def for_one_call(args: ArgsView) -> ArgsView:
    """Return a copy that a function may change without any other call seeing it."""
    return ArgsView(copy.deepcopy(vars(args)))


class CallArgs(ArgsView):
    """The `args` of one generate call: `for_one_call`, whose router port opens at the first read.

    A copy of it, or its pickle in another process, is an `ArgsView` with that port.
    """

    __slots__ = ("_open",)

    def __init__(self, args: ArgsView, open_port: Callable[[], int]) -> None:
        super().__init__(vars(for_one_call(args)))
        self._open = open_port

    @property
    def sglang_router_port(self) -> int:
        """Port of the call's own engine, unless the function has set another."""
        if not vars(self).get("sglang_router_port"):
            self.sglang_router_port = self._open()
        port: int = vars(self)["sglang_router_port"]
        return port

    @sglang_router_port.setter
    def sglang_router_port(self, port: int) -> None:
        vars(self)["sglang_router_port"] = port

    def __reduce__(self) -> tuple[type[ArgsView], tuple[dict[str, Any]]]:
        return ArgsView, (vars(self) | {"sglang_router_port": self.sglang_router_port},)
