"""A user's own loss and advantages on a rank: samples by slime's names of the columns, and what came back, checked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slime_events.algorithms.objective import token_weights
from slime_events.algorithms.segments import Segments
from slime_events.core.train_batch import TrainSample
from slime_events.plugins.trainer_points import UserFunction

if TYPE_CHECKING:  # a user's file imports this by slime's names, and is looked at before a run needs Megatron
    from actors.megatron.forward import MicroBatch
    from actors.megatron.trainee import Trainee

PerSample = Mapping[int, Tensor]
"""Of samples by their index, float [response] each."""


def columns(
    samples: Sequence[TrainSample], indices: Sequence[int], device: torch.device, **known: PerSample
) -> dict[str, Any]:
    """The samples of these indices: a list for each column, in their order. known: columns of their tokens; one that
    lacks a sample is left out.
    """
    chosen = [samples[index] for index in indices]
    return {
        "unconcat_tokens": [torch.tensor(one.tokens, dtype=torch.int64, device=device) for one in chosen],
        "total_lengths": [one.total_length for one in chosen],
        "response_lengths": [one.response_length for one in chosen],
        "loss_masks": [torch.tensor(one.loss_mask, dtype=torch.int32, device=device) for one in chosen],
        "rewards": [one.reward for one in chosen],
        "raw_reward": [one.raw_reward for one in chosen],
        "truncated": [int(one.truncated) for one in chosen],
        "sample_indices": list(indices),
        **{
            name: [values[index] for index in indices]
            for name, values in known.items()
            if all(index in values for index in indices)
        },
    }


def own_advantages(function: UserFunction, args: Any, data: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """(advantages, returns) that the user's function leaves in `data`, float32 [response] each. data: `columns` of the
    whole step. Raises PlugPointError for anything else.
    """
    function(args, data)
    lengths = data["response_lengths"]
    found = []
    for name in ("advantages", "returns"):
        # slime's own estimators but ppo have one for both.
        parts = data.get(name, data.get("advantages"))
        if not isinstance(parts, list | tuple) or [tuple(getattr(one, "shape", ())) for one in parts] != [
            (length,) for length in lengths
        ]:
            wanted = f"rollout_data[{name!r}]: a tensor for each sample, of its response's length"
            raise function.refuse(parts, wanted)
        found.append([one.detach().float() for one in parts])
    return found[0], found[1]


def whole_logits(trainee: Trainee, packed: MicroBatch) -> Tensor:
    """float32 [1, tokens, vocabulary / tensor parallel ranks] of every position, not divided by the temperature."""
    every = copy.copy(packed.packed)
    every.rows = None
    logits: Tensor = trainee.model(packed.token_ids, packed.position_ids, None, packed_seq_params=every)
    return logits.float()


def sum_of_sample_mean(
    masks: Sequence[Tensor], denominators: Sequence[float] | None, *, per_token: bool
) -> Callable[[Tensor], Tensor]:
    """slime's reduction of a value per response token, samples end to end: the sum over samples of masked means, or
    over trained tokens.
    """
    segments = Segments.of(masks)
    weights = token_weights(segments, per_token=per_token, rollout_denoms=denominators)

    def reduce(values: Tensor) -> Tensor:
        return (values.masked_fill(~segments.mask, 0.0) * weights).sum()

    return reduce


def own_loss(
    function: UserFunction, args: Any, batch: dict[str, Any], logits: Tensor, reduce: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, figures) of the user's function: sums over the micro batch's samples, scalars. Raises PlugPointError for
    anything else.
    """
    returned = function(args, batch, logits, reduce)
    wanted = "(loss, metrics): a number that has a gradient, and numbers by name"
    if not (isinstance(returned, tuple | list) and len(returned) == 2 and isinstance(returned[1], Mapping)):
        raise function.refuse(returned, wanted)
    loss, metrics = returned
    if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
        raise function.refuse(loss, wanted)
    try:
        figures = {
            str(name): torch.as_tensor(value, dtype=torch.float32).detach().reshape(())
            for name, value in metrics.items()
        }
    except (TypeError, ValueError, RuntimeError):
        raise function.refuse(metrics, wanted) from None
    return loss.reshape(()), {"loss": loss.detach().reshape(()), **figures}
