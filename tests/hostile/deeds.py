"""List what a user's function may do to its caller: raise anything, return anything."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import msgspec
import numpy as np

HALF = chr(0xD83D)
"""Half a character, which has no UTF-8."""
LARGE = 6_000_000
"""Bytes; an event has four million at most."""


class Unreadable(Exception):
    """Its text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError(f"no text {HALF}")

    __repr__ = __str__


class Worse(Unreadable):
    """To read its text ends the process."""

    def __str__(self) -> str:
        raise SystemExit(4)


class Own(BaseException):
    """No `Exception`, and nothing that Python knows."""


class Hostile:
    """An object that raises whatever is done with it."""

    def _raise(self, *_: object) -> Any:
        raise Own(f"leave me alone {HALF}")

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = __getitem__ = __float__ = _raise
    __index__ = __array__ = __lt__ = __int__ = _raise


class Sly(dict[str, Any]):
    """A dict that raises when it is read."""

    def items(self) -> Any:
        raise KeyboardInterrupt

    __iter__ = items


class Text(str):
    """A text that is more than one."""


class Number(int):
    """A number that is more than one."""


def _raising(make: Callable[..., BaseException], *arguments: Any) -> Callable[[], NoReturn]:
    """Raises a new one each time."""

    def deed() -> NoReturn:
        raise make(*arguments)

    return deed


def _recursive() -> NoReturn:
    _recursive()
    raise AssertionError


def _deep() -> Any:
    value: Any = "bottom"
    for _ in range(5_000):
        value = [value]
    return value


def _cycle() -> Any:
    """Each of its levels has it twice: without a bound it has no end."""
    value: dict[str, Any] = {"score": 1.0}
    value["left"], value["right"] = value, [value, value]
    return value


def _endless() -> Iterator[float]:
    yield from itertools.repeat(1.0)


RAISES: dict[str, Callable[[], Any]] = {
    "half": _raising(RuntimeError, f"the tool said {HALF}"),
    "large": _raising(ValueError, "y" * LARGE),
    "control": _raising(ValueError, "\x1b]0;title\x07\x00"),
    "exit": _raising(SystemExit, 3),
    "interrupt": _raising(KeyboardInterrupt),
    "generator-exit": _raising(GeneratorExit),
    "own": _raising(Own, HALF),
    "recursion": _recursive,
    "memory": _raising(MemoryError),
    "unreadable": _raising(Unreadable),
    "worse": _raising(Worse),
    "cancelled": _raising(asyncio.CancelledError, HALF),
    "stop": _raising(StopIteration, HALF),
    "stop-async": _raising(StopAsyncIteration, HALF),
    "group": _raising(ExceptionGroup, HALF, [ValueError(HALF)]),
    "two-arguments": _raising(OSError, 5, HALF, f"/{HALF}"),
}
RETURNS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "large-text": lambda: "y" * LARGE,
    "large-dict": lambda: {"score": 1.0, "log": "y" * LARGE},
    "large-other": lambda: {"score": 1.0, "log": "\u20ac" * (LARGE // 3)},
    "many-keys": lambda: {"score": 1.0} | {str(n): n for n in range(200_000)},
    "many-numbers": lambda: {"score": 1.0, "all": list(range(300_000))},
    "large-array": lambda: {"score": 1.0, "array": np.zeros(5_000_000)},
    "half": lambda: f"half {HALF}",
    "half-dict": lambda: {"score": 1.0, "quote": f"half {HALF}", f"key {HALF}": [HALF]},
    "deep": lambda: {"score": 1.0, "deep": _deep()},
    "cycle": _cycle,
    "endless": _endless,
    "hostile": Hostile,
    "hostile-inside": lambda: {"score": 1.0, "inside": Hostile(), "list": [Hostile()]},
    "hostile-score": lambda: {"score": Hostile()},
    "sly": lambda: Sly(score=1.0),
    "text": lambda: "the answer",
    "subclass": lambda: {Text("score"): Number(1), "more": Text("x")},
    "bytes": lambda: b"\xff",
    "bool": lambda: True,
    "float": lambda: 1.5,
    "nan": lambda: float("nan"),
    "huge": lambda: 10**400,
    "numpy": lambda: np.float64(0.5),
    "numpy-int": lambda: np.int64(1),
    "array": lambda: np.ones((2, 2)),
    "objects": lambda: [object(), {1: 2, (3, 4): {5}}, {1, 2}, print],
    "empty-list": list,
    "list-of-none": lambda: [None, None, None],
    "class": lambda: Hostile,
    "unset": lambda: msgspec.UNSET,
    "exception": lambda: Unreadable(),
}
DEEDS = {**{f"raise {name}": deed for name, deed in RAISES.items()}, **RETURNS}
"""By name. Called, each of them raises or returns its value."""
HEAVY = frozenset(
    {"raise large", "large-text", "large-dict", "large-other", "many-keys", "many-numbers", "large-array"}
)
"""Those that take a while."""
