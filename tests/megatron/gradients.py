"""Gradients of the trainer and of transformers, by Hugging Face name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from actors.megatron.rank import TrainerRank
from actors.megatron.weights import named_parameters, whole_tensors
from slime_events.core.training.train_batch import TrainBatch
from tests.megatron.plain import log_probs_of


def gradients_of(rank: TrainerRank) -> dict[str, Tensor]:
    """Return the whole gradients of the trained parameters' last step on rank 0. All ranks call it."""
    trainee = rank.trainee
    trained = [named for named in named_parameters(trainee.model) if named[1].requires_grad]
    parts = {name: parameter.main_grad.detach() for name, parameter in trained}
    whole = whole_tensors(parts, trainee.architecture, rank.place)
    return {name: tensor.clone() for name, tensor in whole}


def plain_gradients(
    model: PreTrainedModel, batch: TrainBatch, further: Callable[[], Tensor] = lambda: torch.zeros(())
) -> dict[str, Tensor]:
    """Return the gradients of GRPO's loss by transformers' model and autograd.

    further: a loss that is added, called after a pass of each sample.
    """
    total = torch.zeros(())
    for sample in batch.samples:
        log_probs = log_probs_of(model, sample, batch.temperature)
        mask = torch.from_numpy(sample.loss_mask).float()
        ratio = (log_probs - log_probs.detach()).exp()
        total = total - (ratio * sample.reward * mask).sum() / mask.sum()
    (total / len(batch.samples) + further()).backward()
    gradients: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        gradients.update(_as_stored(name, parameter.grad))
    return gradients


def _as_stored(name: str, gradient: Tensor) -> dict[str, Tensor]:
    """Return a gradient by the names of a checkpoint. It has a tensor per expert, transformers one for all experts."""
    layer, _, kind = name.partition(".experts.")
    if kind == "down_proj":
        return {f"{layer}.experts.{expert}.down_proj.weight": part for expert, part in enumerate(gradient)}
    if kind == "gate_up_proj":
        return {
            f"{layer}.experts.{expert}.{half}_proj.weight": part
            for expert, both in enumerate(gradient)
            for half, part in zip(("gate", "up"), both.chunk(2, 0), strict=True)
        }
    return {name: gradient}
