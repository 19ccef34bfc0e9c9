"""`PredictionLayer`: a layer that predicts the token after the next one, and `Predictions`: its loss in a step.

The gradient of its loss reaches its own parameters only: hidden states, embedding and output layer are constants for
it, as in slime. So it learns to predict what the policy says, and does not change the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from actors.megatron.families.norm import Norm
from actors.step.log_probs import Layer, log_probs_and_entropy
from schemas.doc import doc
from slime_events.core.training.train_batch import TrainSample

AHEAD = 2
"""A position predicts the token this many places later."""


class PredictionLayer(MegatronModule):  # type: ignore[misc]  # Megatron's class is not typed
    """A transformer layer over the hidden state of each position and the embedding of the next token.

    Formula (21) to (23) of the DeepSeek-V3 report, with one layer. Each tensor parallel rank has the whole projection.
    """

    def __init__(self, config: TransformerConfig, spec: ModuleSpec) -> None:
        """spec: the layer, as the family builds it."""
        super().__init__(config=config)
        hidden, epsilon = config.hidden_size, config.layernorm_epsilon
        self.enorm, self.hnorm = Norm(config, hidden, epsilon), Norm(config, hidden, epsilon)
        self.eh_proj = torch.nn.Linear(2 * hidden, hidden, bias=False, dtype=config.params_dtype)
        self.eh_proj.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]  # for Megatron
        self.transformer_layer = build_module(spec, config=config, layer_number=config.num_layers + 1)
        self.final_layernorm = Norm(config, hidden, epsilon)

    def forward(self, hidden: Tensor, following: Tensor, **layer: Any) -> Tensor:
        """Return hidden states for the output layer, [tokens of this rank, 1, hidden] as both inputs.

        hidden: of the last layer, after the final norm. following: the embedding of the next tokens. layer: the
        arguments of a layer.
        """
        joined = torch.cat([self.enorm(following), self.hnorm(hidden)], -1)
        output, _ = self.transformer_layer(hidden_states=self.eh_proj(joined), attention_mask=None, **layer)
        normed: Tensor = self.final_layernorm(output)
        return normed


@dataclass
class Prediction:
    """The targets of a micro batch, for one pass with gradients."""

    following: Annotated[Tensor, doc("int64 [1, tokens]: the next token of each position; 0 after the last one")]
    rows: Annotated[Tensor, doc("int64 [rows]: packed positions that predict a trained token")]
    targets: Annotated[Tensor, doc("int64 [rows]: these tokens")]
    scale: Annotated[float, doc("factor of the sum of the rows' losses")]
    record: Annotated[Callable[[Tensor], None], doc("called with the sum of the rows' losses, in nats")]
    taken: bool = field(default=False)

    @classmethod
    def idle(cls, token_ids: Tensor) -> Prediction:
        """Return no targets, for a pass that only computes other ranks' tokens."""
        none = torch.zeros(0, dtype=torch.int64, device=token_ids.device)
        return cls(torch.zeros_like(token_ids), none, none, 0.0, lambda _: None)

    def take(self) -> bool:
        """Return whether this pass adds the loss: the first one with gradients does."""
        first = not self.taken and torch.is_grad_enabled()
        self.taken = self.taken or first
        return first


def prediction_loss(model: Any, prediction: Prediction, hidden: Tensor, layer: Layer, **arguments: Any) -> Tensor:
    """Return the loss of a pass, float32 [].

    model: the policy. hidden: [tokens of this rank, 1, hidden], after the final norm. layer: the output layer without
    gradient of its weight. arguments: those of a layer.
    """
    with torch.no_grad():
        following = model.embedding(input_ids=prediction.following, position_ids=None)
    output = model.mtp(hidden.detach(), following, **arguments)
    group = model.pg_collection.tp
    if model.config.sequence_parallel:
        output = gather_from_sequence_parallel_region(output, False, group=group)
    rows = output.squeeze(1).index_select(0, prediction.rows)
    if not len(rows):
        return output.float().sum() * 0.0
    log_probs, _ = log_probs_and_entropy(layer(rows), prediction.targets, group)
    total = -log_probs.sum()
    prediction.record(total.detach())
    return total * prediction.scale


class WithLoss(torch.autograd.Function):
    """Return hidden states unchanged. Their backward pass is that of a further loss too."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (loss,) = ctx.saved_tensors
        return grad, torch.ones_like(loss)


class Predictions:
    """The predicted tokens of a step's updates, and the sum of their losses on this rank.

    An update's loss is the mean over the predicted trained tokens of all its samples on all ranks, times `factor`.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._masks: Sequence[Tensor] = ()
        self._tokens = self._all = 0
        self._sum: Tensor | float = 0.0

    def begin(self, samples: Sequence[TrainSample], masks: Sequence[Tensor], indices: Sequence[int]) -> None:
        """Begin an update over the samples at `indices`. masks: [response] of each sample of the batch."""
        self._masks = masks
        self._tokens = sum(len(_predicted(samples[index], masks[index])) for index in indices)
        self._all += self._tokens

    def end(self, group: dist.ProcessGroup) -> dict[str, float]:
        """End the step; return its metric, the mean loss of its predicted tokens [nats]. group: data parallel ranks."""
        total = torch.as_tensor(self._sum, dtype=torch.float32).clone()
        total = total.to(torch.device(torch.cuda.current_device()))
        dist.all_reduce(total, group=group)
        mean = float(total) / max(1, self._all)
        self._masks, self._tokens, self._all, self._sum = (), 0, 0, 0.0
        return {"mtp_loss": mean}

    def of(
        self, samples: Sequence[TrainSample], indices: Sequence[int], token_ids: Tensor, ends: Tensor
    ) -> Prediction | None:
        """Return the targets of packed samples; None outside of an update.

        ends: int [sequences + 1], where each sequence ends in `token_ids` [1, tokens].
        """
        if not self._masks:
            return None
        device = token_ids.device
        following = token_ids.roll(-1, 1)
        following[0, (ends[1:] - 1).to(device)] = 0
        places, start = [], 0
        for index in indices:
            places.append(_predicted(samples[index], self._masks[index]) + start)
            start += samples[index].total_length
        targets = torch.cat(places).to(device)
        scale = self._factor / max(1, self._tokens)
        return Prediction(following, targets - AHEAD, token_ids[0].index_select(0, targets), scale, self._record)

    def _record(self, total: Tensor) -> None:
        self._sum = self._sum + total


def _predicted(sample: TrainSample, mask: Tensor) -> Tensor:
    """Return the places of a sample's trained tokens, int64, without those that no position predicts."""
    first = sample.total_length - sample.response_length
    places = mask.cpu().nonzero().flatten() + first
    return places[places >= AHEAD]
