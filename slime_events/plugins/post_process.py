"""`PostProcess`: a user's own normalization of a batch's rewards, and its result as recorded data."""

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from schemas.doc import doc
from slime_events.core.config.reward import RewardSettings
from slime_events.core.state.group import GroupState
from slime_events.plugins.args_view import ArgsView, for_one_call
from slime_events.plugins.sample_view import group_samples
from slime_events.plugins.step_functions import flat
from slime_events.plugins.texts import Texts
from slime_events.plugins.trainer_points import POST_PROCESS, UserFunction


class Processed(NamedTuple):
    """Rewards of a batch's samples, in training order."""

    raw: Annotated[tuple[float, ...], doc("Rewards before normalization.")]
    rewards: Annotated[tuple[float, ...], doc("Rewards that advantages are computed from.")]
    function: Annotated[str, doc("`module:name`.")]
    digest: Annotated[str, doc("sha256 (hex) of the function's source.")]


class PostProcess:
    """slime's `(args, samples) -> (raw_rewards, rewards)` over the graded samples of a batch.

    `texts` holds the texts of the samples, if the groups come without.
    """

    def __init__(self, path: str, shown: ArgsView, texts: Texts | None = None) -> None:
        """Raises the errors of `load_function`."""
        self._function, self._shown, self._texts = UserFunction(POST_PROCESS, path), shown, texts

    @classmethod
    def of(cls, reward: RewardSettings, shown: ArgsView, texts: Texts | None = None) -> "PostProcess | None":
        """Return the function that the settings name; None without one."""
        path = reward.custom_reward_post_process_path
        return cls(path, shown, texts) if path else None

    def __call__(self, groups: Sequence[GroupState]) -> Processed:
        """Return the processed rewards.

        Raises PlugPointError if the function raises or returns anything but two finite numbers for each sample.
        """
        if self._texts is not None:
            groups = [self._texts.with_texts(group) for group in groups]
        samples = flat([group_samples(group) for group in groups])
        returned = self._function(for_one_call(self._shown), samples)
        expected = f"(raw_rewards, rewards): {len(samples)} finite numbers each, one for each sample"
        try:
            raw, rewards = (tuple(map(float, part)) for part in returned)
        except BaseException:  # a user's object may raise anything when it is read
            raise self._function.refuse(returned, expected) from None
        if not len(raw) == len(rewards) == len(samples) or not all(map(math.isfinite, raw + rewards)):
            raise self._function.refuse(returned, expected)
        return Processed(raw, rewards, self._function.name, self._function.digest)
