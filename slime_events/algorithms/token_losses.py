"""Losses per token that a Tinker client can select; the gradient is that of their sum.

Tinker's documentation defines them: https://tinker-docs.thinkingmachines.ai/tinker/losses
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from slime_events.core.training.datums import ADVANTAGES, LOG_PROBS, WEIGHTS

Inputs = Mapping[str, Tensor]
Config = Mapping[str, float]


def token_losses(loss: str, log_probs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return the named loss per token, [targets], with gradient.

    log_probs: natural, of logits at temperature 1, [targets]. inputs: [targets] each.
    """
    return _BY_NAME[loss](log_probs, inputs, config)


def _cross_entropy(log_probs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    return -log_probs * inputs[WEIGHTS]


def _importance_sampling(log_probs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    return -_ratio(log_probs, inputs) * inputs[ADVANTAGES]


def _ppo(log_probs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    ratio, advantages = _ratio(log_probs, inputs), inputs[ADVANTAGES]
    return -torch.min(ratio * advantages, _clipped(ratio, config) * advantages)


def _cispo(log_probs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    return -_clipped(_ratio(log_probs, inputs), config).detach() * log_probs * inputs[ADVANTAGES]


def _dro(log_probs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    apart = log_probs - inputs[LOG_PROBS]
    return -(log_probs * inputs[ADVANTAGES] - 0.5 * config["beta"] * apart**2)


def _ratio(log_probs: Tensor, inputs: Inputs) -> Tensor:
    return torch.exp(log_probs - inputs[LOG_PROBS])


def _clipped(ratio: Tensor, config: Config) -> Tensor:
    return torch.clamp(ratio, config["clip_low_threshold"], config["clip_high_threshold"])


_BY_NAME: Mapping[str, Callable[[Tensor, Inputs, Config], Tensor]] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
}
