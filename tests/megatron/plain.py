"""Compute the log-probs that a rollout step is compared with, by plain torch and transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slime_events.core.training.train_batch import TrainSample


def every_log_prob(model: Any, sample: TrainSample, temperature: float) -> Tensor:
    """[response, vocabulary], with gradient."""
    tokens = torch.from_numpy(sample.tokens).long()
    logits: Tensor = model(tokens[None]).logits[0, -sample.response_length - 1 : -1] / temperature
    return logits.log_softmax(-1)


def chosen(every: Tensor, sample: TrainSample) -> Tensor:
    """Return the log-probs of the sample's own tokens, [response]."""
    return every.gather(1, torch.from_numpy(sample.tokens).long()[-sample.response_length :, None])[:, 0]


def log_probs_of(model: Any, sample: TrainSample, temperature: float) -> Tensor:
    """[response], with gradient."""
    return chosen(every_log_prob(model, sample, temperature), sample)


def to_engine(model: Any, sample: TrainSample, temperature: float = 1.0) -> Tensor:
    """Log ratio of the model to the engine, of the trained tokens alone."""
    ratio = log_probs_of(model, sample, temperature).detach() - torch.from_numpy(sample.rollout_log_probs)
    return ratio[torch.from_numpy(sample.loss_mask) != 0]
