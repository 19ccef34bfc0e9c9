"""`update`: run an optimizer step of the policy or the critic over this rank's micro batches."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from megatron.core.distributed import finalize_model_grads
from torch import Tensor

from actors.megatron.cpu import stand_in
from actors.megatron.trainee import Critic, Trainee
from actors.step.heartbeat import beat
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
    """Sum the gradients over micro batches and ranks, and step; return the norm of the gradient before clipping.

    loss_of: returns a micro batch's loss, divided by the weight of the whole optimizer step. what: name of the step in
    errors. timed: context around each part. before: called with cleared gradients. Raises TrainerError if the norm is
    not finite.
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
            part.model.start_grad_sync()  # with micro batches, the last backward pass starts it
        finalize_model_grads([part.model])
    with timed("optimizer"), stand_in():
        _, norm, _ = part.optimizer.step()
    beat()
    if norm is None or not math.isfinite(norm):
        raise TrainerError(
            f"gradient norm {norm} in {what}: these weights are lost. Continue from the last checkpoint; check "
            "train_rollout_logprob_abs_diff and the learning rate"
        )
    part.scheduler.step(1)
    return float(norm)
