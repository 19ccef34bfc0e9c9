"""`Predictions`: the loss of a step by which a layer learns to predict the token after the next one.

The gradient of the loss reaches the parameters of the layer only: hidden states, embedding and output layer are
constants for it, as in slime. So the layer learns to predict what the policy says, and does not change the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.mappings import (
    gather_from_sequence_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from actors.step.log_probs import Layer, LogitMemory, TargetTokens
from actors.step.place import Axis, Place
from schemas.doc import doc
from slime_events.core.training.train_batch import TrainSample

Ints = npt.NDArray[np.int64]
AHEAD = 2
"""A position predicts the token this many places later."""
NOTHING = -1
"""Target of a position that predicts no trained token."""


@dataclass(frozen=True, slots=True)
class EmbeddingRows:
    """The embedding of some tokens, for the last stage of a pipeline."""

    ids: Annotated[Tensor, doc("int64 [ids]: ascending")]
    values: Annotated[Tensor, doc("[ids, hidden], of the parameters' dtype")]

    def of(self, token_ids: Tensor) -> Tensor:
        """Return the embedding of tokens [1, tokens], which are among the ids: [tokens, 1, hidden]."""
        places = torch.searchsorted(self.ids, token_ids[0])
        return self.values.index_select(0, places).unsqueeze(1)


@dataclass
class Prediction:
    """The targets of a micro batch, for one pass with gradients."""

    following: Annotated[
        Tensor, doc("int64 [1, this rank's tokens]: the next token of each position; 0 after the last one")
    ]
    rows: Annotated[Tensor, doc("int64 [rows]: places among this rank's tokens that predict a trained token")]
    targets: Annotated[Tensor, doc("int64 [rows]: these tokens")]
    scale: Annotated[float, doc("factor of the sum of the rows' losses")]
    memory: Annotated[LogitMemory, doc("limits on the memory for logits")]
    record: Annotated[Callable[[Tensor], None], doc("called with the sum of the rows' losses, in nats")]
    embedding: Annotated[EmbeddingRows | None, doc("of `following`, on a stage without the embedding")] = None
    taken: bool = field(default=False)

    @classmethod
    def idle(cls, token_ids: Tensor, config: TransformerConfig) -> Prediction:
        """Return no targets, for a pass that only computes other ranks' tokens."""
        none = torch.zeros(0, dtype=torch.int64, device=token_ids.device)
        values = torch.zeros(1, config.hidden_size, dtype=config.params_dtype, device=token_ids.device)
        embedding = EmbeddingRows(torch.zeros_like(token_ids[0, :1]), values)
        return cls(torch.zeros_like(token_ids), none, none, 0.0, LogitMemory(), lambda _: None, embedding)

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
    output = model.mtp.only(hidden.detach(), _following(model, prediction), **arguments)
    group = model.pg_collection.tp
    if model.config.sequence_parallel:
        output = gather_from_sequence_parallel_region(output, False, group=group)
    rows = output.squeeze(1).index_select(0, prediction.rows)
    if not len(rows):
        none: Tensor = output.float().sum() * 0.0
        return none
    targets = TargetTokens(prediction.targets, None, 1.0, group, False, prediction.memory)
    log_probs, _ = targets.by_rows(layer, rows)
    total = -log_probs.sum()
    prediction.record(total.detach())
    loss: Tensor = total * prediction.scale
    return loss


@torch.no_grad()
def _following(model: Any, prediction: Prediction) -> Tensor:
    """Return the embedding of the next tokens, [tokens of this rank, 1, hidden]."""
    if model.pre_process:
        embedded: Tensor = model.embedding(input_ids=prediction.following, position_ids=None)
        return embedded
    assert prediction.embedding is not None, "the last stage gets it before the passes"
    rows = prediction.embedding.of(prediction.following)
    if not model.config.sequence_parallel:
        return rows
    own: Tensor = scatter_to_sequence_parallel_region(rows, group=model.pg_collection.tp)
    return own


class Predictions:
    """The predicted tokens of a step's updates, and the sum of their losses on this rank.

    An update's loss is the mean over the predicted trained tokens of all its samples on all ranks, times `factor`.
    """

    def __init__(self, factor: float, memory: LogitMemory) -> None:
        self._factor, self._memory = factor, memory
        self._samples: Sequence[TrainSample] = ()
        self._masks: Sequence[Tensor] = ()
        self._embedding: EmbeddingRows | None = None
        self._gradient_scale = 1.0
        self._tokens = self._all = 0
        self._sum: Tensor | float = 0.0

    def begin(
        self, samples: Sequence[TrainSample], masks: Sequence[Tensor], indices: Sequence[int], gradient_scale: float
    ) -> None:
        """Begin an update over the samples at `indices`.

        masks: [response] of each sample of the batch. gradient_scale: factor of the gradients, which the optimizer
        takes back.
        """
        self._samples, self._masks, self._gradient_scale = samples, masks, gradient_scale
        self._tokens = sum(len(_predicted(samples[index], masks[index])) for index in indices)
        self._all += self._tokens

    def ids(self, batches: Sequence[list[int]]) -> Ints:
        """Return the ids of the tokens of this rank's micro batches in an update, int64 [ids], ascending."""
        tokens = [self._samples[index].tokens for members in batches for index in members]
        # A position without a next token has id 0.
        return np.unique(np.concatenate([np.zeros(1, np.int64), *tokens]))

    def take_embedding(self, embedding: EmbeddingRows | None) -> None:
        """Use the embedding of `ids` in the passes of the update."""
        self._embedding = embedding

    def end(self, place: Place) -> dict[str, float]:
        """End the step; return its metric, the mean loss of its predicted tokens [nats]; collective."""
        total = torch.as_tensor(self._sum, dtype=torch.float32).clone().to(place.device)
        for axis in (Axis.REPLICAS, Axis.PIPELINE):  # only the last stage has a loss
            if place.size(axis) > 1:
                dist.all_reduce(total, group=place.group(axis))
        mean = float(total) / max(1, self._all)
        self._samples, self._masks, self._embedding = (), (), None
        self._tokens, self._all, self._sum = 0, 0, 0.0
        return {"mtp_loss": mean}

    def of(
        self,
        samples: Sequence[TrainSample],
        indices: Sequence[int],
        token_ids: Tensor,
        of_own_tokens: Callable[[Tensor, int], Tensor],
    ) -> Prediction | None:
        """Return this rank's targets of packed samples; None outside of an update.

        token_ids: int64 [1, tokens], of the samples at `indices` one after another, then any padding. of_own_tokens:
        see `PackedSequences`.
        """
        if not self._masks:
            return None
        device, ids = token_ids.device, token_ids[0]
        places, lasts, start = [], [ids.numel() - 1], 0
        for index in indices:
            places.append(_predicted(samples[index], self._masks[index]) + start)
            start += samples[index].total_length
            lasts.append(start - 1)
        following = ids.roll(-1)
        following[torch.tensor(lasts, device=device)] = 0
        trained = torch.cat(places).to(device)
        ahead = torch.full_like(ids, NOTHING)
        ahead[trained - AHEAD] = ids.index_select(0, trained)
        # Context parallel ranks have parts of a sequence: a position's next tokens may be another rank's.
        following, ahead = of_own_tokens(following, 0), of_own_tokens(ahead, NOTHING)
        rows = (ahead != NOTHING).nonzero().squeeze(1)
        scale = self._factor * self._gradient_scale / max(1, self._tokens)
        targets = ahead.index_select(0, rows)
        return Prediction(following[None], rows, targets, scale, self._memory, self._record, self._embedding)

    def _record(self, total: Tensor) -> None:
        self._sum = self._sum + total


def _predicted(sample: TrainSample, mask: Tensor) -> Tensor:
    """Return the places of a sample's trained tokens, int64, without those that no position predicts."""
    first = sample.total_length - sample.response_length
    places = mask.cpu().nonzero().flatten() + first
    return places[places >= AHEAD]
