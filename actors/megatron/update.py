"""`update`: one optimizer step of a model over this rank's micro batches, the policy's or the critic's."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from megatron.core.distributed import finalize_model_grads
from torch import Tensor

from actors.megatron.cpu import stand_in
from actors.megatron.heartbeat import beat
from actors.megatron.trainee import Critic, Trainee
from schemas.errors import TrainerError

Timed = Callable[[str], AbstractContextManager[None]]


def update(
    part: Trainee | Critic,
    batches: Sequence[list[int]],
    loss_of: Callable[[list[int]], Tensor],
    *,
    what: str,
    timed: Timed = lambda part: nullcontext(),
    before: Callable[[], None] = lambda: None,
) -> float:
    """Sum the gradients over the micro batches and over ranks, and step; the norm of the gradient before clipping.

    loss_of: of a micro batch, divided by what the whole optimizer step counts for. what: its name in errors. timed:
    around each part. before: called with cleared gradients. Raises TrainerError where the norm is not finite.
    """
    with timed("forward_backward"):
        part.model.zero_grad_buffer()
        part.optimizer.zero_grad()
        before()
        for place, members in enumerate(batches):
            with nullcontext() if place == len(batches) - 1 else part.model.no_sync():
                part.optimizer.scale_loss(loss_of(members)).backward()
    with timed("gradients"):
        if not batches and part.model.ddp_config.overlap_grad_reduce:
            part.model.start_grad_sync()  # else the last backward pass starts it
        finalize_model_grads([part.model])
    with timed("optimizer"), stand_in():
        _, norm, _ = part.optimizer.step()
    beat()
    if norm is None or not math.isfinite(norm):
        raise TrainerError(
            f"gradient norm {norm} in {what}: these weights are lost. Go on from the last checkpoint; look at "
            "train_rollout_logprob_abs_diff and the learning rate"
        )
    part.scheduler.step(1)
    return float(norm)
