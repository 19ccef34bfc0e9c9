"""Protocols of the plug points, for a type checker. A plain function with these arguments matches."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from serve_apps.rollouts.generate.session import Session
    from slime_events.plugins.args_view import ArgsView
    from slime_events.plugins.filters.base_types import DynamicFilterOutput
    from slime_events.plugins.sample import Sample

Reward = float | dict[str, Any]
"""A number, or a dict whose entry --reward-key is the reward to train on."""


class RewardFunction(Protocol):
    """--custom-rm-path: returns the reward of one sample. May be `async`."""

    def __call__(self, args: ArgsView, sample: Sample, /) -> Reward | Awaitable[Reward]: ...


class GroupRewardFunction(Protocol):
    """--custom-rm-path with --group-rm: returns the rewards of a group's samples in order. May be `async`."""

    def __call__(self, args: ArgsView, samples: list[Sample], /) -> list[Reward] | Awaitable[list[Reward]]: ...


class DynamicFilter(Protocol):
    """--dynamic-sampling-filter-path: returns whether to train on a group. All its samples have rewards."""

    def __call__(self, args: ArgsView, samples: list[Sample], /) -> DynamicFilterOutput | bool: ...


class GenerateFunction(Protocol):
    """--custom-generate-function-path: generates one rollout, as one sample or several.

    A function without the parameter `session` (slime's signature) is called without it.
    """

    async def __call__(
        self, args: ArgsView, sample: Sample, sampling_params: dict[str, Any], *, session: Session
    ) -> Sample | list[Sample]: ...


class BufferFilter(Protocol):
    """--buffer-filter-path: returns a list with the archived group of `buffer` that is drawn next."""

    def __call__(
        self, args: ArgsView, rollout_id: None, buffer: list[list[Sample]], num_samples: int, /
    ) -> list[list[Sample]]: ...


class PromptSource(Protocol):
    """--data-source-path names a class that is constructed with `(args)` and returns the next groups to generate."""

    def get_samples(self, num_samples: int, /) -> list[list[Sample]]: ...
