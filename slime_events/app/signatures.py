"""How each plug point is called: protocols for a type checker. A plain function with these arguments is enough."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from serve_apps.generate.session import Session
    from slime_events.plugins.args_view import ArgsView
    from slime_events.plugins.filters.base_types import DynamicFilterOutput
    from slime_events.plugins.sample import Sample

Reward = float | dict[str, Any]
"""A number, or a dict of which --reward-key names the entry to train on."""


class RewardFunction(Protocol):
    """--custom-rm-path: the reward of one sample. May be `async`."""

    def __call__(self, args: ArgsView, sample: Sample, /) -> Reward | Awaitable[Reward]: ...


class GroupRewardFunction(Protocol):
    """--custom-rm-path with --group-rm: a reward for each sample of a group, in their order. May be `async`."""

    def __call__(self, args: ArgsView, samples: list[Sample], /) -> list[Reward] | Awaitable[list[Reward]]: ...


class DynamicFilter(Protocol):
    """--dynamic-sampling-filter-path: whether a group is worth a training step. All its samples have rewards."""

    def __call__(self, args: ArgsView, samples: list[Sample], /) -> DynamicFilterOutput | bool: ...


class GenerateFunction(Protocol):
    """--custom-generate-function-path: makes one rollout, or several samples of one. A function without `session`
    (slime's signature) is called without it.
    """

    async def __call__(
        self, args: ArgsView, sample: Sample, sampling_params: dict[str, Any], *, session: Session
    ) -> Sample | list[Sample]: ...


class BufferFilter(Protocol):
    """--buffer-filter-path: which of the archived groups in `buffer` is drawn next, as a list with that group."""

    def __call__(
        self, args: ArgsView, rollout_id: None, buffer: list[list[Sample]], num_samples: int, /
    ) -> list[list[Sample]]: ...


class PromptSource(Protocol):
    """--data-source-path names a class of these, made with `(args)`: it gives the next groups of samples to be made."""

    def get_samples(self, num_samples: int, /) -> list[list[Sample]]: ...
