"""The advantages of a batch's samples, as a lineage tells them."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from slime_events.analysis.lineage.lineage import Advantage
from slime_events.analysis.model.advantages import has_critic, has_kl_penalty, sample_advantages
from slime_events.core.config.algorithm import AlgorithmSettings


class TrainedSample(NamedTuple):
    """A sample of a batch. reward: as sealed. mask, credit: [response], `credit` None where all of it is 1."""

    name: str
    reward: float
    mask: npt.NDArray[np.int8]
    credit: npt.NDArray[np.float32] | None = None


def make_advantages(samples: Sequence[TrainedSample], settings: AlgorithmSettings) -> dict[str, Advantage]:
    """By sample, of those with a trained token."""
    if settings.advantages_by or not settings.compute_advantages_and_returns or has_critic(settings):
        return {}  # made by the user's function or of a critic's values in the trainer, or not at all
    left_out: tuple[str, ...] = ()
    if has_kl_penalty(settings):
        left_out = ("kl", *(("whitening",) if settings.normalize_advantages else ()))
        settings = msgspec.structs.replace(settings, normalize_advantages=False)
    names, rewards, masks, credits = zip(*samples, strict=True) if samples else ((), (), (), ())
    advantages = sample_advantages(rewards, masks, settings, credits)
    return {
        name: Advantage(estimator=settings.advantage_estimator, first=float(first), last=float(last), left_out=left_out)
        for name, mask, first, last in zip(names, masks, advantages.first, advantages.last, strict=True)
        if mask.any()
    }
