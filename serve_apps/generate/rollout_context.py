"""`Desk`: what the making of one rollout has of its worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from schemas.event import Event
from serve_apps.engine.engine import Generator
from serve_apps.rollout import ChunkRule


class Rests(BaseException):  # no error, and nothing that a function's `except Exception` should catch
    """The rollout rests at a step boundary: what is under way ends here and goes on later."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What a rollout has of its worker. append: events in one call, fenced on all that is said of the sample.
    rests: whether the rollout is to rest now. rid: its name at the engine.
    """

    engine: Generator
    rule: ChunkRule
    rid: str
    append: Callable[[Sequence[Event]], Awaitable[None]]
    rests: Callable[[], bool]
