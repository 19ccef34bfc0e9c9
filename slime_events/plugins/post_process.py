"""`PostProcess`: the user's own normalisation of a batch's rewards, and what it gave as recorded data."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from slime_events.core.config.reward import RewardSettings
from slime_events.core.state.group import GroupState
from slime_events.plugins.args_view import ArgsView, for_one_call
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import group_samples
from slime_events.plugins.texts import Texts
from slime_events.plugins.trainer_points import POST_PROCESS, UserFunction


class Processed(NamedTuple):
    """Of a batch's samples in training order. function: `module:name`; digest: sha256 (hex) of its source."""

    raw: tuple[float, ...]
    rewards: tuple[float, ...]
    function: str
    digest: str


class PostProcess:
    """slime's `(args, samples) -> (raw_rewards, rewards)` over the graded samples of a batch. texts: of the samples,
    where the groups come without.
    """

    def __init__(self, path: str, shown: ArgsView, texts: Texts | None = None) -> None:
        """Raises what `load_function` raises."""
        self._function, self._shown, self._texts = UserFunction(POST_PROCESS, path), shown, texts

    @classmethod
    def of(cls, reward: RewardSettings, shown: ArgsView, texts: Texts | None = None) -> "PostProcess | None":
        """The one that the settings name, if they do."""
        path = reward.custom_reward_post_process_path
        return cls(path, shown, texts) if path else None

    def __call__(self, groups: Sequence[GroupState]) -> Processed:
        """Raises PlugPointError where the function raises or gives anything but two numbers for each sample."""
        told = [self._texts.told(group) for group in groups] if self._texts is not None else groups
        samples = [sample for group in told for sample in _flat(group_samples(group))]
        returned = self._function(for_one_call(self._shown), samples)
        wanted = f"(raw_rewards, rewards): {len(samples)} finite numbers each, one for each sample"
        try:
            raw, rewards = (tuple(map(float, part)) for part in returned)
        except BaseException:  # whatever an object of the user's does when it is read
            raise self._function.refuse(returned, wanted) from None
        if not len(raw) == len(rewards) == len(samples) or not all(map(math.isfinite, raw + rewards)):
            raise self._function.refuse(returned, wanted)
        return Processed(raw, rewards, self._function.name, self._function.digest)


def _flat(members: Sequence[Sample | list[Sample]]) -> list[Sample]:
    return [sample for one in members for sample in (one if isinstance(one, list) else [one])]
