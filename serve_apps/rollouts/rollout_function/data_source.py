"""`DrawnGroups`: the `data_source` of a rollout function: prompts that the run draws, and groups given back."""

import asyncio
from collections.abc import Awaitable, Callable

from schemas.errors import PlugPointError
from slime_events.plugins.sample import Sample

Groups = list[list[Sample]]


class DrawnGroups:
    """Data source for the function's threads. `draw` returns a number of groups, on the role's own loop.

    Drawn groups are in the log. Groups given back are recorded with the function's result. So a restart loses neither.
    """

    def __init__(self, draw: Callable[[int], Awaitable[Groups]] | None) -> None:
        self._draw, self._loop = draw, asyncio.get_running_loop()
        self.given_back: Groups = []

    def get_samples(self, num_samples: int) -> Groups:
        """Return the next groups: first those given back, then new ones, which it waits for.

        Raises PlugPointError in an evaluation.
        """
        if self._draw is None:
            raise PlugPointError("data_source.get_samples: an evaluation has no training prompts; load its data sets")
        again, self.given_back = self.given_back[:num_samples], self.given_back[num_samples:]
        drawing = _of(self._draw, num_samples - len(again))
        drawn = asyncio.run_coroutine_threadsafe(drawing, self._loop).result()
        return [*again, *drawn]

    def add_samples(self, samples: Groups) -> None:
        """Give groups back. Later calls return them before other groups, in their current state."""
        for group in samples:
            if not isinstance(group, list) or not group or not all(isinstance(sample, Sample) for sample in group):
                raise PlugPointError(f"data_source.add_samples takes lists of samples, but got {group!r:.120}")
        self.given_back += samples

    def get_buffer_length(self) -> int:
        """Return the number of groups that this call of the function has given back."""
        return len(self.given_back)

    def save(self, rollout_id: int) -> None:
        """Do nothing: the log has everything."""

    def load(self, rollout_id: int | None = None) -> None:
        """Do nothing: the log has everything."""


async def _of(draw: Callable[[int], Awaitable[Groups]], count: int) -> Groups:
    return await draw(count)
