"""`DrawnGroups`: the `data_source` of a rollout function: the prompts that the run draws, and groups given back."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from schemas.errors import PlugPointError
from slime_events.plugins.sample import Sample

Groups = list[list[Sample]]


class DrawnGroups:
    """Its calls come from the function's threads. draw: so many groups, on the role's own loop. What is drawn is in the
    log, and what is given back is so with what the function returns: a restart loses neither.
    """

    def __init__(self, draw: Callable[[int], Awaitable[Groups]] | None) -> None:
        self._draw, self._loop = draw, asyncio.get_running_loop()
        self.given_back: Groups = []

    def get_samples(self, num_samples: int) -> Groups:
        """The next groups: those that were given back, then new ones, for which it waits. Raises PlugPointError in an
        evaluation.
        """
        if self._draw is None:
            raise PlugPointError("data_source.get_samples: an evaluation has no training prompts, load its data sets")
        again, self.given_back = self.given_back[:num_samples], self.given_back[num_samples:]
        drawing = _of(self._draw, num_samples - len(again))
        drawn: Groups = asyncio.run_coroutine_threadsafe(drawing, self._loop).result()
        return [*again, *drawn]

    def add_samples(self, samples: Groups) -> None:
        """Give groups back: later calls get them before others, as they are now."""
        for group in samples:
            if not isinstance(group, list) or not group or not all(isinstance(one, Sample) for one in group):
                raise PlugPointError(f"data_source.add_samples takes lists of samples, and got {group!r:.120}")
        self.given_back += samples

    def get_buffer_length(self) -> int:
        """Groups that this call of the function has given back."""
        return len(self.given_back)

    def save(self, rollout_id: int) -> None:
        """Nothing: the log has all of it."""

    def load(self, rollout_id: int | None = None) -> None:
        """Nothing: the log has all of it."""


async def _of(draw: Callable[[int], Awaitable[Any]], count: int) -> Any:
    return await draw(count)
