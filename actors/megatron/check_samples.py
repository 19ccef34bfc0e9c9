"""`check_samples`: whether the samples of a batch can be trained on at all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from schemas.errors import TrainerError
from slime_events.core.train_batch import TrainSample


def check_samples(samples: Sequence[TrainSample], vocab_size: int) -> None:
    """Raise TrainerError for the first sample whose arrays do not fit together or the model."""
    for sample in samples:
        response = sample.response_length
        reason = None
        if not 0 < response < sample.total_length:
            reason = f"response of {response} in {sample.total_length} tokens; prompt and response need at least 1 each"
        elif len(sample.loss_mask) != response or len(sample.rollout_log_probs) != response:
            reason = (
                f"response of {response} tokens with {len(sample.loss_mask)} loss mask entries and "
                f"{len(sample.rollout_log_probs)} rollout log-probs"
            )
        elif int(sample.tokens.max()) >= vocab_size or int(sample.tokens.min()) < 0:
            reason = f"a token outside of the vocabulary of {vocab_size}"
        elif not math.isfinite(sample.reward):
            reason = f"reward {sample.reward}"
        if reason:
            raise TrainerError(f"sample {sample.sample} of group {sample.group} cannot be trained on: {reason}")
