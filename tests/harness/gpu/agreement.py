"""A rank on the GPU against the same weights and batch on the CPU in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from actors.megatron.rank import TrainerRank
from slime_events.core.training.train_batch import TrainBatch
from tests.harness.gpu.report import Row
from tests.harness.gpu.scene import MIDDLE, Scene, lengths_to, make_batch, one_rank
from tests.megatron.plain import chosen, every_log_prob

ALGORITHM = {"entropy_coef": 0.1}
"""With the entropy in it the loss depends on every logit."""


@dataclass(frozen=True, slots=True)
class Figures:
    """log_probs: float64 [response tokens of all samples]. loss, grad_norm: of the first step, before clipping."""

    log_probs: Tensor
    loss: float
    grad_norm: float


def reference(folder: str, batch: TrainBatch) -> Figures:
    """Compute with transformers and autograd in float64, sample by sample; the loss is that of GRPO with entropy."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    parts, loss = [], 0.0
    for sample in batch.samples:
        every = every_log_prob(model, sample, batch.temperature)
        log_probs, entropy = chosen(every, sample), -(every.exp() * every).sum(-1)
        gain = (log_probs - log_probs.detach()).exp() * sample.reward + ALGORITHM["entropy_coef"] * entropy
        part = -gain.mean() / len(batch.samples)
        torch.autograd.backward(part)
        loss += part.item()
        parts.append(log_probs.detach())
    norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
    return Figures(torch.cat(parts), loss, torch.stack(norms).norm().item())


def of_rank(rank: TrainerRank, batch: TrainBatch) -> Figures:
    """Compute with our rank: log-probs without a gradient, then a step."""
    every = rank.trainee.scores_of(rank.trainee.model, batch.samples, range(len(batch.samples)), batch.temperature)
    log_probs = torch.cat([every[index].cpu().double() for index in range(len(batch.samples))])
    metrics = rank.train(batch).metrics
    return Figures(log_probs, metrics["loss"], metrics["grad_norm"])


def distances(seen: Figures, true: Figures) -> dict[str, float | int | str]:
    """Return the absolute differences of log-probs in nats, and the relative ones of loss and norm."""
    apart = (seen.log_probs - true.log_probs).abs()
    return {
        "log-probs, largest difference, nats": apart.max().item(),
        "their mean difference, nats": apart.mean().item(),
        "loss, relative": relative(seen.loss, true.loss),
        "gradient norm, relative": relative(seen.grad_norm, true.grad_norm),
    }


def relative(seen: float, true: float) -> float:
    """|seen - true| / |true|."""
    return abs(seen - true) / max(abs(true), 1e-30)


def weights_of(rank: TrainerRank) -> dict[str, Tensor]:
    """Return the weights by Hugging Face name, float32 on the CPU."""
    return {name: tensor.detach().float().cpu().clone() for name, tensor in rank.export_weights()}


def furthest(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Return the largest absolute difference of any weight."""
    return max((first[name] - second[name]).abs().max().item() for name in first)


def look(scene: Scene) -> None:
    """Compare float32 and bfloat16 with float64, and make two more steps in each."""
    model, vocabulary = scene.model("middle"), MIDDLE["vocab_size"]
    batches = [make_batch(lengths_to(2048, 512, step), vocabulary, step) for step in range(3)]
    true = reference(str(model), batches[0])
    figures: dict[str, float | int | str] = {"loss": true.loss, "gradient norm": true.grad_norm}
    where = f"{sum(s.total_length for s in batches[0].samples)} tokens in {len(batches[0].samples)} samples"
    Row("float64 on the CPU, transformers", where, figures).say()
    for bf16 in (False, True):
        _in_precision(model=str(model), batches=batches, true=true, bf16=bf16, scene=scene)


def _in_precision(*, model: str, batches: Sequence[TrainBatch], true: Figures, bf16: bool, scene: Scene) -> None:
    name = f"a step in {'bfloat16' if bf16 else 'float32'} on {scene.device}"
    with one_rank(scene.folder / "middle", ALGORITHM, bf16=bf16) as rank:
        before = weights_of(rank)
        seen = of_rank(rank, batches[0])
        more = [rank.train(batch).metrics["grad_norm"] for batch in batches[1:]]
        after = weights_of(rank)
    apart = distances(seen, true) | {"weights moved by at most": furthest(before, after)}
    Row(name, f"three steps; the norms of the next two {more[0]:.5g}, {more[1]:.5g}", apart).say()
