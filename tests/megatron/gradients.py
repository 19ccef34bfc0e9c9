"""Gradients of the trainer and of transformers, by Hugging Face name."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from actors.megatron.rank import TrainerRank
from actors.megatron.weights import gathered, hf_tensors, model_rules, named_parameters
from slime_events.core.training.train_batch import TrainBatch
from tests.megatron.plain import log_probs_of


def gradients_of(rank: TrainerRank) -> dict[str, Tensor]:
    """Return the whole gradients of the last optimizer step. All tensor parallel ranks call it."""
    trainee, gradients = rank.trainee, {}
    rules = model_rules(trainee.model, trainee.architecture)
    for name, parameter in named_parameters(trainee.model):
        parts = gathered(rules[name], parameter.main_grad.detach(), rank.place.tensor)
        gradients.update({theirs: tensor.clone() for theirs, tensor in hf_tensors(rules[name], parts)})
    return gradients


def plain_gradients(model: PreTrainedModel, batch: TrainBatch) -> dict[str, Tensor]:
    """Return the gradients of GRPO's loss by transformers' model and autograd."""
    total = torch.zeros(())
    for sample in batch.samples:
        log_probs = log_probs_of(model, sample, batch.temperature)
        mask = torch.from_numpy(sample.loss_mask).float()
        ratio = (log_probs - log_probs.detach()).exp()
        total = total - (ratio * sample.reward * mask).sum() / mask.sum()
    (total / len(batch.samples)).backward()
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
