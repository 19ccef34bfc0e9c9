"""The advantages of a batch's samples, as parts of a lineage."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.doc import doc
from slime_events.analysis.lineage.lineage import Advantage
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.model.advantages import has_critic, has_kl_penalty, sample_advantages


class TrainedSample(NamedTuple):
    """A sample of a batch."""

    name: Annotated[str, doc("id of the sample")]
    reward: Annotated[float, doc("reward as sealed")]
    mask: Annotated[npt.NDArray[np.int8], doc("loss mask [response]")]
    credit: Annotated[npt.NDArray[np.float32] | None, doc("weights of its tokens [response]; None: all 1")] = None


def make_advantages(samples: Sequence[TrainedSample], settings: AlgorithmSettings) -> dict[str, Advantage]:
    """Return the advantage of each sample with a trained token."""
    if settings.advantages_by or not settings.compute_advantages_and_returns or has_critic(settings):
        return {}  # computed by a user's function, from a critic's values, or not at all
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
