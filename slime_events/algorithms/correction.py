"""A user's own parts of the policy objective, in slime's form: the correction of engine against trainer, and the sum.

`figures_of_mismatch`: how far engine and trainer are apart, for `--get-mismatch-metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from slime_events.algorithms.segments import Segments


class OwnFunction(Protocol):
    """A user's function, which says what is wrong with what it gave."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call it."""

    def refuse(self, returned: object, wanted: str) -> Exception:
        """The error for what it gave."""


@dataclass(frozen=True, slots=True)
class OwnTerms:
    """args: what the functions are given. tis, reducer: see `slime_events/plugins/trainer_points.py`. total_lengths:
    prompt + response of each sample, in tokens.
    """

    args: Any
    total_lengths: list[int]
    tis: OwnFunction | None = None
    reducer: OwnFunction | None = None


class Corrected(NamedTuple):
    """loss: per token [tokens]. kept: 0.0 where a token is rejected, [tokens]. metrics: per token [tokens] each."""

    loss: Tensor
    kept: Tensor
    metrics: dict[str, Tensor]


def corrected(
    own: OwnTerms, tis: OwnFunction, pg_loss: Tensor, train: Tensor, rollout: Tensor, segments: Segments
) -> Corrected:
    """What the user's function makes of the loss per token. train, rollout: log-probs of the policy that sampled, the
    trainer's and the engine's, [tokens]. Raises PlugPointError for anything but (pg_loss, loss_masks, metrics).
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
    wanted = "(pg_loss, loss_masks, metrics): tokens end to end, a mask for each sample, and tokens end to end by name"
    if not (isinstance(returned, tuple | list) and len(returned) == 3 and isinstance(returned[2], dict)):
        raise tis.refuse(returned, wanted)
    loss, masks, metrics = returned
    values = [loss, *metrics.values()]
    if not all(isinstance(value, Tensor) and value.shape == pg_loss.shape for value in values):
        raise tis.refuse(returned, wanted)
    if not _fits(masks, segments.lengths):
        raise tis.refuse(masks, "a loss mask for each sample, of its response's length")
    # What a function makes of tokens that are not trained on, be it infinite, stays out of every sum.
    outside = ~segments.mask
    kept = torch.cat([mask.float() for mask in masks])
    figures = {str(name): value.float().masked_fill(outside, 0.0) for name, value in metrics.items()}
    return Corrected(loss.masked_fill(outside, 0.0), kept, figures)


def reduced(
    own: OwnTerms, reducer: OwnFunction, pg_loss: Tensor, left: Tensor, segments: Segments, *, per_token: bool
) -> Tensor:
    """The sum of the loss over these samples as the user's function takes it, a scalar with gradient. left: what each
    token weighs after any correction, [tokens]. Raises PlugPointError where it gives anything else.
    """
    masks = segments.split((left != 0).int())
    reduce: Any = reducer(own.total_lengths, list(segments.lengths), masks, per_token)
    if not callable(reduce):
        raise reducer.refuse(reduce, "a function of the loss per token")
    total = reduce(pg_loss)
    if not (isinstance(total, Tensor) and total.numel() == 1):
        raise reducer.refuse(total, "a function that gives one number")
    return total.reshape(())


def _fits(parts: Any, lengths: Sequence[int]) -> bool:
    return (
        isinstance(parts, tuple | list)
        and all(isinstance(part, Tensor) for part in parts)
        and [tuple(part.shape) for part in parts] == [(length,) for length in lengths]
    )


def figures_of_mismatch(moved: Tensor, train: Tensor, rollout: Tensor, segments: Segments) -> dict[str, Tensor]:
    """By slime's names, [tokens] each, of log-probs [tokens] of the policy that sampled: the trainer's, the engine's.
    They correct nothing. moved: new - old log-probs; ois is the ratio of that.

    Perplexities are exp(-mean log-prob) of a sample; mis_kl is the mean of rollout - train, of which the mean is
    KL(engine || trainer), and mis_k3_kl its estimate that is never negative, exp(r) - r - 1 with r = train - rollout.
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
