"""A user's parts of the policy objective, with slime's signatures: the off-policy correction and the reduction.

`figures_of_mismatch` measures the difference between engine and trainer for `--get-mismatch-metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol, TypeGuard

import torch
from torch import Tensor

from schemas.doc import doc
from slime_events.algorithms.segments import Segments


class OwnFunction(Protocol):
    """A user's function, which can build the error for a wrong return value."""

    def __call__(self, *arguments: object, **named: object) -> object: ...

    def refuse(self, returned: object, expected: str) -> Exception:
        """Return the error for a return value that is not `expected`."""


@dataclass(frozen=True, slots=True)
class OwnTerms:
    """A user's functions for the policy term; see `slime_events/plugins/trainer_points.py`."""

    args: Annotated[object, doc("slime's `args`, the functions' first argument.")]
    total_lengths: Annotated[list[int], doc("Prompt + response tokens of each sample.")]
    tis: Annotated[OwnFunction | None, doc("The off-policy correction.")] = None
    reducer: Annotated[OwnFunction | None, doc("The reduction of the loss per token to a sum.")] = None


class Corrected(NamedTuple):
    """The result of a user's correction."""

    loss: Annotated[Tensor, doc("[tokens]: loss per token")]
    kept: Annotated[Tensor, doc("[tokens]: 0.0 for a rejected token, else the mask's value")]
    metrics: Annotated[dict[str, Tensor], doc("by name: a value per token, [tokens]")]


def corrected(
    own: OwnTerms, tis: OwnFunction, pg_loss: Tensor, train: Tensor, rollout: Tensor, segments: Segments
) -> Corrected:
    """Call the user's correction of the loss per token and check its result.

    train, rollout: log-probs [tokens] of the policy that sampled, by the trainer and by the engine. Raises
    PlugPointError if the result is not (pg_loss, loss_masks, metrics).
    """
    returned = tis(
        own.args,
        pg_loss=pg_loss,
        train_log_probs=segments.split(train),
        rollout_log_probs=segments.split(rollout),
        loss_masks=segments.split(segments.mask.int()),
        total_lengths=own.total_lengths,
        response_lengths=list(segments.lengths),
    )
    expected = (
        "(pg_loss, loss_masks, metrics): a flat tensor of all tokens, a mask per sample, and by name flat tensors of "
        "all tokens"
    )
    if not (isinstance(returned, tuple | list) and len(returned) == 3 and isinstance(returned[2], dict)):
        raise tis.refuse(returned, expected)
    loss, masks, metrics = returned
    values = [loss, *metrics.values()]
    if not all(isinstance(value, Tensor) and value.shape == pg_loss.shape for value in values):
        raise tis.refuse(returned, expected)
    if not _fits(masks, segments.lengths):
        raise tis.refuse(masks, "a loss mask per sample, as long as its response")
    # Values of untrained tokens, which may be infinite, stay out of every sum.
    outside = ~segments.mask
    kept = torch.cat([mask.float() for mask in masks])
    figures = {str(name): value.float().masked_fill(outside, 0.0) for name, value in metrics.items()}
    return Corrected(loss.masked_fill(outside, 0.0), kept, figures)


def reduced(
    own: OwnTerms, reducer: OwnFunction, pg_loss: Tensor, left: Tensor, segments: Segments, *, per_token: bool
) -> Tensor:
    """Return the loss summed over these samples by the user's reducer, a scalar with gradient.

    left: weight of each token after any correction, [tokens]. Raises PlugPointError if the result is not a scalar.
    """
    masks = segments.split((left != 0).int())
    reduce = reducer(own.total_lengths, list(segments.lengths), masks, per_token)
    if not callable(reduce):
        raise reducer.refuse(reduce, "a function of the loss per token")
    total = reduce(pg_loss)
    if not (isinstance(total, Tensor) and total.numel() == 1):
        raise reducer.refuse(total, "a function that returns one number")
    return total.reshape(())


def _fits(parts: object, lengths: Sequence[int]) -> TypeGuard[Sequence[Tensor]]:
    return (
        isinstance(parts, tuple | list)
        and all(isinstance(part, Tensor) for part in parts)
        and [tuple(part.shape) for part in parts] == [(length,) for length in lengths]
    )


def figures_of_mismatch(moved: Tensor, train: Tensor, rollout: Tensor, segments: Segments) -> dict[str, Tensor]:
    """Return metrics of the difference between engine and trainer, by slime's names, [tokens] each.

    train, rollout: log-probs [tokens] of the policy that sampled, by the trainer and by the engine. moved: new - old
    log-probs [tokens]; `ois` is its ratio.

    Perplexities are exp(-mean log-prob) of a sample. The mean of `mis_kl`, rollout - train, estimates
    KL(engine || trainer); `mis_k3_kl` is its estimate that is never negative, exp(r) - r - 1 with r = train - rollout.
    """
    mean_train, mean_rollout = (segments.expand(segments.masked_mean(part)) for part in (train, rollout))
    apart = mean_rollout - mean_train
    log_ratio = train - rollout
    return {
        "ois": moved.exp(),
        "mis_training_log_ppl": -mean_train,
        "mis_training_ppl": (-mean_train).exp(),
        "mis_rollout_log_ppl": -mean_rollout,
        "mis_rollout_ppl": (-mean_rollout).exp(),
        "mis_kl": -log_ratio,
        "mis_k3_kl": torch.expm1(log_ratio) - log_ratio,
        "mis_log_ppl_diff": apart,
        "mis_log_ppl_abs_diff": apart.abs(),
        "mis_ppl_ratio": apart.exp(),
    }
